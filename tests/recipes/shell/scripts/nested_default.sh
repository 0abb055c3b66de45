NNODES=${SLURM_NNODES:-${NNODES:-1}}
GPUS=${GPUS:-$(( 4 * 2 ))}
ARGS="${ARGS:-"--a 1"} --b ${B:-"2 3"}"
torchrun --nnodes=$NNODES --nproc_per_node=$GPUS t.py $ARGS
