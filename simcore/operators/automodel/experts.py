"""Experts of NeMo Automodel as grouped products, with adapters, and how many rows they compute.

nemo-automodel 0.7.0 `components/moe/experts.py`, `components/_peft/lora_experts.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import comb

from simcore.errors import NotYet, Problem
from simcore.models.blocks import Moe
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.gpt_oss import in_chunks, is_chunked, with_bias
from simcore.operators.automodel.te_fp8 import te_grouped
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Operand, Saved, needs_grad, new
from simcore.recording.tape import Kernel, Param, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["computed_rows", "expert_mlp", "fp8_experts", "received_rows"]


def computed_rows(env: Env, block: Moe) -> int:
    """Number of rows (a token and one of its experts each) that this rank's experts compute in a microbatch."""
    return (env.run.tokens * (env.run.rows_per_token or block.top_k << 16)) >> 16


def received_rows(tokens: int, block: Moe, ep: int) -> int:
    """Expected number of tokens that a rank's experts get, if routing is uniform, rounded; its own included.

    Each of the `tokens` tokens of each of the `ep` ranks is sent once to every rank that holds one of its experts.
    """
    ways = comb(block.num_experts, block.top_k)
    missed = comb(block.num_experts - block.num_experts // ep, block.top_k)
    return (2 * tokens * ep * (ways - missed) + ways) // (2 * ways)


def fp8_experts(env: Env) -> bool:
    """True if the experts are TransformerEngine's GroupedLinear in 8 bits (`GroupedExpertsTE`)."""
    return env.fp8 and env.options.fp8_experts


def expert_mlp(env: Env, x: Tensor, probabilities: Tensor, path: str) -> Tensor:
    """Rows [rows, hidden] after fc1, activation times probability, and fc2 of their experts.

    `x` [rows, hidden] is sorted by expert; `probabilities`: [rows, 1]; `path`: name of the experts' module. Results of
    adapters live to the end, as upstream's variables do.
    """
    tape = env.tape
    fc1, fc2 = env.param(f"{path}.gate_and_up_projs"), env.param(f"{path}.down_projs")
    if fp8_experts(env):
        output = te_grouped(env, x, fc1, "expert_fc1")
        output = _activation(tape, output, probabilities, fc2.shape[1])
        return te_grouped(env, output, fc2, "expert_fc2")
    biases = [env.run.params.get(f"{path}.{name}_proj_bias") for name in ("gate_up", "down")]
    if _runs_in_chunks(env, x, fc1, path):
        return in_chunks(tape, x, probabilities, (fc1, fc2), biases, partial(_mlp, env, path, names=True))
    return _mlp(env, path, x, probabilities, (fc1, fc2), biases)


def _runs_in_chunks(env: Env, x: Tensor, fc1: Param, path: str) -> bool:
    """[Note: biases of experts] in `gpt_oss`; experts with adapters never do (`GroupedExpertsDeepEPLoRA`)."""
    params = env.run.params
    exchanged = env.run.ep > 1 and env.options.dispatcher != "torch"
    biased = f"{path}.gate_up_proj_bias" in params and f"{path}.lora_gate_and_up_A" not in params
    if not (exchanged and biased and is_chunked(x.shape[0], fc1.shape[2], dtype_bytes(x.dtype))):
        return False
    if env.run.checkpoint != "none":
        raise NotYet(Problem("training.micro_batch_size", "not yet: experts that Automodel replays in chunks (above "
                             "512 MiB of gate and up a microbatch) inside a layer that is checkpointed"))
    return True


def _mlp(env: Env, path: str, x: Tensor, probabilities: Tensor, weights: Sequence[Operand],
         biases: Sequence[Operand | None], *, names: bool = False) -> Tensor:
    """`expert_mlp` of some rows; `names`: the first product's output has a name of its own (`run_chunk`)."""
    tape = env.tape
    fc1, fc2 = weights
    adapted = f"{path}.lora_gate_and_up_A" in env.run.params
    output = _grouped(tape, x, fc1, "expert_fc1")
    if adapted:
        low, adapter = _expert_adapter(env, x, f"{path}.lora_gate_and_up")
        output = aten.add(tape, output, aten.mul_scalar(tape, adapter), "expert_fc1")
    if biases[0] is not None:
        output = with_bias(tape, output, biases[0])
    gate_up = output if names else None
    output = _activation(tape, output, probabilities, fc2.shape[1])
    result = _grouped(tape, output, fc2, "expert_fc2")
    if adapted:
        low2, adapter2 = _expert_adapter(env, output, f"{path}.lora_down")
        result = aten.add(tape, result, aten.mul_scalar(tape, adapter2), "expert_fc2")
        del low, adapter, low2, adapter2
    if biases[1] is not None:
        result = with_bias(tape, result, biases[1], probabilities)
    del gate_up
    return result


def _expert_adapter(env: Env, x: Tensor, path: str) -> tuple[Tensor, Tensor]:
    low = _grouped(env.tape, x, env.param(f"{path}_A"), "expert_lora_a")
    return low, _grouped(env.tape, low, env.param(f"{path}_B"), "expert_lora_b")


def _grouped(tape: Tape, x: Tensor, weight: Operand, name: str) -> Tensor:
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
