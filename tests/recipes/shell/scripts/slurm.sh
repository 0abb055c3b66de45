#!/bin/bash -l
#SBATCH --job-name=pretrain
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
set -euo pipefail
module load cuda 2>/dev/null || true
export NCCL_DEBUG=WARN OMP_NUM_THREADS=8
nodes=( node1 node2 node3 node4 )
head=${nodes[0]}
head_ip=$(echo $head)
NNODES=${#nodes[@]}
GPUS=8
TP=${TP:-4} PP=${PP:-2}
(( NNODES * GPUS % (TP * PP) == 0 )) || { echo "bad layout"; exit 1; }
DP=$(( NNODES * GPUS / TP / PP ))
GBS=$((DP * 16))
ARGS=" \
  --tensor-model-parallel-size $TP \
  --pipeline-model-parallel-size $PP \
  --global-batch-size $GBS \
"
if [[ $TP -gt 1 ]]; then
  ARGS+=" --sequence-parallel"
fi
[ "$PP" -gt 1 ] && ARGS="$ARGS --num-layers-per-virtual-pipeline-stage 2" || true
LAUNCHER="torchrun --nproc_per_node $GPUS --nnodes $NNODES --rdzv_endpoint $head_ip:29500 --rdzv_backend c10d"
CMD="pretrain_gpt.py $ARGS --save /ckpt/${SLURM_JOB_NAME:-local}"
srun --jobid ${SLURM_JOBID:-0} bash -c "$LAUNCHER --node_rank \${SLURM_PROCID:-0} $CMD" 2>&1 | tee log
