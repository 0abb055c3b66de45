T=4
bash <<-EOF
	X=$T
	torchrun t.py "$T" '\$X' "\$X" $(echo 5) \\
	  --next "q"
EOF
cat <<'E' | bash
torchrun piped.py
E
bash <<E | cat
torchrun first.py $T
E
echo 5 | while read n; do T=$n; done
torchrun t.py $T
