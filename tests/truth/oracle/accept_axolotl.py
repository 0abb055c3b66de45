"""axolotl's own reading of a recipe: plugins, then its pydantic schema with the GPUs that it would find."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from oracle.stand_ins import stand_in_for
from oracle.started import one_started

H100 = {"bf16": True, "fp8": True, "tf32": True, "compute_capability": "sm_90"}


def load() -> None:
    """Imports the schema, once for all cases."""
    import torch.distributed.run  # noqa: F401

    stand_in_for("evaluate", "wandb", "cut_cross_entropy")
    for name in ("cut_cross_entropy", "liger"):
        importlib.import_module(f"axolotl.integrations.{name}")


def accept(folder: Path, files: list[str]) -> dict[str, object]:
    """Facts that axolotl reads in a recipe; raises what its schema raises, and ValueError for a key that it drops."""
    import torch
    import yaml
    from axolotl.utils.config import prepare_plugins, validate_config
    from axolotl.utils.dict import DictDefault
    from torch.distributed.run import get_args_parser

    os.chdir(folder)  # the files name each other
    arguments = one_started(folder / "launch.sh", "axolotl")
    if arguments[:5] != ["train", files[0], "--launcher", "torchrun", "--"]:
        raise ValueError(f"{files[0]} is not started: {arguments}")
    launched = get_args_parser().parse_args([*arguments[5:], "-m", "axolotl.cli.train"])
    gpus = int(str(launched.nnodes).partition(":")[0]) * int(launched.nproc_per_node)
    values = yaml.safe_load((folder / files[0]).read_text(encoding="utf-8"))
    config = DictDefault(values)
    prepare_plugins(config)
    found = validate_config(config, capabilities={**H100, "n_gpu": gpus},
                            env_capabilities={"torch_version": torch.__version__.partition("+")[0]})
    dropped = [key for key in values if key not in found and values[key] is not None]
    if dropped:
        raise ValueError(f"axolotl's schema has no {', '.join(dropped)}")
    return {"ranks": gpus, "model": found.base_model, "optimizer": str(found.optimizer),
            "attention": found.attn_implementation, "fsdp": found.fsdp_version,
            "length": found.sequence_len, "batch": found.micro_batch_size, "adapter": found.adapter}
