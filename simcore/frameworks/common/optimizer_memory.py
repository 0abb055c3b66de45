"""Tensors that stay allocated across steps, and temporaries of the optimizer's step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simcore.frameworks.common.steps import dion
from simcore.frameworks.common.steps.own_step import OwnStep, Updated
from simcore.frameworks.common.steps.projection import projection_of
from simcore.frameworks.common.steps.table import STEPS
from simcore.inputs.optimizers import OPTIMIZERS, StepForm
from simcore.models.blocks import Attention
from simcore.placement.mesh import IntArray
from simcore.placement.optimizer_step import is_updated_in_backward, moment_dtype
from simcore.placement.plan import Placed, PlacedKind, Plan
from simcore.program.builder import Builder
from simcore.program.outline import Phase, Tables
from simcore.program.tile import LayerRows
from simcore.recording.rows import Module
from simcore.recording.tape import Kernel, Op, Stream
from simcore.units import dtype_bytes

__all__ = ["OptimizerSizes", "Posting", "muon_transient", "newton_schulz_bytes", "optimizer_sizes",
           "optimizer_temporaries", "post_rest", "rest_postings", "sizes_of", "step_temporaries", "update"]

_ALLOC = int(Op.ALLOC)
Posting = tuple[str, str, int]


def post_rest(plan: Plan, tables: Tables, builder: Builder, of: Callable[[PlacedKind], Sequence[Posting]]) -> None:
    """Writes the allocation of all of the rank's tensors that live across steps to `builder`, layer by layer.

    `of`: returns (name, category, bytes) of each allocation of a kind of layer. Buffers of the model that belong to no
    layer are on the first stage.
    """
    builder.at(Phase.BUILD)
    tiles: dict[int, LayerRows] = {}
    for layer in plan.layers:
        kind = plan.graph.layers[layer].kind
        if kind not in tiles:
            rows = [(_ALLOC, 0, tables.slot(name, category), num_bytes, 0, 0)
                    for name, category, num_bytes in of(plan.kinds[kind]) if num_bytes]
            columns: IntArray = np.array(rows, dtype=np.int64).reshape(-1, 6)
            tiles[kind] = LayerRows(columns, np.zeros(len(rows), dtype=np.int64))
        builder.tile(tiles[kind], layer)
    slot = tables.slot("buffers", "buffer")
    for _, num_bytes in plan.graph.architecture.buffers if plan.stage == 0 else ():
        builder.alloc(plan.layers[0], slot, num_bytes)


@lru_cache(maxsize=1024)
def rest_postings(kind: PlacedKind) -> tuple[Posting, ...]:
    """Returns (name, category, bytes) of a kind of layer's parameters at rest, their optimizer states, and buffers.

    Bytes on this rank's device, 0 for a parameter elsewhere; states elsewhere are left out.
    """
    return tuple(posting for placed in kind for posting in _rest_postings(placed))


def _rest_postings(placed: Placed) -> list[Posting]:
    name = placed.spec.name
    if placed.spec.is_buffer:
        return [(name, "buffer", placed.local * dtype_bytes(placed.policy.at_rest.dtype))]
    states = [(f"{name}.{state}", "main_param" if state == "master_param" else "opt_state", num_bytes)
              for state, num_bytes in placed.states]
    return [(name, placed.policy.at_rest_category, placed.rest_bytes), *states]


@dataclass(frozen=True, slots=True)
class OptimizerSizes:
    """Bytes that an optimizer's step holds for a moment, its FLOPs, bytes moved, and FLOPs of Newton-Schulz steps.

    `clipped`: bytes that the norm of all gradients and their product with a number move before it; 0 without.
    `messages`: bytes that the rank receives in each all-to-all of shards in bf16, in order.
    """

    held: int
    flops: int
    moved: int
    newton_schulz: int
    clipped: int = 0
    messages: tuple[int, ...] = ()


def optimizer_temporaries(plan: Plan, tables: Tables, builder: Builder,
                          ranks: Sequence[Sequence[Updated]] = ()) -> None:
    """Writes the optimizer's step of the rank, with its temporary memory, to `builder`, see `optimizer_sizes`.

    `ranks`: what an optimizer with a step of its own updates on each rank that is simulated as this one, if not the
    tensors of the plan; the step that holds most is written.
    """
    sizes = optimizer_sizes(plan)
    if ranks and plan.framework.optimizer.name in STEPS:
        step = STEPS[plan.framework.optimizer.name]
        sizes = max((sizes_of(step, parts, sizes.clipped) for parts in ranks), key=lambda one: one.held)
    update(sizes, plan.layers[0], tables, builder)


def update(sizes: OptimizerSizes, layer: int, tables: Tables, builder: Builder) -> None:
    """Writes an optimizer's step of these sizes to `builder`; its memory is listed under layer number `layer`."""
    slot = tables.slot("sqrt_exp_avg_sq", "optim_temp")
    if sizes.clipped:
        builder.compute(Kernel.OPTIMIZER, 0, sizes.clipped)
    builder.alloc(layer, slot, sizes.held)
    for num_bytes in sizes.messages:
        comm = tables.comm("all_to_all", "dp_shard_cp", "bf16")
        builder.collective(layer, comm, num_bytes, Stream.COMPUTE, int(Module.NONE))
    builder.compute(Kernel.OPTIMIZER, sizes.flops, sizes.moved)
    if sizes.newton_schulz:
        builder.compute(Kernel.GEMM, sizes.newton_schulz, sizes.moved)
    builder.free(layer, slot, sizes.held)


@lru_cache(maxsize=64)
def optimizer_sizes(plan: Plan) -> OptimizerSizes:
    """Sizes of the optimizer's step of the rank: of its temporary memory (`form_of`), or Muon's if more.

    One runs after the other; parameters that rest on the host or are updated in backward are left out. Of Adam (torch
    2.13 `optim/adam.py`) foreach holds the square roots of all second moments of a parameter group at once; for_loop a
    square root and a quotient of one tensor, and the quotient of the tensor before; fused, te and kernels of 8-bit
    states hold nothing.
    """
    per_kind = {kind: [p for p in plan.kinds[kind]
                       if p.trainable and p.rests_here and not p.spec.tied and not is_updated_in_backward(p)]
                for kind, _ in plan.kind_counts}
    clipped = (sum(count * sum(_clipped(p) for p in per_kind[kind]) for kind, count in plan.kind_counts)
               * plan.framework.libraries.grad_passes)
    if plan.framework.optimizer.name in STEPS:
        tensors = [t for at in plan.layers for p in per_kind[plan.graph.layers[at].kind] for t in _as_updated(p)]
        return sizes_of(STEPS[plan.framework.optimizer.name], tensors, clipped)
    if plan.framework.optimizer.implementation == dion.DION:
        return _in_batches(plan, per_kind, clipped)
    sizes = {kind: [_root_bytes(p) for p in mine if not _is_muons(plan, p)] for kind, mine in per_kind.items()}
    form = form_of(plan)
    held = form.at_once * _largest_group(plan, per_kind) if form.at_once else _in_a_row(
        [size for at in plan.layers for size in sizes[plan.graph.layers[at].kind]], form)
    matrices = [(p, count) for kind, count in plan.kind_counts for p in per_kind[kind] if _is_muons(plan, p)]
    held = max([held, *(newton_schulz_bytes(p) for p, _ in matrices)])
    moved = sum(count * sum(_moved(p, form) for p in per_kind[kind]) for kind, count in plan.kind_counts)
    flops = 12 * sum(count * sum(p.local for p in per_kind[kind]) for kind, count in plan.kind_counts)
    return OptimizerSizes(held, flops, moved, sum(count * _newton_schulz_flops(p) for p, count in matrices),
                          clipped)


def _in_batches(plan: Plan, per_kind: Mapping[int, Sequence[Placed]], clipped: int) -> OptimizerSizes:
    """Sizes of the step of [Note: dion's Muon]: of matrices in batches, and AdamW's groups of all else."""
    placed = [p for at in plan.layers for p in per_kind[plan.graph.layers[at].kind]]
    groups, ranks = {"vectors": 0, "embedding": 0, "lm_head": 0}, plan.mesh.axis("dp_shard_cp").size
    for p in placed:
        if not _is_muons(plan, p):
            groups[p.spec.component if p.spec.component in groups else "vectors"] += _root_bytes(p)
    matrices = [dion.Matrix((p.spec.shape[0], p.spec.shape[1]), dtype_bytes(moment_dtype(p)),
                            dtype_bytes(p.policy.grad.dtype)) for p in placed if _is_muons(plan, p)]
    return OptimizerSizes(
        dion.held(matrices, tuple(filter(None, groups.values())), ranks, nesterov=plan.framework.optimizer.ahead),
        12 * sum(p.local for p in placed), sum(_moved(p, StepForm()) for p in placed),
        dion.product_flops(matrices, ranks), clipped, tuple(dion.messages(matrices, ranks)))


def sizes_of(step: OwnStep, tensors: Sequence[Updated], clipped: int = 0) -> OptimizerSizes:
    """Returns the sizes of an optimizer's own step over `tensors`; `clipped` as in `OptimizerSizes`."""
    elements = sum(math.prod(tensor.shape) for tensor in tensors)
    return OptimizerSizes(step.held(tensors), 12 * elements, sum(map(step.moved, tensors)), 0, clipped)


def _as_updated(placed: Placed) -> list[Updated]:
    """The copies of a tensor that a rank has as operators use it; of one with an fp32 master the step sees that."""
    policy = placed.policy
    stored, grad = (("fp32", "fp32") if any(name == "master_param" for name, _ in policy.optimizer_states) else
                    (policy.at_rest.dtype, policy.grad.dtype))
    return [Updated(placed.spec.name, placed.used_shape, dtype_bytes(stored), dtype_bytes(grad),
                    placed.spec.module == "norm", projection_of(policy.optimizer_states))] * placed.used_copies


def form_of(plan: Plan) -> StepForm:
    """Returns what the step of the job's optimizer holds; nothing for one whose kernel takes whole tensors."""
    optimizer = plan.framework.optimizer
    kind = OPTIMIZERS[optimizer.name]
    return (kind.decayed if optimizer.decays else kind.forms).get(optimizer.implementation, StepForm())


def _clipped(placed: Placed) -> int:
    """Bytes of one pass over a gradient, which its norm makes once and its product twice.

    torch 2.13 `nn/utils/clip_grad.py`: _get_total_norm by _foreach_norm, _clip_grads_with_norm_ by _foreach_mul_,
    which multiplies whatever the norm is.
    """
    return placed.local * dtype_bytes(placed.policy.grad.dtype)


def _root_bytes(placed: Placed) -> int:
    """The square root of its second moment."""
    return placed.local * dtype_bytes(moment_dtype(placed))


def _largest_group(plan: Plan, per_kind: Mapping[int, Sequence[Placed]]) -> int:
    """Square roots of the parameter group with most of them; of one type after the other, they stay until its end."""
    sums = {True: 0, False: 0}
    for kind, count in plan.kind_counts:
        for placed in per_kind[kind]:
            apart = plan.framework.optimizer.groups_apart and placed.policy.at_rest_category == "ignored_param"
            sums[apart] += count * _root_bytes(placed) * (not _is_muons(plan, placed))
    return max(sums.values())


def _moved(placed: Placed, form: StepForm) -> int:
    """Bytes that the update of a tensor reads and writes: once each, or in kernels that do one operation each.

    torch 2.13 `optim/adam.py`, _single_tensor_adam and _multi_tensor_adam, which does the same operations over lists:
    of both moments seven passes in lerp, mul, addcmul, sqrt, a quotient, add and addcdiv, of the gradient two, of the
    parameter four. Composer 0.16.4's DecoupledAdamW has as many (`optim/decoupled_weight_decay.py`): one more over a
    moment, and none for a weight decay of 0.
    """
    states, grads = placed.state_bytes, placed.local * dtype_bytes(placed.policy.grad.dtype)
    return 3 * states // 2 + 3 * grads if form.passes is None else form.passes[0] * states + form.passes[1] * grads


def step_temporaries(plan: Plan, tables: Tables, builder: Builder, sizes: tuple[int, int],
                     copied: Callable[[], None] = lambda: None) -> None:
    """Writes DeepSpeed's optimizer step over a flat part, with its temporary memory, to `builder`.

    `sizes`: (bytes that norms take for a moment, elements of the part). A flat copy of the part's 16-bit gradients, its
    copy in fp32, which the update reads; the update's own copies (`form_of`), such as square roots. `copied` is called
    when the fp32 copy exists. 0.19.6 `stage_1_and_2.py` and `stage3.py`, step.
    """
    layer, (looked_at, part) = plan.layers[0], sizes
    norm, flat, wide, root = (tables.slot(name, "optim_temp") for name in ("grad_norm", "flat_grad", "fp32_grad",
                                                                          "sqrt_exp_avg_sq"))
    size = dtype_bytes(plan.framework.compute_dtype)
    form = form_of(plan)
    held = 4 * part * max(form.at_once, form.of_one)
    moved = (4 + 2 * _master_and_moments(plan) + size + 12 * plan.framework.optimizer.decays) * part
    if plan.framework.optimizer.name in STEPS:
        own = sizes_of(STEPS[plan.framework.optimizer.name], [Updated("flat part", (part,), 4, 4)])
        held, moved = own.held, own.moved + (4 + size) * part
    for slot, num_bytes in ((norm, looked_at), (flat, size * part), (wide, 4 * part)):
        builder.alloc(layer, slot, num_bytes)
        if slot == norm:
            builder.free(layer, slot, num_bytes)
    builder.free(layer, flat, size * part)
    copied()
    builder.alloc(layer, root, held)
    builder.compute(Kernel.OPTIMIZER, 12 * part, moved)
    builder.free(layer, root, held)
    builder.free(layer, wide, 4 * part)


def _master_and_moments(plan: Plan) -> int:
    """Bytes of an element of a flat part: of its master and its moments, without their scales.

    Of a part that Adam updates; where Muon updates all, as if it did.
    """
    forms = (p.policy.optimizer_states for kind, _ in plan.kind_counts for p in plan.kinds[kind]
             if p.trainable and not _is_muons(plan, p))
    found = next(forms, None)
    if found is None:
        return 12
    return sum(2 * dtype_bytes(layout.dtype) // (layout.blocks.a_byte if layout.blocks else 1)
               for _, layout in found) // 2


def muon_transient(plan: Plan) -> int:
    """Returns the bytes of temporary memory that Megatron's Muon needs for the rank's matrix that needs most.

    0 without Muon. [Note: Muon's step] in `megatron/hooks.py`.
    """
    states = OPTIMIZERS[plan.framework.optimizer.name].matrix_states
    return max((_muon_bytes(plan, kind, p) for kind, _ in plan.kind_counts for p in plan.kinds[kind]
                if any(name in states for name, _ in p.states)), default=0)


def _muon_bytes(plan: Plan, kind: int, placed: Placed) -> int:
    elements = placed.local // placed.used_copies
    mixer = next((b.block for b in plan.graph.kinds[kind].branches if isinstance(b.block, Attention)), None)
    if mixer is None or not placed.spec.name.endswith("linear_qkv.weight"):
        return 12 * elements
    parts = [elements * size // (mixer.q_size + 2 * mixer.kv_size) for size in
             (mixer.q_size, mixer.kv_size, mixer.kv_size)]
    return max(4 * elements + 4 * sum(parts[:i]) + 12 * part for i, part in enumerate(parts))


def _is_muons(plan: Plan, placed: Placed) -> bool:
    states = OPTIMIZERS[plan.framework.optimizer.name].matrix_states
    return any(name in states for name, _ in placed.policy.optimizer_states)


def newton_schulz_bytes(placed: Placed) -> int:
    """Returns the bytes of temporary memory that torch's Muon needs for one matrix, on this rank.

    torch 2.13 `optim/_muon.py`, as DTensor shards its products; measured on two ranks, five shapes, to the byte: the
    update in the gradient's dtype and two bf16 shards; for a sharded matrix with no more rows than columns two gathered
    matrices and a Gram matrix, for any other three Gram matrices. Of an ordinary tensor, that and two Gram matrices.
    """
    rows, columns = placed.spec.shape
    shards = placed.local * (dtype_bytes(placed.policy.grad.dtype) + 2 * 2)
    gram, whole = 2 * min(rows, columns) ** 2, 2 * rows * columns
    if placed.local == placed.spec.numel and not placed.policy.at_rest.placements:
        return shards + 2 * gram
    is_wide = rows <= columns and placed.local < placed.spec.numel
    return shards + (2 * whole + gram if is_wide else 3 * gram)


def _newton_schulz_flops(placed: Placed) -> int:
    """Five steps: two products of the shard with a Gram matrix, and that matrix with itself."""
    small = min(placed.spec.shape)
    return 5 * (2 * 2 * placed.local * small + 2 * small ** 3)


def _in_a_row(sizes: list[int], form: StepForm) -> int:
    return max((form.left * before + form.of_one * size for before, size in zip([0, *sizes], sizes, strict=False)),
               default=0)
