"""Megatron-LM's own reading of a launch script: its argparse, then its checks of what the arguments say together."""

from __future__ import annotations

import argparse
import os
import sys
import types
import typing
from pathlib import Path

from oracle.stand_ins import without_triton
from oracle.started import started


def load() -> None:
    """Imports the arguments, once for all cases; their module needs Triton for a name."""
    import torch

    without_triton()
    typing.override = lambda method: method  # of Python 3.12
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.device_count = lambda: 8
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0, name="NVIDIA H100")
    import megatron.training.arguments  # noqa: F401


def accept(folder: Path, files: list[str]) -> dict[str, object]:
    """Facts that Megatron-LM reads in a script; raises what it raises."""
    from megatron.training import arguments
    from torch.distributed.run import get_args_parser

    (found,) = started(folder / files[0])
    launched = get_args_parser().parse_args(found[1:])
    ranks = int(str(launched.nnodes).partition(":")[0]) * int(launched.nproc_per_node)
    os.environ.update({"WORLD_SIZE": str(ranks), "RANK": "0", "LOCAL_RANK": "0"})
    sys.argv = [launched.training_script, *launched.training_script_args]
    parser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False))
    _, unknown = parser.parse_known_args()
    if unknown:
        raise ValueError(f"Megatron-LM has no {' '.join(unknown)}")
    read = arguments.parse_args()
    arguments.validate_args(read)
    return {"ranks": ranks, "tensor": read.tensor_model_parallel_size, "stages": read.pipeline_model_parallel_size,
            "data": read.data_parallel_size, "layers": read.num_layers, "length": read.seq_length,
            "batch": read.global_batch_size, "optimizer": read.optimizer,
            "distributed_optimizer": read.use_distributed_optimizer}
