"""The mixture of experts of NeMo Automodel: router, shared expert, token dispatch, experts.

Source: nemo-automodel 0.7.0, `components/moe/layers.py`.

[Note: three dispatchers]
`deepep`: a token travels once to every rank that holds one of its experts, is permuted there, and comes home the same
way. `torch`: every rank gathers *all* tokens of the group, works on the rows of its own experts, adds them into an fp32
tensor of all tokens, and all ranks sum those tensors. Both directions of backward are all-reduces too, because a
reduce-scatter deadlocked upstream (`_AllGatherConcatVarlenFn`). `hybridep`: sends like DeepEP, in buffers
outside torch, and copies rows in the order of the experts from there (DeepEP branch hybrid-ep at 94a9f8f).
"""

from __future__ import annotations

from functools import partial

from simcore.models.blocks import Moe
from simcore.operators.automodel.dispatch_deepep import deepep, hybridep
from simcore.operators.automodel.dispatch_local import gathered
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.layers import linear, mlp
from simcore.operators.automodel.router import (
    chosen_softmax_gate,
    corrected_gate,
    fake_gate,
    softmax_gate,
    table_gate,
)
from simcore.operators.automodel.sparse import SparseFamily
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.layer_borders import OF_FP32, as_inner_unit
from simcore.recording.rows import Module
from simcore.recording.tape import (
    INNER_BACKWARD_BEGIN,
    INNER_BACKWARD_END,
    INNER_FORWARD_BEGIN,
    INNER_FORWARD_END,
    Tape,
    Tensor,
)

__all__ = ["moe", "moe_of"]


def moe(env: Env, x: Tensor, block: Moe, path: str, *, wide: bool = False, wide_product: bool = True,
        corrects: bool = False) -> Tensor:
    """Output of a mixture-of-experts block for `x` [batch, sequence, hidden], in x's shape.

    `MoE.forward`: the shared expert runs between router and experts, its output waits for theirs. `path`: the module's
    name; `wide`: the router's weights stay fp32, `wide_product`: its product is in fp32, `corrects`: a buffer corrects
    what a softmax makes of it, see `sparse`. Routed experts of a latent width get a projection of every token, which
    lives until their output is projected back.
    """
    shape = x.shape
    x = x.view(env.run.tokens, block.hidden)
    given = linear(env, x, f"{path}.fc1_latent_proj") if block.latent else x
    if env.options.fake_balanced_gate:
        weights, indices = fake_gate(env, x, block)
    elif block.table:
        weights, indices = table_gate(env, x, block, f"{path}.gate")
    elif block.router == "softmax" and not corrects:
        weights, indices = softmax_gate(env, x, block, f"{path}.gate")
    elif block.router == "topk_softmax":
        weights, indices = chosen_softmax_gate(env, x, block, f"{path}.gate")
    else:
        weights, indices = corrected_gate(env, x, block, f"{path}.gate", "fp32" if wide else x.dtype,
                                          "fp32" if wide_product else x.dtype)
    shared = _shared_expert(env, x, block, path) if block.shared_ffn else None
    y = _experts(env, given, weights, indices, block, f"{path}.experts")
    if block.latent:
        y = linear(env, y, f"{path}.fc2_latent_proj")
    if shared is not None:
        y = aten.add(env.tape, y, shared, "moe_sum")
    return y.view(*shape)


def moe_of(env: Env, x: Tensor, block: Moe, path: str, sparse: SparseFamily | None) -> Tensor:
    """Output of `moe` as the family has it: with a gate in fp32 the whole block is an FSDP2 unit inside the layer.

    `sparse`: None for a family whose router is an ordinary one.
    """
    run = partial(moe, env, block=block, path=path, wide=sparse is not None and sparse.wide,
                  wide_product=sparse is None or sparse.wide_product, corrects=sparse is not None and sparse.corrects)
    apart = sparse is not None and sparse.wide_gate and env.options.fp32_unit
    return as_inner_unit(env.tape, x, run, OF_FP32) if apart else run(x)


def _shared_expert(env: Env, x: Tensor, block: Moe, path: str) -> Tensor:
    """Its kernels are told apart: some releases run them beside the exchanges."""
    env.tape.module = Module.SHARED_EXPERTS
    if block.clamped:
        out = _clamped(env, x, f"{path}.shared_experts")
    else:
        out = mlp(env, x, f"{path}.shared_experts", gated=block.gated)
    if block.shared_gate:
        out = aten.mul(env.tape, aten.sigmoid(env.tape, linear(env, x, f"{path}.shared_expert_gate")), out, "weighed")
    env.tape.module = Module.NONE
    return out


def _clamped(env: Env, x: Tensor, path: str) -> Tensor:
    """SwiGLU in fp32 whose gate is kept below a limit, and the other product within it (`MLP`, swiglu_limit)."""
    tape = env.tape
    gate = aten.clamp(tape, aten.cast(tape, linear(env, x, f"{path}.gate_proj"), "fp32"), 1)
    up = aten.clamp(tape, aten.cast(tape, linear(env, x, f"{path}.up_proj"), "fp32"), 2)
    return linear(env, aten.cast(tape, aten.mul(tape, aten.silu(tape, gate), up, "swiglu"), x.dtype),
                  f"{path}.down_proj")


# ---- experts ----------------------------------------------------------------------------------------------------
def _experts(env: Env, x: Tensor, weights: Tensor, indices: Tensor, block: Moe, path: str) -> Tensor:
    tape, own_unit = env.tape, env.options.experts_unit
    if own_unit and env.begins:
        tape.mark(INNER_FORWARD_BEGIN)
        x, weights = _border(tape, (x, weights), INNER_BACKWARD_END)
    dispatcher = env.options.dispatcher if env.run.ep > 1 else "torch"
    run = {"deepep": deepep, "hybridep": hybridep, "torch": gathered}[dispatcher]
    y = run(env, x, weights, indices, block, path)
    if own_unit and env.ends:
        tape.mark(INNER_FORWARD_END)
        (y,) = _border(tape, (y,), INNER_BACKWARD_BEGIN)
    return y


def _border(tape: Tape, inputs: tuple[Tensor, ...], label: int) -> tuple[Tensor, ...]:
    """Node of a data-parallel unit's hooks in backward, through which all its inputs (or outputs) go."""

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        tape.mark(label)
        return [*grads, *[None] * (len(inputs) - len(grads))]

    node = tape.node(inputs, (), backward)
    return tuple(Tensor(t.storage, t.shape, t.dtype, node if t.node else None, i) for i, t in enumerate(inputs))
