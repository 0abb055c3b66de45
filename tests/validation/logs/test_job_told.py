"""Numbers that logs say of their job, line by line of each program; none where a log says two values."""

from __future__ import annotations

from simcore.validation.logs.job_told import job_told
from simcore.validation.logs.lines import plain_text

SAYS = {
    "Megatron's arguments": (
        "  world_size ...................................... 16\n"
        "  seq_length ...................................... 4096\n"
        "  tensor_model_parallel_size ...................... 2\n"
        "  num_layers ...................................... 32\n"
        "  lr .............................................. 0.0003\n",
        {"GPUs": 16, "sequence length": 4096, "tp": 2, "layers": 32}),
    "Megatron's first line": (
        "using world size: 16, data-parallel size: 4, context-parallel size: 1, hierarchical context-parallel sizes: "
        "None, tensor-model-parallel size: 2, pipeline-model-parallel size: 2\n",
        {"GPUs": 16, "cp": 1, "tp": 2, "pp": 2}),
    "DeepSpeed": (
        "[2026-01-01 00:00:00,000] [INFO] [config.py:1013:print]   train_batch_size ............. 64\n"
        "[2026-01-01 00:00:00,000] [INFO] [config.py:1013:print]   train_micro_batch_size_per_gpu  2\n",
        {"global batch": 64, "micro batch": 2}),
    "torchtitan": (
        "[titan] - INFO - Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=8, cp=1, tp=2, ep=4\n"
        "[titan] - INFO - \x1b[34mModel llama3 8B \x1b[31msize: 8,030,261,248 total parameters\x1b[39m\n"
        "Trainer is initialized with 8192 tokens per DP rank, maximum context length 8192, total steps 10\n",
        {"GPUs": 32, "pp": 1, "cp": 1, "tp": 2, "ep": 4, "parameters": 8030261248, "sequence length": 8192}),
    "torchtitan of 2024": (
        "Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]\n"
        "Training starts at step 1, with local batch size 2, global batch size 8, sequence length 2048, total "
        "steps 10\n",
        {"GPUs": 8, "micro batch": 2, "global batch": 8, "sequence length": 2048}),
    "the Trainer": (
        "  Instantaneous batch size per device = 2\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 1,024\n"
        "  Gradient Accumulation steps = 4\n  Number of trainable parameters = 41,943,040\n",
        {"micro batch": 2, "global batch": 1024, "trainable parameters": 41943040, "data-parallel ranks": 128}),
    "peft": ("trainable params: 41,943,040 || all params: 8,072,204,288 || trainable%: 0.5196\n",
             {"trainable parameters": 41943040, "parameters": 8072204288}),
    "Automodel": ("2026-01-01 | INFO | root | World size: 8\n2026-01-01 | INFO | root | Trainable parameters: 1,024\n",
                  {"GPUs": 8, "trainable parameters": 1024}),
    "two runs": ("World size: 8\nWorld size: 16\n", {}),
    "nothing": ("step: 1 loss: 2\n", {}),
}


def test_each_program_says_it_in_its_own_lines() -> None:
    for program, (text, told) in SAYS.items():
        assert job_told(plain_text(text)) == told, program
