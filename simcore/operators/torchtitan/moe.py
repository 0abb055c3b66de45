"""Experts of torchtitan 0.2.2 (`models/moe/moe.py`, `models/moe/utils.py`): grouped products in bf16.

Rows are sorted by expert and copied once more, every expert's filled up to a multiple of 8; results are put back in the
order of tokens, weighted in fp32 and added up (`score_before_experts=False`, as Qwen3 and DeepSeek V3 have it), or
added up alone where what experts are given was weighted in fp32 (Llama 4). With all experts here, how tokens are routed
changes no size but what filling up leaves empty.

[Note: torchtitan's expert parallelism] `distributed/expert_parallel.py` ExpertParallel: rows go to their experts' ranks
and back by NCCL's all-to-all inside the hooks of the experts, which FSDP2's own hooks surround. The numbers of rows go
first, and the host waits for their sums. The module keeps the rows' places (`permuted_indices`) until it runs again.
"""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.operators.shared import aten
from simcore.operators.shared.dtensor import gather_sequence, same_everywhere, scatter_sequence
from simcore.operators.shared.layer_borders import as_inner_unit
from simcore.operators.torchtitan import compiled_parts
from simcore.operators.torchtitan.gpt_oss import biased_experts
from simcore.operators.torchtitan.options import TorchtitanOptions
from simcore.operators.torchtitan.router import reorder, route
from simcore.operators.torchtitan.rows import pad_rows, padded_rows, put_rows, unpad_rows
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Op, Section, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["Places", "moe"]

Grads = list[Tensor | None]


class Places:
    """Places of rows, int32, that the experts of one layer hold of the last time that they ran (`permuted_indices`).

    [Note: torchtitan's expert parallelism]
    """

    def __init__(self, tape: Tape, run: LayerWorkload, block: Moe) -> None:
        self.shape = (padded_rows(_received(run, block), block.num_experts // run.ep),)
        self.slot = tape.slot("permuted_indices", "activation")
        self.held = tape.external(self.shape, "int32", self.slot, 0)

    def rest(self) -> Section:
        """Section of what the last step left, which belongs before the first row of a step."""
        return Section(((Op.ALLOC, 0, self.slot, self.held.nbytes, 0, 0),))

    def make(self, tape: Tape) -> Tensor:
        """New places, which take the place of the last ones when all is permuted."""
        return tape.empty(self.shape, "int32", "permuted_indices", "activation")

    def leave(self) -> None:
        """Ends the recording: what is held stays for the next time."""
        self.held.disown()


def moe(tape: Tape, run: LayerWorkload, block: Moe, x: Tensor, places: Places | None) -> Tensor:
    """Output of the experts for `x` [b, s / tp, hidden], in x's shape.

    `places`: what the experts hold, None if all are on this rank.
    """
    whole = _whole_sequence(tape, run, x)
    return scatter_sequence(tape, run, _forward(tape, run, block, whole, places), "moe_out")


def _forward(tape: Tape, run: LayerWorkload, block: Moe, x: Tensor, places: Places | None) -> Tensor:
    """`MoE.forward`."""
    shape, rows = x.shape, run.tokens * block.top_k
    x = x.view(run.tokens, block.hidden)
    compiled = TorchtitanOptions.of(run.options).compiled_blocks
    weights, indices, _counted = (compiled_parts.route if compiled else route)(tape, run, block, x)
    by_row, order, _counted = (compiled_parts.reorder(tape, block, weights, indices) if compiled else
                               reorder(tape, block, weights, indices, parts=_parts(run)))
    routed = aten.index(tape, x, aten.select(tape, order, order.shape, "int64", "tokens"), "dispatched")
    if block.weighs_input:
        routed = _weighed(tape, routed, by_row)
    made = _dispatched(tape, run, block, routed, places) if places else _experts(tape, run, block, routed)
    out = _shared_expert(tape, run, x) if block.shared_ffn else None
    unsorted = put_rows(tape, aten.new(tape, (rows, block.hidden), made.dtype, "unsorted"), order, made)
    unsorted = unsorted.view(run.tokens, block.top_k, block.hidden)
    combined = _summed(tape, unsorted) if block.weighs_input else _combined(tape, run, weights, unsorted)
    return (combined if out is None else aten.add(tape, out, combined)).view(*shape)


def _parts(run: LayerWorkload) -> int:
    """Tensor parallel ranks among which tokens are dealt: all, where each has experts of its own.

    `distributed/expert_parallel.py` ReordererSequenceParallel.
    """
    return run.tp if run.ep > 1 and run.etp == 1 else 1


def _whole_sequence(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    """All-gathers `x` [b, s / tp, h] over tp. Its gradient is taken as equal on all ranks: each keeps its part.

    `models/llama4/infra/parallelize.py` apply_moe_ep_tp: PrepareModuleInputOutput of the module, use_local_input.
    """
    if run.tp == 1:
        return x
    shape, dtype = x.shape, x.dtype
    out = gather_sequence(tape, run, x.detach(), "moe_in")
    out.node = tape.node((x,), (), lambda tape, grads, saved: [
        aten.new(tape, shape, dtype, "grad_moe_in", kernel=Kernel.COPY)])
    return out


# ---- experts --------------------------------------------------------------------------------------------------------
def _experts(tape: Tape, run: LayerWorkload, block: Moe, x: Tensor) -> Tensor:
    """`indices_padding_wrapper` around `_run_experts_grouped_mm`."""
    rows, hidden = x.shape
    x = same_everywhere(tape, x, "experts_in") if run.tp > 1 else x
    permuted = aten.new(tape, (padded_rows(rows, block.num_experts),), "int32", "permuted")
    _sizes = tape.empty((block.num_experts,), "int32", "expert_rows")
    x = pad_rows(tape, x, permuted)
    return unpad_rows(tape, _grouped(tape, run, block, block.num_experts, x), permuted, (rows + 1, hidden))


# ---- experts of other ranks -----------------------------------------------------------------------------------------
def _dispatched(tape: Tape, run: LayerWorkload, block: Moe, x: Tensor, places: Places) -> Tensor:
    """The experts as a unit of FSDP2, with what their own hooks do inside its hooks.

    What the module is given (rows, and their number for each expert) lives until all hooks have run.
    """
    given: list[Tensor] = []

    def run_experts(x: Tensor) -> Tensor:
        local = block.num_experts // run.ep
        rows, received = x.shape[0], _received(run, block)
        x = same_everywhere(tape, x, "experts_in") if run.etp > 1 else x
        counts = _counts_of_ranks(tape, run, block)
        x = _exchanged(tape, run, x, received)
        permuted = places.make(tape)
        given.append(tape.empty((local,), "int32", "expert_rows"))
        x = pad_rows(tape, x, permuted)
        given.append(x)
        places.held = permuted
        del counts
        out = _grouped(tape, run, block, local, x)
        whole = unpad_rows(tape, out, permuted, (received + 1, block.hidden))
        return _exchanged(tape, run, whole, rows)

    return as_inner_unit(tape, x, run_experts)


def _received(run: LayerWorkload, block: Moe) -> int:
    """Rows that the experts of this rank get."""
    rows = run.tokens * run.rows_per_token >> 16 if run.rows_per_token else run.tokens * block.top_k
    return rows // _parts(run)


def _counts_of_ranks(tape: Tape, run: LayerWorkload, block: Moe) -> Tensor:
    """Rows of each expert, exchanged; their sums for each rank, which go to the host."""
    def send() -> tuple[Tensor]:
        tape.collective("all_to_all", run.ep_axis, 8 * block.num_experts, "int64")
        return (tape.empty((block.num_experts,), "int64", "tokens_per_expert_group"),)

    (counts,) = tape.outputs("all_to_all", send)
    for name in ("input_splits", "output_splits"):
        aten.select(tape, counts, (run.ep,), "int64", name)
    return counts


def _exchanged(tape: Tape, run: LayerWorkload, x: Tensor, rows: int) -> Tensor:
    """`all_to_all_single_autograd`: `x` [r, hidden] becomes the `rows` rows that this rank gets."""
    shape, dtype, axis = x.shape, x.dtype, run.ep_axis

    def send(rows: int, name: str) -> Tensor:
        tape.collective("all_to_all", axis, rows * shape[1] * dtype_bytes(dtype), dtype)
        return tape.empty((rows, shape[1]), dtype, name)

    node = tape.node((x,), (), lambda tape, grads, saved: [send(shape[0], "grad_all_to_all")])
    (out,) = tape.outputs("all_to_all", lambda: (send(rows, "all_to_all"),))
    out.node = node
    return out


# ---- parts of both --------------------------------------------------------------------------------------------------
def _grouped(tape: Tape, run: LayerWorkload, block: Moe, experts: int, x: Tensor) -> Tensor:
    if block.bias:
        return biased_experts(tape, run, experts, x)
    if TorchtitanOptions.of(run.options).compiled_blocks:
        return compiled_parts.experts(tape, run, experts, x)
    offsets = tape.empty((experts,), "int32", "offsets")
    w1, w2, w3 = (run.params[f"moe.experts.{name}"] for name in ("w1", "w2", "w3"))
    h = aten.silu(tape, aten.grouped_mm(tape, x, w1, offsets, "experts.w1"))
    h = aten.mul(tape, h, aten.grouped_mm(tape, x, w3, offsets, "experts.w3"))
    return aten.grouped_mm(tape, h, w2, offsets, "experts.w2")


def _shared_expert(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    """`FeedForward.forward` of all tokens."""
    if TorchtitanOptions.of(run.options).compiled_blocks:
        return compiled_parts.shared_expert(tape, run, x)
    w1, w2, w3 = (run.params[f"moe.shared_experts.{name}.weight"] for name in ("w1", "w2", "w3"))
    gate = aten.silu(tape, aten.linear(tape, _for_columns(tape, run, x), w1, "shared_experts.w1"))
    product = aten.mul(tape, gate, aten.linear(tape, _for_columns(tape, run, x), w3, "shared_experts.w3"))
    del gate
    return aten.linear(tape, product, w2, "shared_experts.w2")


def _for_columns(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    return same_everywhere(tape, x, "shared_experts_in") if run.tp > 1 else x


def _weighed(tape: Tape, x: Tensor, weights: Tensor) -> Tensor:
    """`(x.to(float32) * weights.reshape(-1, 1)).to(x.dtype)` of rows x [r, h] and fp32 weights [r]."""
    return aten.cast(tape, aten.mul(tape, aten.cast(tape, x, "fp32"), weights.view(x.shape[0], 1), "weighed"), x.dtype)


def _summed(tape: Tape, x: Tensor) -> Tensor:
    """`x.sum(dim=1)` of [t, k, h]; its gradient is expanded, and copied where k rows are made of one."""
    shape, num_bytes = x.shape, x.nbytes

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        (grad,) = grads
        if shape[1] == 1:
            return [grad and grad.view(*shape)]
        return [aten.new(tape, shape, x_dtype, "grad_sum", num_bytes, Kernel.COPY)]

    x_dtype, node = x.dtype, tape.node((x,), (), backward)
    out = aten.new(tape, (shape[0], shape[2]), x.dtype, "sum", num_bytes)
    out.node = node
    return out


def _combined(tape: Tape, run: LayerWorkload, weights: Tensor, x: Tensor) -> Tensor:
    """`bmm(weights, x.float())` of weights [t, 1, k] and x [t, k, h], in the compute dtype."""
    return aten.cast(tape, _weighted(tape, weights, aten.cast(tape, x, "fp32")), run.compute)


def _weighted(tape: Tape, weights: Tensor, x: Tensor) -> Tensor:
    """The gradient of x comes first."""
    x_shape, w_shape, moved, flops = x.shape, weights.shape, x.nbytes, 2 * x.numel

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        to_x = aten.new(tape, x_shape, "fp32", "grad_weighted", moved, Kernel.GEMM, flops)
        return [aten.new(tape, w_shape, "fp32", "grad_weights", moved, Kernel.GEMM, flops), to_x]

    node = tape.node((weights, x), (weights, x), backward)
    out = aten.new(tape, (x_shape[0], x_shape[2]), "fp32", "weighted", moved, Kernel.GEMM, flops)
    out.node = node
    return out
