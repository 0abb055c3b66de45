"""torchtitan's own reading of a job configuration: `ConfigManager`, then its parallel dimensions and its model."""

from __future__ import annotations

import importlib
from pathlib import Path

from oracle.stand_ins import stand_in_for, without_triton
from oracle.started import behind_torchrun


def load() -> None:
    """Imports the package, once for all cases."""
    without_triton()
    stand_in_for("tensorboard", "google")
    for name in ("torchtitan.config", "torchtitan.protocols.train_spec", "torchtitan.distributed.parallel_dims"):
        importlib.import_module(name)


def accept(folder: Path, files: list[str]) -> dict[str, object]:
    """Facts that torchtitan reads in a recipe; raises what it raises."""
    from torchtitan.config import ConfigManager
    from torchtitan.distributed.parallel_dims import ParallelDims
    from torchtitan.protocols.train_spec import get_train_spec

    ranks, arguments = behind_torchrun(folder / "launch.sh")
    config = ConfigManager().parse_args(_in(folder, files[0], arguments))
    degrees = config.parallelism
    dims = ParallelDims(dp_shard=degrees.data_parallel_shard_degree,
                        dp_replicate=degrees.data_parallel_replicate_degree, cp=degrees.context_parallel_degree,
                        tp=degrees.tensor_parallel_degree,
                        pp=degrees.pipeline_parallel_degree, ep=degrees.expert_parallel_degree,
                        etp=degrees.expert_tensor_parallel_degree, world_size=ranks)
    flavor = get_train_spec(config.model.name).model_args[config.model.flavor]
    return {"ranks": ranks, "dp_shard": dims.dp_shard, "layers": flavor.n_layers, "length": config.training.seq_len}


def _in(folder: Path, name: str, arguments: list[str]) -> list[str]:
    """Arguments in which the recipe's file has its folder."""
    if name not in arguments:
        raise ValueError(f"{name} is not started: {arguments}")
    return [str(folder / name) if word == name else word for word in arguments]
