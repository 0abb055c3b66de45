N=2
ARGS=" --a 1 \
  --b 2 "
srun -N 2 bash -c "torchrun --nnodes $N --node_rank \${SLURM_PROCID:-0} t.py $ARGS"
srun bash -c "
  export X=1
  torchrun \
    t.py --x \$X
"
torchrun $ARGS 2>&1 | tee -a "logs/$(date +%s).log" &
wait $!
trap 'echo bye' EXIT
exit 0
