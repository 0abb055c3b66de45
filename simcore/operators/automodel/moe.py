"""The mixture of experts of NeMo Automodel: router, token dispatch, experts as grouped products, shared expert.

Sources: nemo-automodel 0.7.0, `components/moe/{layers,experts}.py`, `components/moe/megatron/{token_dispatcher,
fused_a2a}.py`, `components/_peft/lora_experts.py`; what DeepEP's handle and the permutation keep is a reading of their
sources (about a fifth uncertain, one per cent of a MoE layer).

[Note: three dispatchers]
`deepep`: a token travels once to every rank that holds one of its experts, is permuted there, and comes home the same
way. `torch`: every rank gathers *all* tokens of the group, works on the rows of its own experts, adds them into an fp32
tensor of all tokens, and all ranks sum those tensors. Both directions of backward are all-reduces too, because a
reduce-scatter deadlocked upstream (`_AllGatherConcatVarlenFn`). `hybridep`: sends like DeepEP, in buffers of its own
outside torch, and copies rows in the order of the experts from there (DeepEP branch hybrid-ep at 94a9f8f).
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb

from simcore.errors import NotYet, Problem
from simcore.models.blocks import Moe
from simcore.operators.automodel.layers import Env, mlp
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Operand, Saved, needs_grad, new
from simcore.operators.shared.features import LATENT
from simcore.operators.shared.permutation_cost import MULTIHOT, PERMUTE, UNPERMUTE
from simcore.recording.rows import Module
from simcore.recording.tape import (
    INNER_BACKWARD_BEGIN,
    INNER_BACKWARD_END,
    INNER_FORWARD_BEGIN,
    INNER_FORWARD_END,
    Kernel,
    Param,
    Tape,
    Tensor,
)

__all__ = ["moe", "received_rows", "softmax_gate"]


def moe(env: Env, x: Tensor, block: Moe, path: str, *, wide: bool = False) -> Tensor:
    """`MoE.forward`: the shared expert runs between router and experts, its output waits for theirs.

    `wide`: the router's weights stay fp32 (`router_weights_fp32`, which DeepSeek-V3 sets).
    """
    shape = x.shape
    if block.latent:
        raise NotYet(Problem("model", f"not yet: {LATENT} in Automodel's layers; placement is served"))
    x = x.view(env.run.tokens, block.hidden)
    if env.option("gate", "learned") == "fake":
        weights, indices = _fake_gate(env, x, block)
    elif block.router == "softmax":
        weights, indices = softmax_gate(env, x, block, f"{path}.gate")
    else:
        weights, indices = _gate(env, x, block, f"{path}.gate", "fp32" if wide else x.dtype)
    shared = _shared_expert(env, x, block, path) if block.shared_ffn else None
    y = _experts(env, x, weights, indices, block, f"{path}.experts")
    if shared is not None:
        y = aten.add(env.tape, y, shared, "moe_sum")
    return y.view(*shape)


def _shared_expert(env: Env, x: Tensor, block: Moe, path: str) -> Tensor:
    """Its kernels are told apart: some releases run them beside the exchanges."""
    env.tape.module = Module.SHARED_EXPERTS
    out = mlp(env, x, f"{path}.shared_experts", gated=block.gated)
    env.tape.module = Module.NONE
    return out


# ---- router -----------------------------------------------------------------------------------------------------
def _fake_gate(env: Env, x: Tensor, block: Moe) -> tuple[Tensor, Tensor]:
    """`FakeBalancedGate.forward`: constants, no product with a weight and no gradient."""
    tape, shape = env.tape, (x.shape[0], block.top_k)
    weights = aten.cast(tape, new(tape, shape, "fp32", "router_weights"), x.dtype)
    return weights, new(tape, shape, "int64", "topk_indices")


def _gate(env: Env, x: Tensor, block: Moe, path: str, dtype: str) -> tuple[Tensor, Tensor]:
    """`Gate.forward` with `gate_precision` fp32, which models set: weight and input are cast, not the product.

    `dtype` of the weights that come out.
    """
    tape = env.tape
    x32, weight = aten.cast(tape, x, "fp32"), aten.cast(tape, env.param(f"{path}.weight"), "fp32")
    assert isinstance(x32, Tensor)
    scores = _project(env, x32, weight)
    scores = aten.sigmoid(tape, scores)
    original = scores
    scores = aten.add_scalar(tape, scores)  # the correction bias, a buffer
    indices = _choose(env, scores, block.top_k)
    weights = aten.gather(tape, original, indices, "router_weights")
    if block.top_k > 1:
        total = _row_sum(tape, weights)
        everything = _row_sum(tape, original)
        weights = _divide(tape, weights, total)
        original = _divide(tape, original, everything)
    weights = aten.mul_scalar(tape, weights)
    made, original = aten.cast(tape, weights, dtype), aten.cast(tape, original, dtype)
    assert isinstance(made, Tensor)
    return made, indices


def softmax_gate(env: Env, x: Tensor, block: Moe, path: str) -> tuple[Tensor, Tensor]:
    """`Gate.forward` of x [tokens, h] with `softmax_before_topk` and no `gate_precision`, as Qwen3-MoE sets them.

    The product in the compute dtype, scores in fp32, weights in the input's. What a balancing loss works on is kept
    beside what the choice needs.
    """
    tape = env.tape
    logits = _project(env, x, env.param(f"{path}.weight"))
    weights, indices, scores = _scored(env, logits, block)
    weights = _balanced(tape, weights, scores)
    made = aten.cast(tape, weights, x.dtype)
    assert isinstance(made, Tensor)
    return made, indices


def _scored(env: Env, logits: Tensor, block: Moe) -> tuple[Tensor, Tensor, Tensor]:
    """`Gate._route_scores`: (weights, indices, scores that add up to one)."""
    tape = env.tape
    scores = aten.softmax(tape, aten.cast(tape, logits, "fp32"))
    original = scores
    indices = _choose(env, scores, block.top_k)
    weights = aten.gather(tape, scores, indices, "router_weights")
    if block.normalised and block.top_k > 1:
        total, everything = _row_sum(tape, weights), _row_sum(tape, original)
        weights = _quotient(tape, weights, total)
        original = _quotient(tape, original, everything)
    return aten.mul_scalar(tape, weights), indices, original


def _balanced(tape: Tape, weights: Tensor, scores: Tensor) -> Tensor:
    """`MoEAuxLossAutoScaler`: the weights as they are; scores [tokens, experts] get the balancing loss's gradient.

    The choice is counted in int64 (`_compute_expert_load`), scores without padding are summed over tokens
    (`_compute_aux_loss`). Numbers, and one number an expert, are left out.
    """
    shape, moved = scores.shape, scores.nbytes
    held = [new(tape, shape, "int64", "expert_mask"), new(tape, shape[:1], "int64", "contribution")]
    held.clear()
    node = tape.node((weights, scores), (), lambda tape, grads, saved: [
        grads[0], new(tape, shape, "fp32", "grad_balance")])
    new(tape, shape, "fp32", "masked_scores", moved)
    return Tensor(weights.storage, weights.shape, weights.dtype, node)


def _quotient(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    """`a / b` of a [tokens, n] and b [tokens, 1]; b's gradient takes four steps."""
    shape, b_shape, dtype, moved = a.shape, b.shape, a.dtype, a.nbytes + b.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_b = [new(tape, shape, dtype, "grad_div", moved) for _ in range(4)][-1]
        return [new(tape, shape, dtype, "grad_div", moved), to_b]

    node = tape.node((a, b), (a, b), backward, reduce_to=(shape, b_shape))
    out = new(tape, shape, dtype, "div", moved)
    out.node = node
    return out


def _project(env: Env, x: Tensor, weight: Operand) -> Tensor:
    """The router's product; a checkpoint saves its result (`moe/parallelizer.py`, `_is_router_projection`)."""
    tape, w_shape, x_shape = env.tape, weight.shape, x.shape
    x_needs, w_needs, moved = needs_grad(x), needs_grad(weight), x.nbytes + weight.nbytes
    flops, dtype = 2 * x.numel * w_shape[0], x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_weight = new(tape, w_shape, dtype, "grad_router", moved, Kernel.GEMM, flops) if w_needs else None
        to_x = new(tape, x_shape, dtype, "grad_router_input", moved, Kernel.GEMM, flops) if x_needs else None
        return [to_x, to_weight]

    node = tape.node((x, weight), [x] * w_needs + [weight] * x_needs, backward)
    (logits,) = env.kept("router", lambda: (
        new(tape, (x_shape[0], w_shape[0]), dtype, "router_logits", moved, Kernel.GEMM, flops),))
    return Tensor(logits.storage, logits.shape, logits.dtype, node)


def _choose(env: Env, scores: Tensor, top_k: int) -> Tensor:
    """Indices of the k largest; nothing flows back through them, a checkpoint saves values and indices."""
    tape, shape = env.tape, (scores.shape[0], top_k)

    def make() -> tuple[Tensor, ...]:
        values = new(tape, shape, "fp32", "topk", scores.nbytes, flops=scores.numel)
        return values, tape.empty(shape, "int64", "topk_indices")

    return env.kept("topk", make)[1]


def _row_sum(tape: Tape, x: Tensor) -> Tensor:
    return aten.add_scalar(tape, aten.sum_last(tape, x, keepdim=True))


def _divide(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    shape, b_shape, dtype, moved = a.shape, b.shape, a.dtype, a.nbytes + b.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_b = new(tape, shape, dtype, "grad_div", 3 * moved)
        to_a = new(tape, shape, dtype, "grad_div", moved)
        return [to_a, new(tape, b_shape, dtype, "grad_div", to_b.nbytes)]

    node = tape.node((a, b), (a, b), backward)
    out = new(tape, shape, dtype, "div", moved)
    out.node = node
    return out


# ---- experts ----------------------------------------------------------------------------------------------------
def _experts(env: Env, x: Tensor, weights: Tensor, indices: Tensor, block: Moe, path: str) -> Tensor:
    tape, own_unit = env.tape, "unit" in env.option("experts", "") or env.option("experts_unit", "0") == "1"
    if own_unit:
        tape.mark(INNER_FORWARD_BEGIN)
        x, weights = _border(tape, (x, weights), INNER_BACKWARD_END)
    dispatcher = env.option("dispatcher", "deepep") if env.run.ep > 1 else "torch"
    run = {"deepep": _deepep, "hybridep": _hybridep, "torch": _gathered}[dispatcher]
    y = run(env, x, weights, indices, block, path)
    if own_unit:
        tape.mark(INNER_FORWARD_END)
        (y,) = _border(tape, (y,), INNER_BACKWARD_BEGIN)
    return y


def _border(tape: Tape, inputs: tuple[Tensor, ...], label: int) -> tuple[Tensor, ...]:
    """Where a data-parallel unit's hooks sit in backward: one node that all its inputs (or outputs) go through."""

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        tape.mark(label)
        return [*grads, *[None] * (len(inputs) - len(grads))]

    node = tape.node(inputs, (), backward)
    return tuple(Tensor(t.storage, t.shape, t.dtype, node if t.node else None, i) for i, t in enumerate(inputs))


def _rows(env: Env, block: Moe) -> int:
    """Rows that the experts of this rank work on."""
    return (env.run.tokens * (env.run.rows_per_token or block.top_k << 16)) >> 16


def received_rows(tokens: int, block: Moe, ep: int) -> int:
    """Tokens that arrive at a rank when each is sent once to every rank that holds one of its experts (uniform)."""
    ways = comb(block.num_experts, block.top_k)
    missed = comb(block.num_experts - block.num_experts // ep, block.top_k)
    return (2 * tokens * ep * (ways - missed) + ways) // (2 * ways)


def _expert_mlp(env: Env, x: Tensor, probabilities: Tensor, path: str) -> Tensor:
    """fc1, activation times probability, fc2; names as upstream's, because adapters' results live to the end."""
    tape = env.tape
    fc1, fc2 = env.param(f"{path}.gate_and_up_projs"), env.param(f"{path}.down_projs")
    adapted = f"{path}.lora_gate_and_up_A" in env.run.params
    output = _grouped(tape, x, fc1, "expert_fc1")
    if adapted:
        low, adapter = _expert_adapter(env, x, f"{path}.lora_gate_and_up")
        output = aten.add(tape, output, aten.mul_scalar(tape, adapter), "expert_fc1")
    output = _activation(tape, output, probabilities, fc2.shape[1])
    result = _grouped(tape, output, fc2, "expert_fc2")
    if adapted:
        low2, adapter2 = _expert_adapter(env, output, f"{path}.lora_down")
        result = aten.add(tape, result, aten.mul_scalar(tape, adapter2), "expert_fc2")
        del low, adapter, low2, adapter2
    return result


def _expert_adapter(env: Env, x: Tensor, path: str) -> tuple[Tensor, Tensor]:
    low = _grouped(env.tape, x, env.param(f"{path}_A"), "expert_lora_a")
    return low, _grouped(env.tape, low, env.param(f"{path}_B"), "expert_lora_b")


def _grouped(tape: Tape, x: Tensor, weight: Param, name: str) -> Tensor:
    """`torch._grouped_mm` of rows [r, k] and weight [e, k, n].

    Weights stored in another type are cast for each use (0.7.0 `moe/experts.py:468`, `.to(x.dtype)`), which only
    happens outside FSDP's mixed precision.
    """
    matrix = aten.cast(tape, weight, x.dtype)
    x_shape, w_shape, dtype, n = x.shape, weight.shape, x.dtype, weight.shape[2]
    x_needs, w_needs, moved, flops = needs_grad(x), needs_grad(matrix), x.nbytes + weight.nbytes, 2 * x.numel * n
    kernel, (wide, narrow, by_rows) = Kernel.GROUPED_GEMM, aten.shapes_of_group(x_shape[0], x_shape[1], n, w_shape[0])

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_weight = new(tape, w_shape, dtype, "grad_weight", moved, kernel, flops, by_rows) if w_needs else None
        to_x = new(tape, x_shape, dtype, f"grad_{name}", moved, kernel, flops, narrow) if x_needs else None
        return [to_x, to_weight]

    node = tape.node((x, matrix), [x] * w_needs + [matrix] * x_needs, backward)
    out = new(tape, (x_shape[0], n), dtype, name, moved, kernel, flops, wide)
    out.node = node
    return out


def _activation(tape: Tape, x: Tensor, probabilities: Tensor, width: int) -> Tensor:
    """relu^2 or SwiGLU times the probability: one compiled kernel that keeps its inputs."""
    x_shape, p_shape, dtype, moved = x.shape, probabilities.shape, x.dtype, x.nbytes
    x_needs, p_needs = needs_grad(x), needs_grad(probabilities)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_x = new(tape, x_shape, dtype, "grad_expert_act", 2 * moved) if x_needs else None
        to_p = new(tape, p_shape, "fp32", "grad_probabilities", 2 * moved) if p_needs else None
        return [to_x, to_p]

    node = tape.node((x, probabilities), (x, probabilities), backward)
    out = new(tape, (x_shape[0], width), dtype, "expert_act", moved)
    out.node = node
    return out


# ---- dispatcher deepep ------------------------------------------------------------------------------------------
def _deepep(env: Env, x: Tensor, weights: Tensor, indices: Tensor, block: Moe, path: str) -> Tensor:
    """`GroupedExpertsDeepEP.forward`."""
    tape, run, tokens = env.tape, env.run, x.shape[0]
    chosen = new(tape, indices.shape, "int64", "token_indices", indices.nbytes)
    probabilities = aten.cast(tape, weights, "fp32")
    assert isinstance(probabilities, Tensor)
    landed = received_rows(tokens, block, run.ep) * _rows(env, block) // (tokens * block.top_k)
    sizes = min(landed, tokens * run.ep), _rows(env, block), block.num_experts // run.ep
    received, arrived_probabilities, handle = _dispatch(env, x, probabilities, chosen, block, sizes)
    permuted, permuted_probabilities, maps = _permute(tape, received, arrived_probabilities, block, sizes)
    del received, arrived_probabilities
    output = _expert_mlp(env, permuted, permuted_probabilities, path)
    restored = _restore(tape, output, (sizes[0], block.hidden), maps)
    home = _move(env, restored, (tokens, block.hidden), "expert_output", (handle,))
    del output, restored, permuted, permuted_probabilities, chosen, probabilities
    return home


def _dispatch(env: Env, x: Tensor, probabilities: Tensor, chosen: Tensor, block: Moe,
              sizes: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """`FusedDispatch`: tokens, indices and probabilities go to every rank that wants them; the host hears how many."""
    env.tape.stop()
    tape, run, received = env.tape, env.run, sizes[0]
    x_shape, p_shape, dtype = x.shape, probabilities.shape, x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_x = tape.empty(x_shape, dtype, "grad_dispatch")
        to_p = tape.empty(p_shape, "fp32", "grad_probabilities")
        tape.collective("all_to_all", run.ep_axis, received * x_shape[1] * 2, dtype)
        return [to_x, to_p]

    def make() -> tuple[Tensor, ...]:
        # is_token_in_rank and send_head of every token, source positions of what arrived
        handle = tape.empty((5 * run.ep * x_shape[0] + 4 * received,), "uint8", "dispatch_handle")
        return (handle, tape.empty((received, block.top_k), "int64", "received_indices"),
                tape.empty((received, block.top_k), "fp32", "received_probabilities"))

    node = tape.node((x, probabilities), (chosen, probabilities), backward)
    handle, arrived, arrived_probabilities = _record(env, make)
    out = tape.empty((received, x_shape[1]), dtype, "received")
    tape.collective("all_to_all", run.ep_axis, out.nbytes, dtype)
    tape.save(node, handle)
    del arrived
    out.node = node if x.node else None
    flows = node if probabilities.node else None
    return out, Tensor(arrived_probabilities.storage, arrived_probabilities.shape, "fp32", flows, 1), handle


def _record(env: Env, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """0.7.0 keeps what a checkpointed block's dispatch received (`_replay_deepep_dispatch_on_recompute`)."""
    return env.kept("dispatch", make) if env.option("dispatch_replay", "no") == "yes" else make()


def _permute(tape: Tape, x: Tensor, probabilities: Tensor, block: Moe,
             sizes: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Multi-hot maps of what arrived, then the rows in the order of the experts."""
    received, rows, local = sizes
    x_shape, p_shape, dtype = x.shape, probabilities.shape, x.dtype

    def back_to_tokens(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [new(tape, p_shape, "fp32", "grad_probabilities", 0, Kernel.PERMUTE, -1, MULTIHOT.backward)]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_x = new(tape, x_shape, dtype, "grad_permute", rows * x_shape[1] * 2, Kernel.PERMUTE, 0,
                   PERMUTE.backward - 1)  # one kernel with the next
        to_p = new(tape, (received, local), "fp32", "grad_probabilities", kernel=Kernel.PERMUTE)
        return [to_x, to_p]

    hot = tape.node((probabilities,), (), back_to_tokens)
    routing_map = tape.empty((received, local), "uint8", "routing_map")
    positions = tape.empty((received * block.top_k + 32 * rows,), "uint8", "multihot_positions")
    spread = new(tape, (received, local), "fp32", "multihot_probabilities", 0, Kernel.PERMUTE, -1, MULTIHOT.forward)
    tape.save(hot, positions)
    spread.node = hot
    node = tape.node((x, spread), (), backward)
    row_map = tape.empty((received, 2 * local + 1), "int32", "row_id_map")
    out = new(tape, (rows, x_shape[1]), dtype, "dispatched", rows * x_shape[1] * 2, Kernel.PERMUTE, 0, PERMUTE.forward)
    ordered = tape.empty((rows, 1), "fp32", "permuted_probabilities")
    tape.save(node, routing_map, row_map)
    out.node = node if x.node else None
    return out, Tensor(ordered.storage, ordered.shape, "fp32", node if hot else None, 1), row_map


def _restore(tape: Tape, x: Tensor, shape: tuple[int, int], row_map: Tensor) -> Tensor:
    x_shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (row_map,), lambda tape, grads, saved: [
        new(tape, x_shape, dtype, "grad_unpermute", num_bytes, Kernel.PERMUTE, 0, UNPERMUTE.backward)])
    out = new(tape, shape, dtype, "unpermuted", num_bytes, Kernel.PERMUTE, 0, UNPERMUTE.forward)
    out.node = node
    return out


def _move(env: Env, x: Tensor, shape: tuple[int, ...], name: str, keep: tuple[Tensor, ...]) -> Tensor:
    """`FusedCombine`; its backward dispatches the gradient again."""
    tape, axis, x_shape, dtype = env.tape, env.run.ep_axis, x.shape, x.dtype
    num_bytes = x.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_x = tape.empty(x_shape, dtype, "grad_combine")
        tape.collective("all_to_all", axis, num_bytes, dtype)
        return [to_x]

    node = tape.node((x,), keep, backward)
    out = tape.empty(shape, dtype, name)
    tape.collective("all_to_all", axis, num_bytes, dtype)
    out.node = node
    return out


# ---- dispatcher hybridep ----------------------------------------------------------------------------------------
def _hybridep(env: Env, x: Tensor, weights: Tensor, indices: Tensor, block: Moe, path: str) -> Tensor:
    """`GroupedExpertsDeepEP.forward` with `_HybridEPManager`: rows arrive in the order of the experts."""
    tape, tokens = env.tape, x.shape[0]
    chosen = new(tape, indices.shape, "int64", "token_indices", indices.nbytes)
    routing_map, spread = _multihot(tape, weights, block.num_experts)
    probabilities = aten.cast(tape, spread, "fp32")
    landed = received_rows(tokens, block, env.run.ep) * _rows(env, block) // (tokens * block.top_k)
    sent = min(landed, tokens * env.run.ep) * x.shape[1] * 2
    rows, arrived, handle = _hybrid_dispatch(env, x, probabilities, block, sent)
    output = _expert_mlp(env, rows, arrived, path)
    home = _hybrid_combine(env, output, tokens, sent, handle)
    del chosen, routing_map, spread, probabilities, rows, arrived, output
    return home


def _multihot(tape: Tape, weights: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """`IndicesToMultihot` over all experts: a mask, probabilities, and positions that the node keeps."""
    shape, w_shape, dtype = (weights.shape[0], experts), weights.shape, weights.dtype
    node = tape.node((weights,), (), lambda tape, grads, saved: [
        new(tape, w_shape, dtype, "grad_probabilities", kernel=Kernel.PERMUTE)])
    routing_map = tape.empty(shape, "uint8", "routing_map")
    spread = new(tape, shape, dtype, "multihot_probabilities", kernel=Kernel.PERMUTE)
    positions = tape.empty(shape, "int32", "multihot_positions")
    tape.save(node, positions)
    spread.node = node
    return routing_map, spread


def _hybrid_dispatch(env: Env, x: Tensor, probabilities: Tensor, block: Moe,
                     sent: int) -> tuple[Tensor, Tensor, Tensor]:
    """`HybridEPDispatch`; its backward combines, and makes a probability of every token and expert.

    The handle (`csrc/hybrid_ep/executor/executor.cu`): where each token goes on each rank (int32), and for every token
    of the group a mask (1 byte) and a row (int32) for each expert here.
    """
    tape, run = env.tape, env.run
    tokens, hidden = x.shape
    dtype, spread, rows = x.dtype, (tokens, block.num_experts), _rows(env, block)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_x = tape.empty((tokens, hidden), dtype, "grad_dispatch")
        to_p = tape.empty(spread, "fp32", "grad_probabilities")
        tape.collective("all_to_all", run.ep_axis, sent, dtype)
        tape.compute(Kernel.PERMUTE, 0, rows * hidden * 2)
        return [to_x, to_p]

    node = tape.node((x, probabilities), (), backward)
    (handle,) = _record(env, lambda: (
        tape.empty((tokens * run.ep, 4 + 5 * (block.num_experts // run.ep)), "uint8", "dispatch_handle"),))
    out = new(tape, (rows, hidden), dtype, "dispatched", rows * hidden * 2, Kernel.PERMUTE, 0)
    arrived = tape.empty((rows, 1), "fp32", "permuted_probabilities")
    tape.collective("all_to_all", run.ep_axis, sent, dtype)
    tape.save(node, handle)
    out.node = node if x.node else None
    return out, Tensor(arrived.storage, arrived.shape, "fp32", node if probabilities.node else None, 1), handle


def _hybrid_combine(env: Env, x: Tensor, tokens: int, sent: int, handle: Tensor) -> Tensor:
    """`HybridEPCombine`; its backward dispatches the gradient, without probabilities."""
    tape, axis, shape, dtype = env.tape, env.run.ep_axis, x.shape, x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        tape.collective("all_to_all", axis, sent, dtype)
        return [new(tape, shape, dtype, "grad_combine", shape[0] * shape[1] * 2, Kernel.PERMUTE, 0)]

    node = tape.node((x,), (handle,), backward)
    out = tape.empty((tokens, shape[1]), dtype, "expert_output")
    tape.compute(Kernel.PERMUTE, 0, x.nbytes)
    tape.collective("all_to_all", axis, sent, dtype)
    out.node = node
    return out


# ---- dispatcher torch -------------------------------------------------------------------------------------------
def _gathered(env: Env, x: Tensor, weights: Tensor, indices: Tensor, block: Moe, path: str) -> Tensor:
    """`GroupedExperts.forward`: every rank of the group sees all tokens of the group."""
    tape, run, tokens, dtype = env.tape, env.run, x.shape[0], x.dtype
    probabilities = aten.cast(tape, weights, "fp32")
    assert isinstance(probabilities, Tensor)
    if run.ep > 1:
        x, probabilities = _all_gather(env, x, "x"), _all_gather(env, probabilities, "weights")
        indices = _all_gather(env, indices.detach(), "indices")
    y = _own_rows(env, x, probabilities, indices, _rows(env, block), path)
    if run.ep > 1:
        _keep_attached(tape, y, x)
        y = _all_reduce(env, y)
        y = _own_tokens(tape, y, tokens)
    out = aten.cast(tape, y, dtype)
    assert isinstance(out, Tensor)
    return out


def _all_gather(env: Env, x: Tensor, name: str) -> Tensor:
    """A list of every rank's tensor, concatenated; its backward sums over the group and takes the own part."""
    tape, axis, shape, dtype = env.tape, env.run.ep_axis, x.shape, x.dtype
    full = (shape[0] * env.run.ep, *shape[1:])

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        tape.collective("all_reduce", axis, grad.nbytes, dtype)
        return [new(tape, shape, dtype, f"grad_gathered_{name}", kernel=Kernel.COPY)]

    node = tape.node((x,), (), backward)
    parts = tape.empty(full, dtype, f"gathered_{name}_parts")
    tape.collective("all_gather", axis, parts.nbytes, dtype)
    out = new(tape, full, dtype, f"gathered_{name}", parts.nbytes, Kernel.COPY)
    out.node = node
    return out


def _own_rows(env: Env, x: Tensor, probabilities: Tensor, indices: Tensor, rows: int, path: str) -> Tensor:
    """`_forward_grouped_mm`: the rows of this rank's experts, sorted, computed, added into fp32 zeros."""
    tape = env.tape
    order, sorted_probabilities, slots = _sort_rows(tape, probabilities, indices, rows)
    y = new(tape, x.shape, "fp32", "expert_sum")
    permuted = aten.index(tape, x, order, "dispatched")
    output = _expert_mlp(env, permuted, sorted_probabilities, path)
    _scatter_add(tape, y, output, order)
    del permuted, output, slots
    return y


def _sort_rows(tape: Tape, probabilities: Tensor, indices: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """`_permute_tokens_for_grouped_mm`; everything that gets no gradient dies when it returns, but two index lists."""
    shape, flat = indices.shape, indices.numel
    valid = new(tape, shape, "int64", "token_indices", indices.nbytes)
    token_ids = new(tape, (flat,), "int64", "token_ids")
    mask = new(tape, (flat,), "uint8", "local_mask", valid.nbytes)
    local_experts = new(tape, (rows,), "int64", "local_experts", kernel=Kernel.PERMUTE)
    local_tokens = new(tape, (rows,), "int64", "local_tokens", kernel=Kernel.PERMUTE)
    local = _select(tape, probabilities, mask, rows)
    order = aten.sort(tape, local_experts)
    sorted_experts = new(tape, (rows,), "int64", "sorted_experts", kernel=Kernel.PERMUTE)
    sorted_tokens = new(tape, (rows,), "int64", "sorted_token_ids", kernel=Kernel.PERMUTE)
    sorted_probabilities = _select(tape, local, order, rows)
    slots = new(tape, (rows,), "int64", "sorted_slots", kernel=Kernel.PERMUTE)
    del valid, token_ids, local_tokens, sorted_experts
    return sorted_tokens, sorted_probabilities.view(rows, 1), slots


def _select(tape: Tape, x: Tensor, positions: Tensor, rows: int) -> Tensor:
    """`x[positions]` of a flat tensor; the positions are saved."""
    shape = x.shape
    node = tape.node((x,), (positions,), lambda tape, grads, saved: [
        new(tape, shape, "fp32", "grad_probabilities", kernel=Kernel.PERMUTE)])
    out = new(tape, (rows,), "fp32", "probabilities", kernel=Kernel.PERMUTE)
    out.node = node
    return out


def _scatter_add(tape: Tape, y: Tensor, x: Tensor, rows: Tensor) -> None:
    """`y.scatter_add_(0, rows, x.float())` into a constant."""
    shape = x.shape
    source = aten.cast(tape, x, "fp32")
    assert isinstance(source, Tensor)
    node = tape.node((source,), (rows,), lambda tape, grads, saved: [
        new(tape, shape, "fp32", "grad_scatter", kernel=Kernel.PERMUTE)])
    tape.compute(Kernel.PERMUTE, 0, 3 * source.nbytes)
    y.node = node


def _keep_attached(tape: Tape, y: Tensor, x: Tensor) -> None:
    """`y.add_(x.sum() * 0)`: its gradient is as large as the gathered tokens, in their type."""
    shape, dtype = x.shape, x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [grads[0], new(tape, shape, dtype, "grad_sum", 0)]

    node = tape.node((y, x), (), backward)
    tape.compute(Kernel.ELEMENTWISE, x.numel, x.nbytes + 2 * y.nbytes)
    y.node = node


def _all_reduce(env: Env, y: Tensor) -> Tensor:
    """`torch.distributed.nn.functional.all_reduce`: a copy is reduced, backward does the same."""
    tape, axis, shape = env.tape, env.run.ep_axis, y.shape

    def reduce(tape: Tape, name: str) -> Tensor:
        out = new(tape, shape, "fp32", name, 4 * shape[0] * shape[1], Kernel.COPY)
        tape.collective("all_reduce", axis, out.nbytes, "fp32")
        return out

    node = tape.node((y,), (), lambda tape, grads, saved: [reduce(tape, "grad_expert_sum")])
    out = reduce(tape, "expert_sum")
    out.node = node
    return out


def _own_tokens(tape: Tape, y: Tensor, tokens: int) -> Tensor:
    """`y.narrow(0, start, tokens).contiguous()`; its gradient is written into zeros of the whole."""
    shape = y.shape
    node = tape.node((y,), (), lambda tape, grads, saved: [new(tape, shape, "fp32", "grad_narrow")])
    out = new(tape, (tokens, shape[1]), "fp32", "expert_output", kernel=Kernel.COPY)
    out.node = node
    return out


