N=4
TP=2
bash <<EOT
#!/bin/bash
export NN=3
torchrun --nnodes $N t.py --tp $TP --nn \$NN
EOT
bash <<'EOT'
TP=${TP:-8}
torchrun t.py --tp $TP
EOT
cat > /dev/null <<EOF
torchrun not --run
EOF
