"""Megatron-Core with Transformer Engine: what each kind of layer holds, computes and sends.

Layers: `recurrent`, `moe`, `attention`, `latent`; around them: `head`, `mtp`; their parameters: `tensors`; shared
operators and notes on weight gradients: `ops/linear.py`. Versions: megatron-core 0.16.1 (core_v0.16.1),
TransformerEngine 2.18 unless a rule says otherwise, mamba_ssm of August 2026.

Recompute is Megatron's own spelling in `LayerWorkload.checkpoint`: "none", "full" (each layer keeps its input), or a
comma list of selective modules: moe, layernorm, moe_act, shared_experts, mlp, core_attn, mla_up_proj
(`transformer_config.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Final

from simcore.models.blocks import (
    Attention,
    Branch,
    Embedding,
    FinalNorm,
    GatedDeltaNet,
    Head,
    LatentAttention,
    LayerKind,
    Loss,
    Mamba2,
    Mlp,
    Moe,
    Mtp,
)
from simcore.models.vision_blocks import VisionPart, WholePart
from simcore.operators.implementation import Implementation
from simcore.operators.megatron.attention import attention, mlp, sees_by_bias
from simcore.operators.megatron.head import TIED_GRAD, embedding, head, loss
from simcore.operators.megatron.latent import latent_attention
from simcore.operators.megatron.logprobs import log_probabilities
from simcore.operators.megatron.moe import moe
from simcore.operators.megatron.mtp import heads, predict
from simcore.operators.megatron.ops.context import Context, fuses_wgrad
from simcore.operators.megatron.ops.elementwise import add, add_dropped
from simcore.operators.megatron.ops.fused_logprobs import FUSED, fused_log_probabilities, loss_of_log_probabilities
from simcore.operators.megatron.ops.norm import norm
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.operators.megatron.ops.value_head import VALUE_HEADS, value_head, value_loss
from simcore.operators.megatron.recurrent.delta_net import delta_net
from simcore.operators.megatron.recurrent.mamba import mamba
from simcore.operators.megatron.stash import sections
from simcore.operators.megatron.tensors import FINAL_NORM, tensors
from simcore.operators.megatron.vision.features import add_features
from simcore.operators.megatron.vision.parts import GRAD_EMBEDDED, record_part
from simcore.operators.megatron.vision.pooled import biases_of_a_stage
from simcore.operators.shared.features import LATENT, refuse
from simcore.recording.host_copies import STAYS, HostTrip
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import Module
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Param, Section, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["IMPLEMENTATION", "idle_gradients", "record", "standing", "tensors"]

SERVED: Final = frozenset({"norms of query and key", "biases of query, key and value", "gated experts",
                           "a router by softmax", "a router by softmax, not normalised", "latent attention",
                           "gated experts with a shared one", "gated experts chosen by sigmoid", "LayerNorm",
                           "learned positions", "biases of attention", "a GELU MLP", "biases of the MLP", "dropout",
                           "experts with GELU", "multi-token prediction",
                           "latent attention without norms on the way up", "attention sinks",
                           "attention within a window", "a router by softmax of the chosen", "biases of experts",
                           "a gate of the shared expert", "the gated delta rule", "a gate of attention's output",
                           "rotation of a part of each head", "norms behind blocks",
                           "norms over all heads of query and key", "a vision tower",
                           "a scaled embedding or scaled logits", "scores below a cap", "logits below a cap", LATENT})
"""Features (`operators/shared/features.py`) of models that these layers are recorded with."""

_EMPTY = Section(())


def idle_gradients(kind: LayerKind, run: LayerWorkload) -> frozenset[tuple[tuple[int, ...], str]]:
    """(shape, dtype) of each tensor that a GEMM returns in place of a gradient that went into main_grad.

    TE makes one for each shape and dtype of the whole process at its first backward and never frees it
    (`pytorch/module/base.py`, get_dummy_wgrad; megatron-core's own linear uses it too): a constant of a job, which no
    layer can record. Their sum over the distinct shapes of all kinds is 0.81 GiB for Nemotron 3 Nano at tp 1. Empty
    without gradient accumulation fusion.
    """
    if not fuses_wgrad(run) or isinstance(kind.block, WholePart):  # transformers' own linears
        return frozenset()
    made_by_gemm = {s.name for s in tensors(kind) if s.module in ("linear", "grouped")}
    return frozenset((p.shape[-2:], p.dtype) for name, p in run.params.items()
                     if p.trainable and not p.grad_category and (name in made_by_gemm or ".adapter.linear_" in name))


def standing(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> dict[str, int]:
    """{"idle_weight_gradients": bytes} of the tensors of `idle_gradients`, shared by all layers of `runs`."""
    shapes = frozenset().union(*(idle_gradients(kind, run) for kind, run in runs))
    return {"idle_weight_gradients": sum(prod(shape) * dtype_bytes(dtype) for shape, dtype in shapes)}


def _stage_sections(runs: Sequence[tuple[LayerKind, LayerWorkload]], slots: dict[tuple[str, str], int],
                    comms: dict[tuple[str, str, str], int]) -> tuple[Section, Section] | None:
    """Biases of attention, which every pipeline stage of Gemma 3 with a tower makes of the token ids; None of others.

    Bridge 067f987d `models/gemma_vl/modeling_gemma3_vl.py`:168, `training/vlm_step.py`:141.
    """
    return next((biases_of_a_stage(Context(Tape(slots, comms, no_grad=run.no_grad), run, kind)) for kind, run in runs
                 if sees_by_bias(MegatronOptions.of(run.options), kind.family) and kind.block is None), None)


def record(kind: LayerKind, run: LayerWorkload, slots: dict[tuple[str, str], int],
           comms: dict[tuple[str, str, str], int]) -> RecordedLayer:
    """Recording, forward and backward, of one layer of `kind` (or embedding, final norm, head, loss).

    Raises NotYet for features that are not recorded. `slots`, `comms`: shared tables of storages and communications,
    see `recording.rows.Recorder`; entries are added.
    """
    refuse(kind, SERVED, "megatron")
    c = Context(Tape(slots, comms, no_grad=run.no_grad, leaves=run.leaves, groups=run.groups), run, kind)
    if c.is_cut_into_nodes:
        c.run = _with_own_backward(run)
    if isinstance(kind.block, Embedding) and kind.block.tower:  # of whole sequences on each cp rank
        c.run = replace(c.run, seq=run.seq * run.cp, cp=1)
    return record_part(c, kind.block, attention) if isinstance(kind.block, VisionPart) else _record(c)


def _record(c: Context) -> RecordedLayer:
    """The same of all but parts of a vision tower."""
    kind, run, tape = c.kind, c.run, c.tape
    caught: list[Tensor] = []
    x = [] if isinstance(kind.block, Embedding) else [_input(c, caught)]
    out = _forward(c, x)
    is_loss = out.shape[1] == 1 and out.dtype == "fp32"
    if not is_loss:
        _hand_over(tape, out, HIDDEN)
    forward = tape.cut()
    stem = x.copy() if run.first else []
    x.clear()
    c.locals.clear()
    after = tape.cut()
    stem.clear()
    late = tape.cut()
    trip = _on_the_host(tape)
    tape.phase = "backward"
    seed = _seed(c, out, is_loss=is_loss)
    tape.backward()
    del out  # the trainer's loss, and the graph's last reference
    c.held.clear()
    if isinstance(kind.block, Head):
        _leave_waiting(tape)
    for end in caught:
        _hand_over(tape, end, GRAD_HIDDEN)
    grads = tape.release_grads()
    stow, fetch = sections(c)
    back = tape.cut()
    trip = replace(trip, done=tape.away.drop()) if tape.away else trip
    return RecordedLayer(forward, back, after, late, seed, grads, stow=stow, fetch=fetch, host=trip)


def _on_the_host(tape: Tape) -> HostTrip:
    """The way of saved tensors to the host and back, between the passes; nodes then have those that came back."""
    if tape.groups is not None:
        tape.groups.come()
    return tape.away.go_and_come() if tape.away else STAYS


def _with_own_backward(run: LayerWorkload) -> LayerWorkload:
    """Head and embedding run their own backward if layers are cut into nodes: no tied gradient waits for the other."""
    return replace(run, params={name: replace(param, tied=False) for name, param in run.params.items()})


def _seed(c: Context, out: Tensor, *, is_loss: bool) -> Section:
    """The gradient of the output; without a graph the next layer makes none, behind a tower its end does."""
    tape, tower = c.tape, c.kind.block.tower if isinstance(c.kind.block, Embedding) else 0
    if out.node is None:
        return _EMPTY
    if not is_loss:
        slot = tape.slot(GRAD_EMBEDDED, "backward_temp") if tower else GRAD_HIDDEN
        tape.seed(out, tape.external(out.shape, out.dtype, slot, tower or 1))
        return _EMPTY
    tape.seed(out, tape.empty(out.shape, out.dtype, "grad_loss"))
    return tape.cut()


def _input(c: Context, caught: list[Tensor]) -> Tensor:
    """The layer's input; where something below it trains, its gradient is caught."""
    columns = _input_columns(c)
    shared = c.kind.block.shared if isinstance(c.kind.block, Embedding | Head) else 0
    rows = c.tokens if c.kind.name == "loss" else c.local * (1 + shared)
    x = c.tape.external((rows, columns), "fp32" if c.run.loss in _OF_TOKENS and c.kind.name == "loss" else c.dtype,
                        HIDDEN, -1)
    if c.run.input_requires_grad:
        def catch(_tape: Tape, grads: list[Tensor | None], _saved: list[Tensor]) -> list[Tensor | None]:
            caught.extend(g for g in grads if g is not None)
            return [None]

        x.node = c.tape.node((Param("hidden_states", x.shape, x.dtype, trainable=True),), (), catch)
    return x


_OF_TOKENS: Final = {FUSED: loss_of_log_probabilities, "values": value_loss}
"""Losses of one number a token in fp32, which the head has made."""


def _input_columns(c: Context) -> int:
    block = c.kind.block
    if isinstance(block, Loss):
        return 1 if c.run.loss in _OF_TOKENS else -(-block.vocab // c.run.tp)
    return c.kind.hidden


def _leave_waiting(tape: Tape) -> None:
    """A tied head's gradient lies in the engine's input buffer of the weight until the embedding's is there."""
    for _, grad in tape.grads:
        tape.rename(grad.storage, tape.slot(TIED_GRAD, "backward_temp"))
        grad.disown()
    tape.grads.clear()


def _hand_over(tape: Tape, tensor: Tensor, slot: int) -> None:
    """The tensor crosses the layer's border: it gets the border's name, and its death is posted by the neighbour."""
    assert tensor.storage is not None
    tape.rename(tensor.storage, slot)
    tensor.storage.num_bytes = 0


def _forward(c: Context, x: list[Tensor]) -> Tensor:
    block = c.kind.block
    if block is None:
        if c.run.checkpoint == "full":
            held = x.copy()
            return c.region(lambda: _layer(c, held))
        return _layer(c, x)
    if isinstance(block, Embedding):
        return embedding(c, block)
    if isinstance(block, FinalNorm):
        path = FINAL_NORM.get(c.kind.family, "decoder.final_layernorm")
        return norm(c, path, x[0], "hidden_states")
    if isinstance(block, Mtp):
        return predict(c, block, x[0], _branches)
    if isinstance(block, Head):
        if block.vocab == 1:
            return value_head(c, block.hidden, x[0])
        if c.run.loss == FUSED:
            return fused_log_probabilities(c, block, x[0])
        return heads(c, block, x.pop()) if block.shared else head(c, block, x[0])
    if c.run.loss in _OF_TOKENS:
        return _OF_TOKENS[c.run.loss](c, x[0])
    return log_probabilities(c, x) if c.options.logprob_chunk_size else loss(c, x[0])


def _layer(c: Context, x: list[Tensor]) -> Tensor:
    out = _branches(c, x)
    return add_features(c, out) if c.kind.fed else out


def _branches(c: Context, x: list[Tensor]) -> Tensor:
    stream = x[0]
    for i, branch in enumerate(c.kind.branches):
        last = i == len(c.kind.branches) - 1
        join = add_dropped if c.kind.dropout else add
        c.tape.module = _MODULES[type(branch.block)]
        stream = join(c, stream, _mixer(c, branch, stream), "hidden_states" if last else "residual")
    c.tape.module = Module.NONE
    return stream


_MODULES: Final[dict[type, Module]] = {Attention: Module.ATTN, LatentAttention: Module.ATTN, Mlp: Module.MLP,
                                       GatedDeltaNet: Module.ATTN, Mamba2: Module.MAMBA, Moe: Module.MOE_ROUTER}


def _mixer(c: Context, branch: Branch, x: Tensor) -> Tensor:
    block = branch.block
    if isinstance(block, Mamba2):
        return mamba(c, block, x)
    if isinstance(block, GatedDeltaNet):
        return delta_net(c, block, x)
    if isinstance(block, Attention):
        return attention(c, block, x, behind=bool(branch.behind))
    if isinstance(block, LatentAttention):
        return latent_attention(c, block, x)
    if isinstance(block, Mlp):
        return mlp(c, block, x, behind=bool(branch.behind))
    assert isinstance(block, Moe), "families with other blocks are refused when their tensors are asked for"
    return moe(c, block, x)


IMPLEMENTATION: Final = Implementation(record=record, tensors=tensors, standing=standing,
                                       stage_sections=_stage_sections, builds_towers=True, value_heads=VALUE_HEADS,
                                       biased_values=False, mixes_families=True)
