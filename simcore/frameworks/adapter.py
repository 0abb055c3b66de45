"""A framework as the rest of the engine sees it: one frozen record, `FrameworkAdapter`.

Each framework's folder has a module `adapter.py` that fills it in. Nothing outside the folder looks further.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from simcore.frameworks.summons import Summons
from simcore.inputs.scenario import Mesh as Degrees
from simcore.models.blocks import LayerKind, Moe
from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.placement.capabilities import ALL_AXES
from simcore.placement.framework import Framework
from simcore.placement.job import Defaults, Draft, Job
from simcore.placement.plan import AtRestBytes, Plan
from simcore.program.hooks import HooksFactory
from simcore.recording.options import LoraDropout
from simcore.units import dtype_bytes

__all__ = ["AtRest", "FrameworkAdapter", "LoraChoice", "MemoryOption", "Options", "even_padding", "open_axes"]

Options = Mapping[str, tuple[Any, ...]]
"""Keys of `framework_options`, each with its values or types; the first is the default where that is fixed."""
Components = dict[str, AtRestBytes]
"""Bytes at rest by component of the model."""


class _Padding(Protocol):
    def __call__(self, plan: Plan, components: Mapping[str, AtRestBytes], *, exact: bool) -> tuple[int, int]: ...


class _HostBuffers(Protocol):
    def __call__(self, plan: Plan, *, rounded: bool) -> Counter[str]: ...


def even_padding(plan: Plan, components: Mapping[str, AtRestBytes], *, exact: bool) -> tuple[int, int]:
    """Returns the bytes of (parameters, gradients), on one rank's device, that round storage up to equal sizes.

    All ranks then store as much of a tensor.
    Frozen parameters have no gradients, nor have those that the optimizer updates inside backward once that is over.
    `components` and `exact` change nothing.
    """
    grads = sum(count * sum((p.padded - p.local) // p.grad_parts * dtype_bytes(p.policy.grad.dtype)
                            for p in plan.kinds[kind] if p.trainable and p.policy.grad_waits)
                for kind, count in plan.kind_counts)
    return plan.padding_bytes(), grads


def _no_pools(plan: Plan) -> tuple[tuple[int, ...], ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRest:
    """The functions that count a rank's bytes at rest under one framework, by component of the model.

    A flat cut gives every rank a part of equal length, in which more or less of each tensor lies. `exact` counts the
    elements inside one rank's own part, `mean` those of a class (ranks simulated as one) on average. Storage is the
    same either way: what it holds beyond those elements is `padding`, in bytes of (parameters, gradients). `pools`:
    bytes of each tensor in memory pools beside the allocator's own, pool by pool, in order of allocation.
    """

    mean: Callable[[Plan], Components] = Plan.at_rest
    exact: Callable[[Plan], Components] = Plan.at_rest
    padding: _Padding = even_padding
    pools: Callable[[Plan], tuple[tuple[int, ...], ...]] = _no_pools


def _no_buffers(plan: Plan, *, rounded: bool) -> Counter[str]:
    return Counter()


def _undivided(degrees: Degrees) -> int:
    return 1


def open_axes(graph: ModelGraph, axes: tuple[str, ...] = ALL_AXES) -> tuple[str, ...]:
    """Returns the axes that may have more than one rank, without that of experts for a model that has none."""
    has_experts = any(isinstance(branch.block, Moe) for kind in graph.kinds for branch in kind.branches)
    return tuple(axis for axis in axes if axis != "ep" or has_experts)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryOption:
    """Scenario keys, set together, with which a framework takes less memory: advice tries them.

    `kind`: advice lists the best of each kind; "formats" changes numbers, all others take time.
    """

    kind: str
    keys: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LoraChoice:
    """LoRA settings of a scenario: rank of the adapters, and module names.

    Each framework's own matcher decides which modules get adapters (`FrameworkAdapter.lora_tensors`).
    `target_modules` (get an adapter) and `exclude_modules` (get none): empty means not given. `expert_adapters`:
    adapters of routed experts, "auto" (the framework's own), "none", "shared" or "per_expert". `release`: version of
    the framework, as the scenario has it. `use_dora`: each adapter has a vector of magnitudes too. `implementation`:
    the model code. `moe_rank_scaling`: experts' rank is that of others over the number of experts of a token.
    `is_exact`: targets are whole paths of modules in a layer.
    """

    rank: int
    target_modules: tuple[str, ...] = ()
    exclude_modules: tuple[str, ...] = ()
    expert_adapters: str = "auto"
    release: str = "auto"
    use_dora: bool = False
    implementation: str = ""
    moe_rank_scaling: bool = False
    is_exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkAdapter:
    """One framework as the engine knows it: functions that make its table and its hooks, and settings.

    `write_table`: the framework applied to a job. `hooks`: makes the hooks at the borders of layers. `lora_tensors`:
    the LoRA tensors of a kind of layer, from its tensors. `lora_dropout`: place of dropout around the adapters that a
    job asks for; raises an error for DoRA, rsLoRA or dropout that they do not know. `versions`: releases, the default
    first. `implementations`: model code that it can train. `implementation_of`: the one for (`model_type` of the
    config, training method) if the scenario names none. `options`: the framework options that it takes around the
    layers of an implementation, by its name. `at_rest`: how it counts bytes.

    `quantize`: the model whose linears compute in 8 or 4 bits, None where that is not served. `default_etp`: size of
    expert tensor parallelism if the mesh leaves it out. `serves_qlora`: frozen weights may be in 4 bits;
    `qlora_refusal`: why they are impossible, as (message, rule). `casts_parameters`: parameters rest in the dtype asked
    for and are gathered in the compute dtype. `copies_tied_head`: over pipeline stages the last holds a copy of the
    embedding. `unadapted`: implementations whose layers take no adapters, as the table says, whatever is asked for.
    `freezes`: implementations whose parameters can be frozen one by one; `saves_modules`: those beside whose
    adapters whole modules train. `host_buffers`: bytes on the host by owner beyond tensors; with `rounded`, pinned
    blocks count as rounded up. `memory_options`: settings of the framework that advice tries where a job does not fit.
    `implied`: keys of the scenario, with the value that they have where it leaves them out.
    `reads_images`: models with a vision tower are served; `trains_towers`: towers with gradients or adapters
    too; `replays_towers`: checkpointed layers around one; `rests_towers`: towers that are given no images;
    `freezes_at_rest`: whether such a tower is frozen tells how it is wrapped, and may be said.
    `packs_images`: packs of sequences with images.
    `trained_fronts`: classes of patches of the towers that it trains as a whole, where they are others.
    `scores_images`: workers of reinforcement learning over it are given images.
    `takes_pattern`: modules with adapters may be named by one regular expression, as by PEFT.
    `summons`: how parameters are made whole outside of a pass; None where transformers' Trainer does not train with it.
    `verl_wraps`: implementations whose layers verl's FSDP 2 workers wrap; its loss of values is that of their critic.
    `chunks_loss`: training.logprob_chunk_size cuts the loss of a training step too.
    `of_stages`: framework options that mean nothing without pipeline stages, and are refused there.
    `axes`: mesh axes that may have more than one rank with a model; a job with another is refused (`table`), unless its
    table communicates over it for what the job asks, so that a search need not try it.
    `dispatchers`: ways to send tokens to experts on other ranks, by a name that is equal where another framework does
    the same, each with the framework options that choose it.
    `needs`: framework options without which a training method is refused, by its name; a search that comes from another
    framework sets them.
    `foreign`: first words of the names of programs that never run it, as logs have them, by what their code imports:
    axolotl 067b021c and TRL f2cd5771 neither `megatron.core` nor `nemo_automodel`, Automodel 36044ad3, torchtitan 0.2.2
    and Megatron-LM d98e8a64 no DeepSpeed, torchtitan none of them; () for a wrapper of PyTorch.
    """

    write_table: Callable[[Draft], Framework]
    hooks: HooksFactory
    lora_tensors: Callable[[LayerKind, tuple[TensorSpec, ...], LoraChoice], tuple[TensorSpec, ...]]
    lora_dropout: Callable[[Draft], LoraDropout]
    versions: tuple[str, ...]
    implementations: tuple[str, ...]
    implementation_of: Callable[[str, str], str]
    options: Callable[[str], Options]
    at_rest: AtRest = field(default_factory=AtRest)
    quantize: Callable[[Draft], ModelGraph] | None = None
    default_etp: Callable[[Degrees], int] = _undivided
    serves_qlora: bool = False
    qlora_refusal: tuple[str, str] | None = None
    casts_parameters: bool = False
    copies_tied_head: bool = False
    unadapted: tuple[str, ...] = ()
    freezes: tuple[str, ...] = ()
    saves_modules: tuple[str, ...] = ()
    chunks_loss: bool = False
    summons: Summons | None = None
    verl_wraps: tuple[str, ...] = ()
    reads_images: bool = False
    trains_towers: bool = False
    replays_towers: bool = False
    rests_towers: bool = False
    freezes_at_rest: bool = False
    packs_images: bool = False
    trained_fronts: tuple[type, ...] = ()
    scores_images: bool = False
    takes_pattern: bool = False
    memory_options: tuple[MemoryOption, ...] = ()
    implied: Mapping[str, object] = field(default_factory=dict, compare=False)
    of_stages: tuple[str, ...] = ()
    axes: Callable[[ModelGraph], tuple[str, ...]] = open_axes
    dispatchers: Mapping[str, Mapping[str, str]] = field(default_factory=dict, compare=False)
    host_buffers: _HostBuffers = _no_buffers
    needs: Mapping[str, Mapping[str, object]] = field(default_factory=dict, compare=False)
    foreign: tuple[str, ...] = ()

    def has_option(self, name: str) -> bool:
        """True if the framework has an option of this name around the layers of one of its implementations."""
        return any(name in self.options(implementation) for implementation in self.implementations)

    def table(self, job: Job, earlier: Defaults = ()) -> Framework:
        """Returns the framework's table for a job, with `earlier` defaults and those that the framework chose.

        A key that is in both stands where it is in `earlier`, with the framework's value. Raises IllegalLayout,
        InputError or NotYet for a job that is not served.
        """
        draft = Draft(job)
        framework = self.write_table(draft)
        for axis in set(ALL_AXES).difference(self.axes(job.graph)):
            if getattr(job.mesh, axis) > 1 and axis not in framework.communicators:
                raise job.not_yet(f"mesh.{axis}", f"{job.scenario.framework} with {axis} {getattr(job.mesh, axis)}")
        if job.scenario.training.method != "full" and (dropout := self.lora_dropout(draft)):
            framework = replace(framework, options=replace(framework.options, lora_dropout=dropout))
        chosen = {key: (key, value, source) for key, value, source in (*earlier, *draft.defaults)}
        return replace(framework, defaults=tuple(chosen.values()))

    def in_low_precision(self, job: Job) -> tuple[ModelGraph, Defaults]:
        """Returns the job's model with linears that compute in 8 or 4 bits, and the defaults chosen for it.

        A default is (key, value, source). Raises NotYet if the framework has no `quantize`.
        """
        if self.quantize is None:
            raise job.not_yet("training.precision.compute", f"compute in fp8 under {job.scenario.framework}, by "
                              "torchao's Float8Linear (tensorwise) or by a recipe of TransformerEngine")
        draft = Draft(job)
        return self.quantize(draft), draft.defaults
