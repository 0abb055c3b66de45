TP=2
read -r -d '' CMD <<EOF
torchrun --nproc_per_node 8 \
  t.py --tp $TP --name "a b" --last \${LAST:-x}
EOF
bash -c "$CMD"
eval "$CMD"
read -rd '' RAW <<'EOF'
  --a 1 $TP
  --b 2

EOF
torchrun t.py $RAW "$RAW"
ARGS=$(cat <<EOF
--c $TP
--d "q"
EOF
)
torchrun t.py $ARGS "$ARGS"
srun bash -c "$(cat <<'EOF'
torchrun t.py --e ${E:-5}
EOF
)"
