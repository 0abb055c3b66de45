"""Rules that tables around plain PyTorch share: a trainer's defaults, optimizers, checkpointing of whole layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from simcore.frameworks.common.expert_adapters import check_expert_adapters, names_of_experts
from simcore.frameworks.common.lora import DEFAULT_TARGETS
from simcore.frameworks.common.low_rank.refusals import NOT_SERVED, LowRankUse, check_layerwise
from simcore.frameworks.common.low_rank.rules import projecting_optimizer
from simcore.inputs.optimizers import OPTIMIZERS, optimizers_of
from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.placement.extent import EXTENTS
from simcore.placement.framework import Optimizer
from simcore.placement.job import Draft, Job
from simcore.placement.layout import Blocks, Placements, TensorLayout

__all__ = ["FLASH", "OF_POLICIES", "Defaults", "Sourced", "States", "all_or_no_checkpoint", "check_named_adapters",
           "check_optimizer_in_backward", "is_hidden_matrix", "offloaded_together", "states_of", "time_of_offload",
           "torch_optimizer", "with_fp8_layers"]

_AO: Final = "torchao 36027d82 optim/adam.py"
_TUNE: Final = "torchtune bd2a0fc7 recipes/full_finetune_single_device.py"
FLASH: Final = "flashoptim"
"""Implementation whose states `States` knows, and one framework runs."""
OF_POLICIES: Final = ("flash", "flash_eager", "flash_entropy", "flash_entropy_eager", "flash_padded", "fused_linear",
                      "values")
"""Losses of verl's actor and critic, which its workers compute behind the model (verl b178a3cd `workers/actor/
dp_actor.py`, `workers/critic/dp_critic.py`)."""
_LEAST_PAGED: Final = 100_000
_BNB: Final = "bitsandbytes 95f9af30 optim/optimizer.py"
_SHARDED: Final = "torch 2.13 distributed/tensor/_dispatch.py, as it stops in the first step"

Sourced = tuple[str, str]
"""A value, and where it stands."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The values that a trainer around a model's code sets where a scenario leaves them open.

    Each `Sourced` is (value, source). `stored`: dtype of parameters at rest; `reduce`: of gradients while they are
    reduced ("compute": the compute dtype); `optimizer`: its implementation; `wrap`: the option of that name; `sync`:
    microbatches after which gradients are reduced. `root_resharded`: a root unit that wraps all but the layers reshards
    after forward; `last_follows`: a unit of norm and head obeys `reshard_after_forward: true`. `reshard`: the default
    in words. `loss_inside`: the model itself computes the loss, so the root's hooks run around it. `axes`: mesh axes
    that are served beyond those of data, tensors and experts. With pipeline stages: `reshard_in_stages` replaces
    `reshard`; `whole_in_stages`: components that tensor parallelism does not cut (if there are any, sequences are not
    cut either); `returns_outputs`: the last stage keeps the model's outputs. `splits_stream`: tensor parallelism
    splits hidden states between layers over the sequence.
    """

    stored: Sourced
    reduce: Sourced
    optimizer: Sourced
    loss: Sourced
    wrap: str
    sync: str
    root_resharded: bool
    last_follows: bool
    loss_inside: bool
    reshard: Sourced
    axes: tuple[str, ...] = ()
    reshard_in_stages: Sourced = ("", "")
    whole_in_stages: tuple[str, ...] = ()
    returns_outputs: bool = False
    splits_stream: bool = True


def offloaded_together(job: Job, told: str, rule: str) -> bool:
    """True if parameters, gradients and optimizer states are all on the host, False if none is.

    Raises IllegalLayout, with the message `told` and `rule`, if only some of the three or only fractions are.
    """
    parts = {name: job.scenario.training.offload.part(name) for name in ("params", "gradients", "optimizer")}
    for name, (space, fraction) in parts.items():
        job.one_of(f"training.offload.{name}", space, ("none", "host"))
        if fraction != parts["params"][1] or fraction not in (0, 1):
            raise job.illegal(f"training.offload.{name}", f"{told}, all three and whole", rule)
    return bool(parts["params"][1])


def time_of_offload(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Returns the assumption about the time of copies and of an optimizer step on the host; () without offload."""
    if not any(job.scenario.training.offload.part(name)[1] for name in ("params", "activations")):
        return ()
    return (("time of offload", "copies at the pace of pinned memory, beside kernels but for inputs of replayed "
             "layers; the CPU's step at 0.7 of its memory bandwidth", "assumed",
             "torch 2.13 distributed/fsdp/_fully_shard; optim/adam.py; no time is published"),)


def torch_optimizer(job: Draft, source: str, default: str = "foreach", *, plain: bool = False,
                    by_matrix: bool = False, low_rank: LowRankUse = NOT_SERVED) -> Optimizer:
    """Returns the optimizer of `torch.optim` or of a library of 8-bit kernels; NotYet for others.

    `default`: the implementation if the scenario names none, with its `source`, or the first that the optimizer has; an
    optimizer whose step holds nothing in any form (SGD) is "fused" in any case. `plain`: parameters are ordinary
    tensors, not DTensors. `by_matrix`: the framework's table has policies for optimizers that update matrices of hidden
    layers in another way (Muon). `low_rank`: whether optimizers that project gradients run over its parameters.
    """
    optimizer, framework = job.scenario.training.optimizer, job.scenario.framework
    kept = OPTIMIZERS[optimizer.name]
    if kept.projects:
        return projecting_optimizer(job, low_rank)
    if kept.stops_sharded and not plain:
        raise job.illegal("training.optimizer.name", f"{optimizer.name} over DTensors: {kept.stops_sharded}", kept.code)
    known = (*optimizers_of("torch", by_matrix=by_matrix), *optimizers_of("bitsandbytes"))
    if optimizer.name not in known and "transformers" not in kept.libraries:
        raise job.not_yet("training.optimizer.name", f"{optimizer.name} under {framework}")
    if optimizer.momentum and not kept.momentum_states:
        raise job.not_yet("training.optimizer.momentum", f"momentum of {optimizer.name}: it changes no bytes")
    if "transformers" in kept.libraries:
        return _of_trainer(job)
    _check_decay(job, plain=plain)
    if _low_bit(job, plain=plain):
        return Optimizer(optimizer.name, _checked_low_bit(job, plain=plain))
    if optimizer.implementation not in ("auto", "foreach", "fused", "for_loop"):
        raise job.not_yet("training.optimizer.implementation", f"{optimizer.implementation} under {framework}")
    if "te" not in kept.libraries:  # `source` is about Adam, SGD and Muon
        default, source = default if default in kept.forms else next(iter(kept.forms), ""), kept.code
    if optimizer.name == "sgd":  # torch's own default, which no trainer changes
        default, source = "foreach", kept.code
    kind = job.auto("training.optimizer.implementation", optimizer.implementation, default, source)
    if kind not in kept.forms:
        raise job.illegal("training.optimizer.implementation", f"{kind}: {optimizer.name} has "
                          f"{' and '.join(kept.forms) or 'the kernels of bitsandbytes alone'}", kept.code)
    if kept.forms[kind].stops_sharded and not plain:
        raise job.illegal("training.optimizer.implementation", kept.forms[kind].stops_sharded, _SHARDED)
    return Optimizer(optimizer.name, kind if kept.sized_by or optimizer.weight_decay else "fused",
                     decays=bool(optimizer.weight_decay))


def _check_decay(job: Job, *, plain: bool) -> None:
    """Refuses a weight decay in a kernel of bitsandbytes, where it changes no bytes, and that of a step on the host."""
    at, optimizer = "training.optimizer.weight_decay", job.scenario.training.optimizer
    if optimizer.weight_decay is not None and _low_bit(job, plain=plain):
        raise job.not_yet(at, f"weight decay of bitsandbytes' {optimizer.name}: it changes no bytes")
    if optimizer.weight_decay and job.scenario.training.offload.part("optimizer")[1]:
        raise job.not_yet(at, f"weight decay of {optimizer.name} on the host")


def _of_trainer(job: Draft) -> Optimizer:
    """An optimizer that transformers brings: a loop over tensors, with states in fp32."""
    optimizer = job.scenario.training.optimizer
    job.one_of("training.optimizer.implementation", optimizer.implementation, ("auto", "for_loop"))
    job.one_of("training.optimizer.moments", optimizer.moments, ("auto", "fp32"))
    if optimizer.paged:
        raise job.not_yet("training.optimizer.paged", f"paged states of {optimizer.name}")
    return Optimizer(optimizer.name, "for_loop")


def is_hidden_matrix(spec: TensorSpec) -> bool:
    """Returns True for a matrix of a hidden layer, which Muon is for; embedding and head are AdamW's.

    torch 2.13 `optim/_muon.py`: all that is no matrix, embedding and head should have another optimizer.
    """
    return len(spec.shape) == 2 and spec.copies == 1 and spec.component not in ("embedding", "lm_head")


def _low_bit(job: Job, *, plain: bool) -> str:
    """Library whose kernels update states of 8 or 4 bits, or paged ones; "" if the scenario asks for neither."""
    optimizer = job.scenario.training.optimizer
    if optimizer.implementation == "bitsandbytes":
        return "bitsandbytes"
    if optimizer.moments == "int4":
        return "torchao"
    kind, is_open = OPTIMIZERS[optimizer.name], optimizer.implementation == "auto"
    at_hand = plain and "foreach" not in kind.forms and not job.scenario.training.offload.part("optimizer")[1]
    alone = is_open and kind.is_of_bitsandbytes and (not kind.forms or at_hand)
    asked = optimizer.moments == "int8" or optimizer.paged or alone
    return ("bitsandbytes" if is_open and (plain or kind.is_of_bitsandbytes) else "torchao") if asked else ""


def _checked_low_bit(job: Draft, *, plain: bool) -> str:
    """Parameters that are DTensors have torchao's alone."""
    optimizer, kind = job.scenario.training.optimizer, _low_bit(job, plain=plain)
    _check_alone(job, kind, plain=plain)
    if kind not in OPTIMIZERS[optimizer.name].libraries:
        raise job.not_yet("training.optimizer.name", f"{optimizer.name} with states of 8 bits or paged ones")
    given = job.auto("training.optimizer.implementation", optimizer.implementation, kind,
                     f"{_AO} AdamW8bit; {_BNB} knows no DTensor")
    job.one_of("training.optimizer.implementation", given, ("bitsandbytes", "torchao") if plain else ("torchao",))
    if optimizer.paged and kind != "bitsandbytes":
        raise job.not_yet("training.optimizer.paged", f"paged states of {kind}")
    if kind == "bitsandbytes" and optimizer.moments not in ("auto", "fp32", "int8"):
        raise job.illegal("training.optimizer.moments", f"Amount of optimizer bits not supported: {optimizer.moments}",
                          f"{_BNB} init_state: 8 or 32")
    if kind == "bitsandbytes" and optimizer.moments == "auto":
        job.note("training.optimizer.moments", "fp32", f"{_BNB} init_state: 32 bits")
    return kind


def _check_alone(job: Job, library: str, *, plain: bool) -> None:
    """Raises an error for states of bitsandbytes over DTensors, and for those of an optimizer that a library lacks."""
    optimizer = job.scenario.training.optimizer
    kind = OPTIMIZERS[optimizer.name]
    if library == "torchao" and kind.is_of_bitsandbytes:
        at = "moments" if optimizer.implementation == "auto" else "implementation"
        raise job.illegal(f"training.optimizer.{at}", f"torchao has no {optimizer.name}: it has Adam and AdamW",
                          "torchao 0.18.0 optim/__init__.py")
    if library == "bitsandbytes" and not plain:
        at = "implementation" if optimizer.implementation != "auto" else "moments" if optimizer.moments != "auto" else \
            "name"
        raise job.illegal(f"training.optimizer.{at}", f"{optimizer.name} of bitsandbytes over DTensors: Operator "
                          "bitsandbytes.optimizer_update_32bit.default does not have a sharding strategy registered, "
                          "and of 8 bits \"got mixed torch.Tensor and DTensor\"", _SHARDED)
    if optimizer.paged and not kind.is_paged:
        raise job.illegal("training.optimizer.paged", f"bitsandbytes' {optimizer.name} takes no is_paged",
                          "bitsandbytes 0.50.2 optim/rmsprop.py")
    if optimizer.momentum and kind.is_of_bitsandbytes:
        raise job.not_yet("training.optimizer.momentum", f"momentum of bitsandbytes' {optimizer.name}")


@dataclass(frozen=True, slots=True)
class States:
    """The settings of one job's optimizer from which `of` derives the states of each parameter.

    `name`: of the optimizer. `moments`: dtype of its moments as the scenario says it ("auto": like the parameter).
    `low_bit`: library of kernels for 8-bit or paged states, or "". `paged`: states are in managed memory.
    `has_momentum`: SGD keeps a momentum buffer. `narrow_master`: format of the masters of bf16 parameters, "" without
    masters; `wide_master`: that of others, "" where they have none.
    """

    name: str
    moments: str
    low_bit: str
    paged: bool
    has_momentum: bool
    narrow_master: str = ""
    wide_master: str = "fp32"

    def of(self, placements: Placements, stored: str, space: str = "device", *, hidden: bool = False,
           flat: bool = False) -> tuple[tuple[str, TensorLayout], ...]:
        """Returns (name, layout) of each optimizer state of a parameter that is cut like `placements`; empty if none.

        `stored`: dtype of the parameter and its gradient; `space`: memory space of the states. SGD keeps a buffer only
        with momentum, whose default is 0 (torch 2.13 `optim/sgd.py`); Muon keeps one for each `hidden` matrix, and
        AdamW updates all other parameters (`optim/_muon.py`). `flat`: the optimizer sees parts of flat parameters.
        """
        kind, plain = OPTIMIZERS[self.name], TensorLayout(placements, stored, space)
        if hidden and kind.matrix_states:
            return tuple((name, plain) for name in kind.matrix_states)
        momentum = tuple((name, plain) for name in kind.momentum_states if self.has_momentum)
        if kind.extents:
            return self._shaped(placements, space, flat=flat)
        layout, names = self._moment(placements, stored, space), kind.states
        if self.narrow_master:
            form = self.narrow_master if stored == "bf16" else self.wide_master
            master = (("master_param", TensorLayout(placements, form, space)),) if form else ()
            return (*((name, layout) for name in names), *master)
        if not (self.paged and layout.blocks):
            return (*((name, layout) for name in names), *momentum)
        scales = replace(layout, space=space, blocks=replace(layout.blocks, part="scales"))
        layout = replace(layout, blocks=replace(layout.blocks, part="values"))
        return (*((name, layout) for name in names), *((f"{name}.absmax", scales) for name in names))

    def _shaped(self, placements: Placements, space: str, *, flat: bool) -> tuple[tuple[str, TensorLayout], ...]:
        """States of another shape than their parameter, in fp32; of flat parts those of their own shape."""
        kind = OPTIMIZERS[self.name]
        extents = {} if flat else {name: EXTENTS[word] for name, word in kind.extents}
        return tuple((name, TensorLayout(placements, "fp32", space, extent=extents.get(name)))
                     for name in kind.kept(None, flat=flat))

    def _moment(self, placements: Placements, stored: str, space: str) -> TensorLayout:
        """Like the parameter, as asked, or in blocks of 8 bits.

        [Note: moments of 8 bits] Blocks of 256 with a scale in fp32, from 4096 values on. bitsandbytes 95f9af30
        `optim/optimizer.py`, Optimizer2State: what is smaller, and all of 32 bits, in fp32; one table for all tensors.
        torchao 36027d82 `optim/adam.py`, `optim/subclass_8bit.py`: what is smaller or no multiple of a block like the
        parameter; a table of 256 fp32 values for each tensor. In 4 bits (0.18 `optim/subclass_4bit.py`) two values lie
        in a byte, and the table has 16; blocks are of 256 too, by transformers 5.23 `trainer_optimizer.py`. A kernel
        updates a tensor: no temporaries are counted. Paged states are managed memory (`cudaMallocManaged`), which is no
        part of torch's allocator; those of fewer than 100,000 values are not, nor are scales (get_state_buffer,
        init_state).
        """
        if self.low_bit == "bitsandbytes":
            blocks = Blocks(256, 4096, "fp32") if self.moments == "int8" else None
            away = ("managed", _LEAST_PAGED) if self.paged else (space, 0)
            return TensorLayout(placements, "int8" if blocks else "fp32", away[0], blocks=blocks, least_away=away[1])
        if self.low_bit == FLASH:  # flashoptim 8b2d966e: 32 values share a scale in fp16, of tensors of any size
            return TensorLayout(placements, "int8", space, blocks=Blocks(32, 0, stored, scale=2))
        if self.moments == "int8":
            return TensorLayout(placements, "int8", space, blocks=Blocks(256, 4096, stored, table=1024, whole=True))
        if self.moments == "int4":
            return TensorLayout(placements, "uint8", space, blocks=Blocks(256, 4096, stored, 64, whole=True,
                                                                              a_byte=2))
        return TensorLayout(placements, stored if self.moments == "auto" else self.moments, space)


def states_of(job: Job, *, plain: bool = False) -> States:
    """Returns the settings of the scenario's optimizer from which `States.of` derives a parameter's states.

    `plain`: parameters are ordinary tensors, not DTensors, so 8-bit or paged states are bitsandbytes' by default, else
    torchao's.
    """
    optimizer = job.scenario.training.optimizer
    return States(optimizer.name, optimizer.moments, _low_bit(job, plain=plain), optimizer.paged,
                  bool(optimizer.momentum))


def all_or_no_checkpoint(job: Job) -> str:
    """Returns "full", if every layer is recomputed whole, or "none"; NotYet for selective checkpointing."""
    recompute = job.scenario.training.recompute
    if recompute in ("none", "full"):
        return str(recompute)
    raise job.not_yet("training.recompute", f"selective checkpointing under {job.scenario.framework}")


def check_optimizer_in_backward(job: Job) -> None:
    """Raises an error if the optimizer cannot run inside backward (`optimizer_in_bwd`, torchtune's name).

    IllegalLayout with several microbatches a step; NotYet for qlora, for other optimizers than Adam, and with states on
    the host.
    """
    at, training = "framework_options.optimizer_in_bwd", job.scenario.training
    if OPTIMIZERS[training.optimizer.name].projects:
        check_layerwise(job)
        return
    if job.scenario.num_microbatches > 1:
        raise job.illegal(at, "Gradient accumulation is not supported with optimizer in bwd", f"{_TUNE}:157")
    if training.method == "qlora" or not OPTIMIZERS[training.optimizer.name].is_adam or training.offload.part(
            "optimizer")[1]:
        raise job.not_yet(at, "an optimizer inside backward of qlora's adapters, of another name than adam or adamw, "
                          "or with states on the host")


def check_named_adapters(job: Draft) -> None:
    """Raises NotYet for LoRA settings that adapters chosen by name do not serve, such as patterns.

    Adapters by name: `simcore/frameworks/common/lora.py`. Default targets are recorded as a default of the framework.
    """
    job.refuse_given({"training.lora.expert_adapters": "none"})
    if job.scenario.training.lora.target_modules == "auto":
        fused = {name for kind in job.graph.kinds for name in names_of_experts(kind.family, job.graph.implementation)}
        chosen = ", ".join(name for name in DEFAULT_TARGETS if name not in fused)
        job.auto("training.lora.target_modules", "auto", chosen, "linears of attention and of MLPs "
                 "and Mamba's in_proj, as scripts name them; PEFT 0.21.2 utils/constants.py has fewer, for some models"
                 + ("; names that adapt fused experts are left out" if fused else ""))
    lora = job.scenario.training.lora
    targets = () if isinstance(lora.target_modules, str) else lora.target_modules
    if "lm_head" in targets and job.graph.has_tied_head:
        raise job.not_yet("training.lora.target_modules", "an adapter of a tied lm_head")
    patterns = [name for name in (*targets, *lora.exclude_modules) if "*" in name]
    if patterns:
        raise job.not_yet("training.lora", f"patterns ({', '.join(patterns)}) under {job.scenario.framework}: only "
                          "last names of modules")
    check_expert_adapters(job, targets)


@lru_cache(maxsize=64)
def with_fp8_layers(graph: ModelGraph) -> ModelGraph:
    """Returns the model with linears of its layers in 8 bits; the head stays as it is."""
    return replace(graph, kinds=tuple(replace(kind, fp8=kind.block is None) for kind in graph.kinds))
