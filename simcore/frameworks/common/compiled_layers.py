"""Layers of transformers that torch.compile runs on one by one: option `compile: layers`.

`for layer in model.model.layers: layer.compile()`, as torchtune bd2a0fc7 `training/_compile.py` does: each layer is a
graph of its own, inside of what checkpoints and shards it. What such a layer keeps was measured for some families alone
(`operators/shared/compiled_block.py`); all others are refused.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.frameworks.common.liger import asks_for_liger
from simcore.models.blocks import Attention
from simcore.placement.job import Job

__all__ = ["LAYERS_ALONE", "assumptions", "check_compiled"]

LAYERS_ALONE: Final = "layers"
"""Value of the option `compile`: each decoder layer is compiled, and nothing else."""
_AT: Final = "framework_options.compile"
_SERVED: Final = ("llama", "mistral", "qwen2", "qwen3")
_ASSUMED: Final = ((_AT, "Inductor's buffers as its CPU backend makes them", "assumed",
                    "torch 2.13 was measured with its CPU backend, not with CUDA's"),)


def check_compiled(job: Job, options: dict[str, Any]) -> None:
    """Raises NotYet for layers that are compiled one by one where what they keep was not measured.

    `options`: the framework options that the scenario sets, by name.
    """
    if options.get("compile") != LAYERS_ALONE:
        return
    if reason := _not_measured(job, options):
        raise job.not_yet(_AT, f"compiled layers {reason}")


def _not_measured(job: Job, options: dict[str, Any]) -> str:
    training, family = job.scenario.training, job.graph.architecture.family
    if family not in _SERVED:
        return f"of {family} (served: {', '.join(_SERVED)})"
    if job.compute not in ("bf16", "fp16"):
        return f"in {job.compute}"
    if training.method != "full":
        return f"of a model that {training.method} trains"
    if asks_for_liger(options):
        return "with Liger's kernels"
    given = options.get("attn_implementation")
    if given not in (None, "sdpa", "flash_attention_2", "flex_attention"):
        return f"with attn_implementation: {given}"
    if given in (None, "sdpa") and (training.lengths == "packed" or _has_window(job) or _runs_plainly(options)):
        return "whose attention takes a mask, or has no kernel"
    return ""


def _has_window(job: Job) -> bool:
    length = job.scenario.training.seq_len
    return any(isinstance(b.block, Attention) and 0 < b.block.window <= length
               for kind in job.graph.kinds for b in kind.branches)


def _runs_plainly(options: dict[str, Any]) -> bool:
    return options.get("sdpa_backend") == "math"


def assumptions(_job: Job, options: dict[str, Any]) -> tuple[tuple[str, str, str, str], ...]:
    """Returns the assumptions about compiled layers: (key, value, kind, source); none if they are not compiled.

    `options`: the framework options that the scenario sets, by name.
    """
    return _ASSUMED if options.get("compile") == LAYERS_ALONE else ()
