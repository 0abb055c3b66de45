"""Layers whose experts are modules of linears: those of transformers 4, and of a model's own repository.

bitsandbytes packs each linear of each expert, and adapters by name find them. `LAYERS` says, for each implementation of
transformers' layers, which options a framework takes and what it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from simcore.frameworks.adapter import Options
from simcore.frameworks.common import transformers as _transformers
from simcore.inputs.training import Draws
from simcore.operators.hf.options import HfOptions
from simcore.placement.job import Draft, Job

__all__ = ["FOUR", "HUB", "LAYERS", "Layers", "check_autocast"]

_FILE: Final = "the model's modeling_nemotron_h.py"
_BLOCK: Final = "transformers 4.57.1 Qwen3MoeSparseMoeBlock"
_LOSSES: Final = ("auto", "hf", "hf_keep_logits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """One implementation's layers as frameworks around transformers see them.

    `options`: framework options that they take. `check`: raises IllegalLayout or NotYet for a job and the options that
    its scenario sets. `layer_options`: the settings of the layers for these. `moe_outputs`: tensors that a block of
    experts returns. `replays_layers`: gradient checkpointing calls layers once more, hooks and all, and not only their
    forward. `reads_head`: the model reads its head's weight itself, in front of the head.
    """

    options: Options
    check: Callable[[Job, dict[str, Any]], None]
    layer_options: Callable[[Draft, dict[str, Any]], HfOptions]
    moe_outputs: int = 1
    replays_layers: bool = False
    reads_head: bool = False


def _check_hub(job: Job, options: dict[str, Any]) -> None:
    if job.mesh.tp > 1 or job.mesh.ep > 1:
        raise job.not_yet("mesh", f"tensor and expert parallelism of {_FILE}")
    if job.scenario.training.lengths == "packed":
        raise job.not_yet("training.lengths", f"packed sequences in {_FILE}, which is not told where one begins")
    _check_loop(job, options, _FILE)


def _check_four(job: Job, options: dict[str, Any]) -> None:
    if job.mesh.tp > 1 or job.mesh.ep > 1:
        raise job.not_yet("mesh", f"tensor and expert parallelism of {_BLOCK}")
    if job.scenario.training.lengths == "packed":
        raise job.not_yet("training.lengths", "packed sequences in the layers of transformers 4.57.1, whose masks are "
                          "others")
    _check_loop(job, options, _BLOCK)


def check_autocast(job: Job) -> None:
    """Raises IllegalLayout for packed experts of the repository's loop under autocast, whose sums stop.

    [Note: packed experts under autocast] in `operators/hf/remote_code.py`.
    """
    if job.graph.implementation == "hub" and job.scenario.training.method == "qlora" and job.has_experts:
        narrow = {"bf16": "BFloat16", "fp16": "Half"}.get(job.compute, job.compute)
        raise job.illegal("training.method", f"index_add_(): self ({narrow}) and source (Float) must have the same "
                          "scalar type: under autocast packed experts return fp32, as torch.square gives it to them "
                          "(method: lora runs)",
                          "torch 2.13 aten/src/ATen/autocast_mode.h AT_FORALL_FP32; bitsandbytes 0.50.2 nn/modules.py "
                          "Linear4bit.forward")


def _check_loop(job: Job, options: dict[str, Any], code: str) -> None:
    """Raises NotYet for random routing, another loss or activations that stay away; IllegalLayout for a capacity."""
    if isinstance(job.scenario.training.routing, Draws):
        raise job.not_yet("training.routing", f"routing drawn at random in the loop over experts of {code}")
    job.refuse_capacity(f"{code}: tokens are never dropped")
    job.one_of("training.loss", job.scenario.training.loss, _LOSSES)
    _transformers.check_layers(job, options)


def _hub_options(job: Draft, options: dict[str, Any]) -> HfOptions:
    """A causal mask is made unless the kernel is flash-attn's."""
    given = options.get("attn_implementation")
    if given != "flash_attention_2":
        job.auto("framework_options.attn_implementation", "auto", "SDPA over repeated keys and values",
                 f"{_FILE}, NemotronHAttention and NemotronHSdpaAttention: both call it, eager too")
    return HfOptions(attn_implementation="flash_attention_2" if given == "flash_attention_2" else "eager",
                     inputs_on_host=job.scenario.training.offload.part("activations")[1] > 0)


HUB: Final = Layers(options={"attn_implementation": (None, "eager", "sdpa", "flash_attention_2")}, check=_check_hub,
                    layer_options=_hub_options, replays_layers=True, reads_head=True)
FOUR: Final = Layers(options={name: _transformers.LAYER_OPTIONS[name] for name in (
    "attn_implementation", "sdpa_backend")}, check=_check_four, layer_options=_transformers.dense_options_of,
                     moe_outputs=2, replays_layers=True)
LAYERS: Final[Mapping[str, Layers]] = {
    "hf": Layers(options=_transformers.LAYER_OPTIONS, check=_transformers.check_layers,
                 layer_options=_transformers.options_of),
    "hub": HUB, "hf4": FOUR,
}
