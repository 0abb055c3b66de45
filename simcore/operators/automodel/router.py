"""Routers of NeMo Automodel: gates by sigmoid, by softmax, by a table; a fake one, the choice of experts.

nemo-automodel 0.7.0 `components/moe/layers.py`.
"""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.operators.automodel.env import Env
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Operand, Saved, needs_grad, new
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["chosen_softmax_gate", "corrected_gate", "fake_gate", "softmax_gate", "table_gate"]


def fake_gate(env: Env, x: Tensor, block: Moe) -> tuple[Tensor, Tensor]:
    """(weights in x's type, int64 indices) of the chosen experts, both [tokens, top_k], as constants.

    `FakeBalancedGate.forward`: no product with a weight and no gradient.
    """
    tape, shape = env.tape, (x.shape[0], block.top_k)
    weights = aten.cast(tape, new(tape, shape, "fp32", "router_weights"), x.dtype)
    return weights, new(tape, shape, "int64", "topk_indices")


def corrected_gate(env: Env, x: Tensor, block: Moe, path: str, dtype: str, product: str = "fp32") -> tuple[Tensor,
                                                                                                            Tensor]:
    """(weights, int64 indices) of the chosen experts of `x` [tokens, hidden], both [tokens, top_k].

    `Gate.forward` with `gate_precision` fp32, which most models set: weight and input are cast, not the product.
    `path`: name of the gate's module; `dtype`: that of the weights that come out; `product`: that of the product, which
    is cast to fp32 after it if no `gate_precision` is set. A buffer corrects the scores for the choice: by sigmoid, by
    softmax (`softmax_with_bias`), or by the root of softplus.
    """
    tape = env.tape
    seen, weight = aten.cast(tape, x, product), aten.cast(tape, env.param(f"{path}.weight"), product)
    assert isinstance(seen, Tensor)
    logits = _project(env, seen, weight)  # which the gate names until it returns
    weights, indices, original = _corrected(env, logits, block)
    if block.router == "sqrtsoftplus":  # whose buffer the model corrects by the loads of each step
        _count(tape, logits.shape)
    made = aten.cast(tape, weights, dtype)
    original = aten.cast(tape, original, dtype) if product == "fp32" else original
    assert isinstance(made, Tensor)
    return made, indices


def _corrected(env: Env, logits: Tensor, block: Moe) -> tuple[Tensor, Tensor, Tensor]:
    """`Gate._route_scores` with a correction: (weights, indices, scores that add up to one)."""
    tape = env.tape
    if block.router == "sqrtsoftplus":
        scores = aten.sqrt(tape, aten.softplus(tape, aten.cast(tape, logits, "fp32")))
    else:
        scores = aten.cast(tape, logits, "fp32")
        scores = (aten.softmax if block.router == "softmax" else aten.sigmoid)(tape, scores)
    original = scores
    scores = aten.add_scalar(tape, scores)  # the correction bias, a buffer
    indices = _choose(env, scores, block.top_k)
    weights = aten.gather(tape, original, indices, "router_weights")
    if block.normalised and block.top_k > 1:
        total = _row_sum(tape, weights)
        everything = _row_sum(tape, original)
        weights = _quotient(tape, weights, total)
        original = _quotient(tape, original, everything)
    return aten.mul_scalar(tape, weights), indices, original


def _count(tape: Tape, shape: tuple[int, ...]) -> None:
    """`_compute_expert_load`: the choice [tokens, experts] and a number a token in int64; what stays is left out."""
    _mask, _ones = new(tape, shape, "int64", "expert_mask"), new(tape, shape[:1], "int64", "contribution")
    tape.compute(Kernel.PERMUTE, 0, _mask.nbytes)


def table_gate(env: Env, x: Tensor, block: Moe, path: str) -> tuple[Tensor, Tensor]:
    """(weights in x's type, int64 indices) of the experts that a table says for each token, both [tokens, top_k].

    `models/deepseek_v4/model.py`, DeepseekV4HashGate: scores in fp32 weigh the chosen. `path`: name of the module.
    """
    tape = env.tape
    logits = _project(env, aten.cast(tape, x, "fp32"), aten.cast(tape, env.param(f"{path}.weight"), "fp32"))
    scores = aten.sqrt(tape, aten.softplus(tape, logits))
    del logits
    indices = new(tape, (x.shape[0], block.top_k), "int64", "topk_indices", kernel=Kernel.PERMUTE)
    weights = aten.gather(tape, scores, indices, "router_weights")
    total = _row_sum(tape, weights)
    weights = _quotient(tape, weights, total)
    weights = aten.mul_scalar(tape, weights)
    return aten.cast(tape, weights, x.dtype), indices


def softmax_gate(env: Env, x: Tensor, block: Moe, path: str) -> tuple[Tensor, Tensor]:
    """(weights, int64 indices) of the experts chosen for `x` [tokens, hidden], both [tokens, top_k].

    `Gate.forward` with `softmax_before_topk` and no `gate_precision`, as Qwen3-MoE sets them: the product in the
    compute dtype, scores in fp32, weights in x's type. Tensors that a balancing loss reads are saved in addition to
    those that the choice needs.
    """
    tape = env.tape
    logits = _project(env, x, env.param(f"{path}.weight"))
    weights, indices, scores = _scored(env, logits, block)
    weights = _balanced(tape, weights, scores)
    made = aten.cast(tape, weights, x.dtype)
    assert isinstance(made, Tensor)
    return made, indices


def chosen_softmax_gate(env: Env, x: Tensor, block: Moe, path: str) -> tuple[Tensor, Tensor]:
    """(weights, int64 indices) of the experts chosen for `x` [tokens, hidden], both [tokens, top_k].

    `Gate.forward` without `softmax_before_topk`, as GPT-OSS has it: softmax of the chosen logits, and one of all for
    the balancing loss. The product has a bias.
    """
    tape = env.tape
    logits = _project(env, x, env.param(f"{path}.weight"), env.run.params.get(f"{path}.bias"))
    weights, indices, scores = _chosen(env, logits, block)
    weights = _balanced(tape, weights, scores)
    made = aten.cast(tape, weights, x.dtype)
    assert isinstance(made, Tensor)
    return made, indices


def _chosen(env: Env, logits: Tensor, block: Moe) -> tuple[Tensor, Tensor, Tensor]:
    """(weights, indices, scores of all experts)."""
    tape, shape = env.tape, (logits.shape[0], block.top_k)
    whole, dtype = logits.shape, logits.dtype

    def scattered(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        zeros = new(tape, whole, dtype, "zeros")
        return [new(tape, whole, dtype, "grad_scatter", zeros.nbytes, Kernel.PERMUTE)]

    def make() -> tuple[Tensor, ...]:
        found = new(tape, shape, dtype, "topk", logits.nbytes, flops=logits.numel)
        return found, tape.empty(shape, "int64", "topk_indices")

    node = tape.node((logits,), (), scattered)
    values, indices = env.kept("topk", make)
    tape.save(node, indices)
    values = Tensor(values.storage, values.shape, values.dtype, node)
    weights = aten.softmax(tape, aten.cast(tape, values, "fp32"))
    scores = aten.softmax(tape, aten.cast(tape, logits, "fp32"))
    return aten.mul_scalar(tape, weights), indices, scores


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


def _project(env: Env, x: Tensor, weight: Operand, bias: Param | None = None) -> Tensor:
    """The router's product; a checkpoint saves its result (`moe/parallelizer.py`, `_is_router_projection`).

    With a bias the input's gradient is made first.
    """
    tape, w_shape, x_shape = env.tape, weight.shape, x.shape
    x_needs, w_needs, moved = needs_grad(x), needs_grad(weight), x.nbytes + weight.nbytes
    flops, dtype = 2 * x.numel * w_shape[0], x.dtype

    def for_weight(tape: Tape) -> Tensor | None:
        return new(tape, w_shape, dtype, "grad_router", moved, Kernel.GEMM, flops) if w_needs else None

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_weight = for_weight(tape) if bias is None else None
        to_x = new(tape, x_shape, dtype, "grad_router_input", moved, Kernel.GEMM, flops) if x_needs else None
        if bias is None:
            return [to_x, to_weight, None]
        return [to_x, for_weight(tape), grads[0] if bias.trainable else None]

    shapes = () if bias is None else (x_shape, w_shape, bias.shape)
    node = tape.node((x, weight, bias), [x] * w_needs + [weight] * x_needs, backward, reduce_to=shapes)
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
