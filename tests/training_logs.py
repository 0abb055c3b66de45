"""Logs as the trainers print them, with numbers of our own: one text a format, and how tests read them."""

from __future__ import annotations

from typing import Final

from simcore.validation.logs.reading import Log
from simcore.validation.logs.registry import read_log

RED, GREEN, BLUE, SEA, RESET = "\x1b[31m", "\x1b[32m", "\x1b[34m", "\x1b[38;2;54;234;195m", "\x1b[39m"


def titan(step: int, gib: str, tps: str, tflops: str, mfu: str) -> str:
    """As `MetricsProcessor.log` of torchtitan b5bcd76c, colours included."""
    return (f"[titan] 2026-01-01 00:00:00,000 - root - INFO - {RED}step: {step:2}  {GREEN}loss: {11.5:8.5f}  "
            f"grad_norm: {1.25:7.4f}  {SEA}memory: {gib:>5}GiB(51.44%)  {BLUE}tps: {tps}  tflops: {tflops}  "
            f"mfu: {mfu}{RESET}")


TITAN: Final = "\n".join([
    "[titan] 2026-01-01 00:00:00,000 - root - INFO - CUDA capacity: NVIDIA H100 with 79.10GiB memory",
    titan(1, "40.10", "1,000", "50.00", "5.00%"), titan(10, "48.87", "4,000", "250.00", "25.00%"),
    titan(20, "48.50", "4,400", "1,270.00", "N/A"), titan(30, "48.50", "4,200", "260.00", "27.00%"),
    f"[titan] x - {RED}validate step: 30  {GREEN}loss:  9.0000  {SEA}memory: 70.00GiB(88.00%)  {BLUE}tps: 9,000"])


def megatron(rank: int, after: int, *values: float) -> str:
    """As `report_memory` of Megatron-LM."""
    names = ("allocated", "max allocated", "reserved", "max reserved")
    return f"[Rank {rank}] (after {after} iterations) memory (MB)" + "".join(
        f" | {name}: {value:.2f}" for name, value in zip(names, values, strict=True))


def iteration(number: int, ms: float, tflops: float, batch: int = 128) -> str:
    return (f" [2026-01-01 00:00:00.000000] iteration {number:8d}/{100:8d} | consumed samples: {number * batch:12d} |"
            f" elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): {tflops:.1f} |"
            f" learning rate: 1.000000E-05 | global batch size: {batch:5d} | lm loss: 1.1E+01 | loss scale: 1.0 |")


MEGATRON: Final = "\n".join([
    "Number of parameters in transformer block in billions:  8.03", iteration(1, 9000, 40),
    megatron(0, 1, 100, 200, 300, 310.5), megatron(4, 1, 90, 190, 280, 290), iteration(2, 2000, 400),
    megatron(0, 2, 110, 260, 320, 330), megatron(4, 2, 95, 240, 300, 310), iteration(3, 1900, 420),
    iteration(4, 2100, 380),
    "[Rank 0] (before save_checkpoint for iteration 4) memory (MB) | allocated: 999.00 | max allocated: 999.00"])

BRIDGE: Final = "\n".join([
    "Step Time : 30.50s GPU utilization: 20.5MODEL_TFLOP/s/GPU",
    "Step Time : 2.50s GPU utilization: 320.5MODEL_TFLOP/s/GPU",
    "[Rank 0] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 12.345 | mem-active-gigabytes: 12.4 |"
    " mem-inactive-gigabytes: 0.1 | mem-reserved-gigabytes: 60.0 | mem-max-allocated-gigabytes: 50.123 |"
    " mem-max-active-gigabytes: 50.2 | mem-max-inactive-gigabytes: 1.0 | mem-max-reserved-gigabytes: 61.5 |"
    " mem-alloc-retires: 0 | mem-allocated-count: 1234"])


def automodel(step: int, gib: float, tps: float, gpus: int = 4) -> str:
    """As `log_train_metrics` of Automodel 36044ad3, in a log of torchrun under srun."""
    return (f"0: 2026-01-01 00:00:00 | INFO | root | step {step} | epoch 0 | loss 1.2345 | grad_norm 0.5000 |"
            f" lr 1.00e-05 | mem {gib:.2f} GiB | tps {tps:.2f}({tps / gpus:.2f}/gpu) | num_label_tokens 4096")


AUTOMODEL: Final = "\n".join([
    automodel(0, 48.0, 2000), automodel(1, 50.12, 8000), automodel(2, 49.5, 8400), automodel(3, 49.5, 8200),
    '0: [val] name "default" | step 3 | epoch 0 | loss 1.2000 | lr 1.00e-05 | num_label_tokens 999'])

BENCHMARK: Final = "\n".join([
    "INFO Rank 0 | Iteration 0 | num_label_tokens=4096 | Max Memory Allocated: 60.10 GB | loss=2.0000",
    "INFO Rank 0 | Iteration 1 | num_label_tokens=4096 | Max Memory Allocated: 61.50 GB | loss=1.9000",
    "INFO Average iteration time: 1.250 seconds (excluding first 10 warmup iterations)",
    "INFO Average MFU: 31.500000% (excluding first 10 warmup iterations)"])


def bar(at: int, elapsed: str, of: int = 100, about: str = "") -> str:
    """As tqdm draws it: over the line before."""
    return f"\r{about}{at * 100 // of:3d}%|{'#' * (at * 10 // of):10}| {at}/{of} [{elapsed}<09:09,  9.09s/it]"


BARS: Final = "".join([bar(15, "00:59", 15, "Loading checkpoint shards: "), bar(0, "00:00"), bar(1, "00:30"),
                       bar(2, "00:32"), bar(8, "00:40", 8), bar(50, "02:08"), bar(100, "1:03:48")])
"""Steps 2 to 100 in 63 minutes and 18 seconds; the loading of shards and an evaluation are other bars."""

TRAINER: Final = "\n".join([
    "[INFO|trainer.py:2414] 2026-01-01 00:00:00,000 >>   Total train batch size (w. parallel, distributed & "
    "accumulation) = 1,024", BARS, "{'loss': 2.1, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1}",
    "{'eval_loss': 2.0, 'eval_runtime': 12.0, 'eval_samples_per_second': 99.0, 'epoch': 0.1}",
    "{'train_runtime': 4000.0, 'train_samples_per_second': 25.6, 'train_steps_per_second': 0.025, 'train_loss': 2.0, "
    "'before_init_mem_gpu': 1000, 'init_mem_gpu_alloc_delta': 20000, 'init_mem_gpu_peaked_delta': 0, "
    "'train_mem_gpu_alloc_delta': 300000, 'train_mem_gpu_peaked_delta': 4000000, 'epoch': 1.0}"])

TABLE: Final = "\n".join([
    "***** train metrics *****", "  before_init_mem_gpu         =        0MB", "  epoch          =        1.0",
    "  init_mem_gpu_alloc_delta    =     1000MB", "  train_mem_gpu_alloc_delta   =     2000MB",
    "  train_mem_gpu_peaked_delta  =      500MB", "  train_runtime               = 0:01:40.50",
    "  train_samples_per_second    =        8.5", "  train_steps_per_second      =        0.5"])

TRL: Final = "\n".join([
    "{'loss': '1.5', 'grad_norm': '0.2', 'num_tokens': '5e+04', 'mean_token_accuracy': '0.7', 'epoch': '0.5'}",
    "{'loss': '1.4', 'grad_norm': '0.2', 'num_tokens': '1e+05', 'mean_token_accuracy': '0.7', 'epoch': '1'}",
    "{'train_runtime': '50', 'train_samples_per_second': '4', 'train_steps_per_second': '0.5', 'train_loss': '1.4', "
    "'epoch': '1'}"])


def axolotl(allocated: float, reserved: float, rate: float) -> str:
    return (f"{{'loss': '1.25', 'grad_norm': '0.5', 'learning_rate': '2e-05', 'ppl': '3.49034', "
            f"'memory/max_active (GiB)': '{allocated}', 'memory/max_allocated (GiB)': '{allocated}', "
            f"'memory/device_reserved (GiB)': '{reserved}', 'tokens/train_per_sec_per_gpu': '{rate}', "
            "'tokens/total': 8192, 'tokens/trainable': 4096, 'epoch': '0.02'}")


AXOLOTL: Final = "\n".join([axolotl(20.5, 24.0, 100.0), axolotl(22.25, 25.5, 900.0), axolotl(22.0, 25.0, 1100.0)])


def usage(message: str, *values: float) -> str:
    """As `see_memory_usage` of DeepSpeed 0.16.1, with the blanks of its line breaks."""
    allocated, most, reserved, most_reserved = values
    where = "[2026-01-01 00:00:00,000] [INFO] [utils.py:782:see_memory_usage]"
    return (f"{where} {message}\n{where} MA {allocated} GB         Max_MA {most} GB         CA {reserved} GB         "
            f"Max_CA {most_reserved:.0f} GB \n{where} CPU Virtual Memory:  used = 31.0 GB, percent = 24.7%")


def timers(fwd: float, bwd: float, step: float) -> str:
    stamp = "[2026-01-01 00:00:00,000] [INFO] [logging.py:128:log_dist] [Rank 0] time (ms) |"
    return (f"{stamp} fwd_microstep: {fwd / 2} | bwd_microstep: {bwd / 2} | step_microstep: {step}\n"
            f"{stamp} fwd: {fwd:.2f} | bwd: {bwd:.2f} | bwd_inner: {bwd:.2f} | bwd_allreduce: 0.10 | step: {step:.2f}")


DEEPSPEED: Final = "\n".join([
    usage("Before creating fp16 partitions", 30.0, 99.0, 99.0, 99),
    usage("After initializing ZeRO optimizer", 12.5, 20.0, 21.0, 21),
    usage("Engine before forward", 12.5, 12.5, 21.0, 21), usage("Engine after forward", 30.0, 31.5, 35.0, 35),
    usage("Engine after backward", 13.0, 40.25, 50.0, 50), timers(900, 1800, 300),
    "[x] epoch=0/micro_step=2/global_step=2, RunningAvgSamplesPerSec=3.5, CurrSamplesPerSec=3.25, MemAllocated=12.5GB, "
    "MaxMemAllocated=40.25GB", timers(300, 600, 100), timers(320, 620, 100), timers(280, 580, 100),
    "[x] epoch=0/micro_step=4/global_step=4, RunningAvgSamplesPerSec=7.5, CurrSamplesPerSec=8.0, MemAllocated=12.5GB, "
    "MaxMemAllocated=40.25GB"])


def nemo_rl(total: float, training: float) -> str:
    """As `grpo_train` of NeMo RL 7ea279ab prints it."""
    return "\n".join([
        "\u23f1\ufe0f  Timing:", f"  \u2022 Total step time: {total:.2f}s", "  \u2022 generation: 4.00s (40.0%)",
        f"  \u2022 policy_training: {training:.2f}s (20.0%)", "  \u2022 policy_and_reference_logprobs: 1.50s (15.0%)",
        "  \u2022 logprob_inference_prep: 0.25s (2.5%)", "  \u2022 training_prep: 0.50s (5.0%)",
        "  \u2022 prepare_for_generation/total: 1.00s (10.0%)",
        "  \u2022 prepare_for_generation/transfer_and_update_weights: 0.90s (9.0%)"])


NEMO_RL: Final = "\n".join([nemo_rl(30, 9), nemo_rl(10, 2), nemo_rl(11, 3), nemo_rl(12, 4)])


def verl(step: int, gib: float, seconds: float) -> str:
    return (f"(TaskRunner pid=123) step:{step} - actor/pg_loss:-0.01 - perf/mfu/actor:0.25 - "
            f"perf/max_memory_allocated_gb:{gib} - perf/max_memory_reserved_gb:np.float64({gib + 10}) - "
            f"perf/cpu_memory_used_gb:300.5 - timing_s/gen:{seconds / 2} - timing_s/old_log_prob:1.5 - "
            f"timing_s/ref:1.25 - timing_s/update_actor:{seconds / 4} - timing_s/step:{seconds} - "
            f"timing_per_token_ms/gen:0.05 - perf/total_num_tokens:100000 - "
            f"perf/time_per_step:{seconds} - perf/throughput:{1000 / seconds}")


VERL: Final = "\n".join([verl(1, 40.5, 100.0), verl(2, 41.25, 20.0), verl(3, 41.25, 24.0), verl(4, 41.0, 22.0)])

LOGS: Final = {"torchtitan": TITAN, "Megatron-LM": MEGATRON, "Megatron-Bridge": BRIDGE, "Automodel": AUTOMODEL,
               "Automodel's benchmark": BENCHMARK, "the Hugging Face Trainer": TRAINER, "TRL": TRL, "axolotl": AXOLOTL,
               "DeepSpeed": DEEPSPEED, "NeMo RL": NEMO_RL, "verl": VERL}
"""Text by the name that its reader gives it."""

def read(text: str) -> Log:
    found = read_log(text)
    assert found is not None
    return found


def values(log: Log, rank: int | None = None) -> dict[str, float]:
    return {reading.of: reading.value for reading in log.readings if reading.rank == rank}
