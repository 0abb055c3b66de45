#!/usr/bin/env bash
set -x
export ACCELERATE_LOG_LEVEL=info
NUM_PROCESSES=$((2 * 8))
accelerate launch \
    --config_file "configs/zero3.yaml" \
    --num_processes $NUM_PROCESSES --num_machines 2 \
    --machine_rank ${SLURM_PROCID:-0} --main_process_ip ${HEAD:-localhost} \
    train.py --lr 1e-5 \
    --output_dir "out/${RUN:-base}" 2>&1 | tee log.txt
