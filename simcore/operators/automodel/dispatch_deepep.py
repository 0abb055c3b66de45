"""DeepEP and HybridEP: a token travels once to every rank that holds one of its experts, and comes home the same way.

nemo-automodel 0.7.0 `components/moe/megatron/{token_dispatcher,fused_a2a}.py`; what DeepEP's handle and the permutation
keep is a reading of their sources (about a fifth uncertain, one per cent of a MoE layer).
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.blocks import Moe
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.experts import computed_rows, expert_mlp, fp8_experts, received_rows
from simcore.operators.automodel.te_fp8 import padded, unpadded
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved, new
from simcore.recording.host_operators import MULTIHOT, PERMUTE, UNPERMUTE
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["deepep", "hybridep"]


def deepep(env: Env, x: Tensor, weights: Tensor, indices: Tensor, block: Moe, path: str) -> Tensor:
    """Output [tokens, hidden] of the routed experts for `x` [tokens, hidden], dispatched by DeepEP.

    `GroupedExpertsDeepEP.forward`, in 8 bits `GroupedExpertsTE.forward`. `weights`, `indices`: probabilities and
    numbers of the chosen experts, [tokens, top_k]; `path`: name of the experts' module.
    """
    tape, run, tokens = env.tape, env.run, x.shape[0]
    chosen = new(tape, indices.shape, "int64", "token_indices", indices.nbytes)
    probabilities = aten.cast(tape, weights, "fp32")
    assert isinstance(probabilities, Tensor)
    landed = received_rows(tokens, block, run.ep) * computed_rows(env, block) // (tokens * block.top_k)
    sizes = min(landed, tokens * run.ep), computed_rows(env, block), block.num_experts // run.ep
    received, arrived_probabilities, handle = _dispatch(env, x, probabilities, chosen, block, sizes)
    permuted, permuted_probabilities, maps = _permute(tape, received, arrived_probabilities, block, sizes)
    del received, arrived_probabilities
    if fp8_experts(env):
        permuted = padded(env, permuted, sizes[2])
        permuted_probabilities = padded(env, permuted_probabilities, sizes[2])
    output = expert_mlp(env, permuted, permuted_probabilities, path)
    if fp8_experts(env):
        output = unpadded(env, output, sizes[1])
    restored = _restore(tape, output, (sizes[0], block.expert_hidden), maps)
    home = _move(env, restored, (tokens, block.expert_hidden), "expert_output", (handle,))
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
    return env.kept("dispatch", make) if env.options.replays_dispatch else make()


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
def hybridep(env: Env, x: Tensor, weights: Tensor, indices: Tensor, block: Moe, path: str) -> Tensor:
    """Output [tokens, hidden] of the routed experts for `x` [tokens, hidden], dispatched by HybridEP.

    `GroupedExpertsDeepEP.forward` with `_HybridEPManager`: rows arrive in the order of the experts. `weights`,
    `indices`: probabilities and numbers of the chosen experts, [tokens, top_k]; `path`: name of the experts' module.
    """
    tape, tokens = env.tape, x.shape[0]
    chosen = new(tape, indices.shape, "int64", "token_indices", indices.nbytes)
    routing_map, spread = _multihot(tape, weights, block.num_experts)
    probabilities = aten.cast(tape, spread, "fp32")
    landed = received_rows(tokens, block, env.run.ep) * computed_rows(env, block) // (tokens * block.top_k)
    sent = min(landed, tokens * env.run.ep) * x.shape[1] * 2
    rows, arrived, handle = _hybrid_dispatch(env, x, probabilities, block, sent)
    if fp8_experts(env):
        num, local = rows.shape[0], block.num_experts // env.run.ep
        rows, arrived = padded(env, rows, local), padded(env, arrived, local)
    output = expert_mlp(env, rows, arrived, path)
    if fp8_experts(env):
        output = unpadded(env, output, num)
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
    dtype, spread, rows = x.dtype, (tokens, block.num_experts), computed_rows(env, block)

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
