"""The vocabulary of framework tables.

A framework is a table: for each class of tensors a `TensorPolicy` (the first matching rule wins), how tensors are
grouped into `Unit`s, and a `ParallelStrategy`. The folders of `simcore/frameworks` fill it in from a scenario; nothing
else in the engine knows a framework by name. Rules cite upstream file and version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import TypeVar

from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.pipeline.schedule import Schedule
from simcore.placement.afterwards import Afterwards
from simcore.placement.checkpoint_files import Files
from simcore.placement.layout import TensorLayout
from simcore.placement.libraries import KernelLibraries
from simcore.placement.strategy import ParallelStrategy
from simcore.recording.options import NO_OPTIONS, ImplementationOptions
from simcore.recording.rows import Step

__all__ = ["Framework", "LayerwiseShards", "Matches", "Optimizer", "Padding", "Rule", "TensorPolicies", "TensorPolicy",
           "Unit", "UpdateTime", "inner_of"]


S = TypeVar("S", bound=ParallelStrategy)
Matches = Callable[[TensorSpec], bool]


class UpdateTime(Enum):
    """The point of a training step at which the optimizer updates a tensor; each value says it in words."""

    OPTIMIZER_STEP = "in optimizer.step()"
    GRADIENT_READY = "inside backward, as soon as its gradient is accumulated"
    AFTER_REDUCE = "inside backward, when its unit's gradients are reduced"
    NEVER = "never (buffers)"


@dataclass(frozen=True, slots=True)
class TensorPolicy:
    """Layouts and update of the tensors that one rule matches: at rest, gathered, reduced.

    Four layouts of a tensor: `at_rest`: the parameter between uses; `in_use`: gathered for its layer; `unreduced_grad`:
    the gradient as backward makes it; `grad`: the gradient after the reduction. `optimizer_states`: (name of the state,
    layout) pairs. `pad_storage`: the parameter's storage is rounded up to the same size on every rank (FSDP2).
    `grads_persist`: gradient storage survives into the next forward (Megatron's main_grad). The two categories are
    those under which a report counts the parameter at rest and the gradient before its reduction. `apart`: a tied
    tensor, whose storage at rest is another's, is gathered by itself and has a gradient of its own. `differentiated`:
    backward makes a gradient of it though it is frozen. `step_alone`: from the shape of a tensor to the step of an
    optimizer of its own inside backward, if that is not Adam's.
    """

    name: str
    at_rest: TensorLayout
    in_use: TensorLayout
    unreduced_grad: TensorLayout
    grad: TensorLayout
    optimizer_states: tuple[tuple[str, TensorLayout], ...] = ()
    updated: UpdateTime = UpdateTime.OPTIMIZER_STEP
    pad_storage: bool = False
    grads_persist: bool = False
    apart: bool = False
    differentiated: bool = False
    at_rest_category: str = "sharded_param"
    unreduced_grad_category: str = "unsharded_grad"
    step_alone: Callable[[tuple[int, ...]], Step] | None = None

    @property
    def grad_waits(self) -> bool:
        """True if reduced gradients are in device memory between backward and `optimizer.step()`.

        False if they are on the host, or if the optimizer updates the tensor inside backward.
        """
        return self.grad.space == "device" and self.updated not in (UpdateTime.GRADIENT_READY, UpdateTime.AFTER_REDUCE)


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One row of a framework's table: the policy for all tensors for which `matches` returns True.

    Rules are compared by identity, as functions are.
    """

    matches: Matches
    policy: TensorPolicy


@dataclass(frozen=True, slots=True, eq=False)
class TensorPolicies:
    """The policy of every tensor of a model: `of[k][i]` is that of tensor i of the layers of kind k.

    k is an index in `ModelGraph.kinds`, i one in `ModelGraph.tensors[k]`.

    Frameworks with the same rules share one instance, and all that is computed from it.
    """

    of: tuple[tuple[TensorPolicy, ...], ...]


Inner = str
"""Submodule inside a layer that is a unit: "experts", "adapter" (a matrix of it), or a module in fp32 (`inner_of`)."""


def inner_of(module: str) -> Inner:
    """Name of the unit that is a module in fp32, by its path in the layer; "" for the only one of a layer."""
    return f"fp32:{module}" if module else "fp32"


@dataclass(frozen=True, slots=True)
class Unit:
    """A group of tensors that is gathered, used and reduced together (an FSDP unit).

    `name` as upstream prints it in hooks. `members`: (layer number of the whole model, indices of tensors in that
    layer's kind), in the order of parameters. `first`, `last`: the layers between which it is in use, from the start of
    forward of `first` to the end of forward of `last`. `shard_axis`, `replicate_axis`: mesh axes over which it is cut
    and copied ("": none). `reshard_after_forward`: True, False, or the number of ranks of a smaller group that keeps it
    cut. `inner`: what submodule inside the layer it wraps ("": it wraps no such). `is_root`: it wraps the whole model.
    `explicit`: takes part in explicit prefetch. `joins_copies`: the copies of a tensor (one for each expert) are one
    parameter. `param_dtype`: of gathered parameters; "" gathers in the stored dtype; mixed stored dtypes are gathered
    as raw bytes. `reduce_dtype`, `gather_dtype`: of the reduce-scatter and of the all-gather. `rests`: its modules do
    not run, so it stays cut.
    """

    name: str
    members: tuple[tuple[int, tuple[int, ...]], ...]
    first: int
    last: int
    shard_axis: str
    replicate_axis: str = ""
    reshard_after_forward: bool | int = True
    inner: Inner = ""
    is_root: bool = False
    explicit: bool = False
    joins_copies: bool = False
    param_dtype: str = "bf16"
    reduce_dtype: str = "fp32"
    gather_dtype: str = "bf16"
    rests: bool = False

    @property
    def kept_axis(self) -> str:
        """Name of the mesh axis over which the unit, if it is resharded, is cut between forward and backward.

        It is `shard_axis` (also with False, when the unit stays whole), or "axis/n" for groups of n neighbouring ranks
        of it if `reshard_after_forward` is a number n.
        """
        policy = self.reshard_after_forward
        return self.shard_axis if isinstance(policy, bool) else f"{self.shard_axis}/{policy}"


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The optimizer of a job and the way it runs.

    `name`: as in the scenario. `implementation`: foreach, fused, for_loop, te, or a library of 8-bit kernels.
    `grad_copy`: 16-bit gradients are copied to fp32 for the step. `late_master`: the fp32 master weights are allocated
    in the first step, like the moments, not when the optimizer is built. `groups_apart`: parameters that are not
    sharded are a separate parameter group. `ahead`: Muon's updates look ahead (Nesterov). `decays`: a weight decay is
    added to a copy of the gradients.
    """

    name: str
    implementation: str
    grad_copy: bool = False
    late_master: bool = False
    groups_apart: bool = False
    ahead: bool = False
    decays: bool = False


@dataclass(frozen=True, slots=True)
class LayerwiseShards:
    """The parameters of one pipeline stage, where one data-parallel rank updates each parameter whole.

    `axes`: (axis of dense parameters, axis of expert parameters) over whose ranks they are distributed. `shares`: for
    each of the two axes, and each coordinate on it, the elements that the rank there updates as (with Muon, with Adam).
    `in_place`: updated parameters are gathered in the buffers, without flat copies.
    """

    axes: tuple[str, str]
    shares: tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]
    in_place: bool = False

    def heaviest(self) -> int:
        """Returns the coordinate on the dense axis whose rank has the most bytes of optimizer states.

        The first of equal ones. Only dense parameters count: 8 bytes an element if Muon updates it, 12 if Adam does.
        """
        return max(range(len(self.shares[0])), key=lambda at: 8 * self.shares[0][at][0] + 12 * self.shares[0][at][1])


@dataclass(frozen=True, slots=True)
class Padding:
    """The multiple of tokens to which a collator rounds up a microbatch's longest sequence; its source."""

    multiple: int = 1
    source: str = "transformers 5.23 data/data_collator.py: padding to the longest, pad_to_multiple_of None"


@dataclass(frozen=True, slots=True)
class LayerOffload:
    """Offload of activations by layers: saved tensors of the first transformer layers wait on the host.

    `num_layers`: number of these layers; `least`: elements of the smallest tensor that leaves.
    """

    num_layers: int
    least: int


@dataclass(frozen=True, slots=True)
class ModuleOffload:
    """Offload of activations by modules: what these `modules` save waits on the host, but for the last of each.

    `least`: elements of the smallest tensor that leaves.
    """

    modules: tuple[str, ...]
    least: int


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework applied to one job: what is needed to place its tensors and to simulate its step.

    `rules`: the first that matches a tensor gives its policy. `stages`: layer numbers of each pipeline stage, in the
    order of the model; with several chunks a rank, of each chunk (`Schedule.parts_of`: those of a rank). `checkpoint`:
    the activation recomputation. `kept_whole`: layers that are never recomputed; `kept_inputs`: layers
    whose inputs stay on the device where those of others wait on the host. `recomputed_together`: number of layers that
    keep one input ("uniform"). `frees_sent_output`: a stage frees an output once it is sent.
    `keeps_received`: it keeps the last received input, and that input's gradient, until the next ones arrive.
    `kept_layer_inputs`: layers of which it keeps them until they run again.
    `buffered_microbatches`: number of microbatches for which a stage has a receive buffer. `buffer_slack`: receive
    buffers that microbatches share, beyond as many as are in flight; -1: each has its buffer. `returns_outputs`: the
    last stage keeps the model's output of each microbatch. `unseen_bytes`: the most that tensors which no pass lists
    may add to the peak, in the upper end of a band. `deferred_heads`: number of microbatches of a step that keep the
    inputs of the output head's weight gradient until the end of the step. `dealt`: for each pipeline rank, the
    parameters that ranks update whole; empty if optimizer states are cut. `offload`: layers, or modules, whose saved
    tensors wait on the host; None for none. `communicators`: every mesh axis of more than one rank with a collective or
    a transfer. `assumptions`: (key, value, kind, source); `defaults`: (key, value, source) that the framework chose.
    Fields that are not compared do not change the step; rules act through the plan of a rank. `fullest_load`: load of
    the fullest rank's experts over the mean that the upper end of bands counts.
    """

    name: str
    version: str
    rules: tuple[Rule, ...] = field(compare=False)
    units: tuple[Unit, ...]
    strategy: ParallelStrategy
    optimizer: Optimizer
    compute_dtype: str
    checkpoint: str
    loss: str
    sequence_parallel: bool
    stages: tuple[tuple[int, ...], ...]
    kept_whole: tuple[int, ...] = ()
    kept_inputs: tuple[int, ...] = ()
    recomputed_together: int = 1
    schedule: Schedule = field(default_factory=Schedule)
    frees_sent_output: bool = False
    keeps_received: bool = False
    kept_layer_inputs: tuple[int, ...] = ()
    buffered_microbatches: int = 0
    buffer_slack: int = -1
    returns_outputs: bool = False
    unseen_bytes: int = 0
    deferred_heads: int = 0
    dealt: tuple[LayerwiseShards, ...] = ()
    offload: LayerOffload | ModuleOffload | None = None
    options: ImplementationOptions = NO_OPTIONS
    communicators: tuple[str, ...] = ()
    libraries: KernelLibraries = field(default_factory=KernelLibraries)
    padding: Padding = field(default=Padding(), compare=False)
    fullest_load: float = field(default=1.0, compare=False)
    files: Files = field(default=Files(), compare=False)
    afterwards: Afterwards = field(default=Afterwards(), compare=False)
    assumptions: tuple[tuple[str, str, str, str], ...] = field(default=(), compare=False)
    defaults: tuple[tuple[str, str, str], ...] = field(default=(), compare=False)

    def default(self, key: str) -> str | None:
        """Returns the value, as text, that the framework chose for `key`, such as "training.loss" (as in `defaults`).

        None if the scenario sets it or the framework recorded no default for it.
        """
        return next((value for name, value, _ in self.defaults if name == key), None)

    def strategy_as(self, kind: type[S]) -> S:
        """Returns `strategy`, typed as `kind`: the framework's own record of settings.

        AssertionError if it is another kind.
        """
        assert isinstance(self.strategy, kind), f"{self.name}: {kind.__name__} expected, got {self.strategy!r}"
        return self.strategy

    def policy(self, spec: TensorSpec) -> TensorPolicy:
        """Returns the policy of the first rule that matches the tensor `spec`. AssertionError if none does."""
        return _first_match(self.rules, spec).policy

    def policies(self, graph: ModelGraph) -> TensorPolicies:
        """Returns the policy of each tensor of each kind of layer of `graph`; cached for equal rules."""
        return _policies(self.rules, graph)


@lru_cache(maxsize=256)
def _policies(rules: tuple[Rule, ...], graph: ModelGraph) -> TensorPolicies:
    return TensorPolicies(tuple(tuple(_first_match(rules, spec).policy for spec in specs) for specs in graph.tensors))


def _first_match(rules: Sequence[Rule], spec: TensorSpec) -> Rule:
    for rule in rules:
        if rule.matches(spec):
            return rule
    raise AssertionError(f"no rule for {spec.name}")
