TP=2
CMD="torchrun --nproc_per_node 8 t.py --tp \$TP --name 'a b'"
eval $CMD
eval "$CMD" --more '"c d"'
LAUNCH="torchrun --standalone"
$LAUNCH t.py --x
exec torchrun t.py --last
torchrun never.py
