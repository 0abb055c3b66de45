"""NeMo Automodel's own models (nemo-automodel 0.7.0): what each kind of layer holds, computes and sends.

Layers: `layers`, `mamba`, `dense`, `latent`, `moe`, `predictions`; head and losses: `head`; parameters: `tensors`.

`LayerWorkload.checkpoint`: "none" or "full". With expert parallelism every block is wrapped whole and saves the
router's product and its top-k (`components/moe/parallelizer.py`, `apply_ac`); without it Nemotron-H wraps its Mamba and
MLP blocks only (`models/nemotron_v3/parallelization.py`), and each norm, attention and MLP of all others is a
separate checkpoint: layers whose class is Automodel's are no case of `_should_use_hf_native_gradient_checkpointing`
(`components/distributed/{parallelizer,activation_checkpointing}.py`, apply_submodule_checkpointing).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from simcore.errors import NotYet, Problem
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
from simcore.models.vision_blocks import VisionPart
from simcore.operators.automodel.adapters.split import own_columns
from simcore.operators.automodel.compiled.layer import compiled_layer
from simcore.operators.automodel.compressed.layer import compressed_layer
from simcore.operators.automodel.compressed.modules import Modules
from simcore.operators.automodel.compressed.stem import EMBEDDED, expanded, looked_up
from simcore.operators.automodel.compressed.streams import last_sum, shape_of_stream
from simcore.operators.automodel.dense import (
    DENSE,
    dense_attention,
    dense_norm,
    is_eager,
    norms_by_kernel,
    qwen3_moe_attention,
    step_layer,
)
from simcore.operators.automodel.env import ALONE, BESIDE, Env, around
from simcore.operators.automodel.gpt_oss import oss_attention
from simcore.operators.automodel.head import LINEAR_LOSSES, head, loss
from simcore.operators.automodel.latent import drop_chosen, latent_attention, sent_keys
from simcore.operators.automodel.layers import attention, linear, mlp, norm
from simcore.operators.automodel.moe import moe_of
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.automodel.predictions import meet_further, predicted_logits, predictions, with_further
from simcore.operators.automodel.qwen3_5 import gated_attention, make_tables, stem_tables
from simcore.operators.automodel.recurrent import delta_net, mamba
from simcore.operators.automodel.sparse import (
    OF_GRIDS,
    QWEN3_5,
    SPARSE,
    has_streams,
    has_wide_head,
    is_eager_sparse,
    shares_in_layer,
)
from simcore.operators.automodel.stem import (
    by_parts,
    held_for_streams,
    stage_passing,
    stage_stem,
    standing,
    tables_of_stem,
)
from simcore.operators.automodel.tensors import tensors
from simcore.operators.automodel.windowed.mimo import mimo_attention
from simcore.operators.hf.vision.deepstack import add_in_place
from simcore.operators.implementation import Implementation
from simcore.operators.shared import aten
from simcore.operators.shared.dtensor import own_rows, sum_everywhere
from simcore.operators.shared.layer_borders import AFTER, BEFORE, GRAD_EMBEDDED, leave_waiting, meet_waiting
from simcore.operators.shared.logits import changes_logits, finished_logits
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import Module
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Node, Section, Tape, Tensor

__all__ = ["IMPLEMENTATION", "record", "standing", "tensors"]

_EMPTY = Section(())
_INSIDE: Final = (*LINEAR_LOSSES, "causal")
"""Losses of the hidden state, or that the model computes while it still holds it."""


def record(kind: LayerKind, run: LayerWorkload, slots: dict[tuple[str, str], int],
           comms: dict[tuple[str, str, str], int]) -> RecordedLayer:
    """Recording, forward and backward, of one layer of `kind` (or embedding, final norm, head, loss).

    Raises NotYet for an unknown loss. `slots`, `comms`: shared tables of storages and
    communications, see `recording.rows.Recorder`; entries are added.
    """
    if isinstance(kind.block, Embedding) and kind.block.tower:  # of whole sequences on each cp rank
        run = replace(run, seq=run.seq * run.cp, cp=1)
    env = Env(Tape(slots, comms, no_grad=run.no_grad), run, AutomodelOptions.of(run.options), fp8=kind.fp8)
    if isinstance(kind.block, Embedding):
        return _embedding(env, kind, kind.block)
    if isinstance(kind.block, Loss):
        env.run = replace(run, tp=1) if env.options.gathers_logits else run
        return _loss(env, kind, kind.block)
    if isinstance(kind.block, VisionPart):
        from simcore.operators.hf.vision.part import PLAIN
        from simcore.operators.hf.vision.parts import record_part  # most models have no tower

        return record_part(env.tape, kind.block, run, PLAIN, lambda last, _: make_tables(
            env, kind.family, last.decoder.rotary_dim))
    if isinstance(kind.block, Mtp):
        return predictions(env, kind, kind.block, _layer)
    return _part(env, kind)


def _part(env: Env, kind: LayerKind) -> RecordedLayer:
    """A layer, the final norm or the head: its caller drops the input when it has returned.

    The head's caller is the model, which returns before a recipe computes the loss of the logits.
    """
    tape, run = env.tape, env.run
    wide = env.options.wide_inputs or (isinstance(kind.block, Head) and _ends_wide(env, kind))
    hidden: Tensor | None = _input(env, (run.batch, run.seq, *shape_of_stream(kind)), "fp32" if wide else run.compute)
    assert hidden is not None
    leaf = hidden.node
    out = _run(env, kind, hidden)
    out = add_in_place(tape, out, run.images * kind.fed) if kind.fed else out
    # A dense Qwen 3.5's output has the final hidden state, and a loop that keeps the logits keeps it.
    held = [hidden] if isinstance(kind.block, Head) and kind.family == QWEN3_5[0] and env.options.keeps_logits else []
    if isinstance(kind.block, Head):
        hidden = None if run.loss not in _INSIDE else hidden
        out = aten.cast(tape, out, "fp32") if env.options.wide_inputs else out  # by the hook of FSDP2's root
    tape.rename(out.storage, HIDDEN)
    out.disown()
    forward = tape.cut()
    masks, tables, stem = _added_masks(env, kind), stem_tables(env, kind), held_for_streams(env, kind)
    hidden = None
    masks.clear()
    tables.drop_late()
    dropped, late = drop_chosen(env, stem)
    if out.node is not None:
        tape.seed(out, tape.external(out.shape, out.dtype, GRAD_HIDDEN, AFTER))
    tape.backward()
    own_columns(tape, run)
    tables.drop()
    env.cache = None
    if isinstance(kind.block, Head) and kind.block.shared:
        meet_further(tape, leaf)
    elif isinstance(kind.block, Head) and env.param("lm_head.weight").tied:
        leave_waiting(tape)
    _hand_back(tape, leaf)
    sections = (_EMPTY, dropped) if run.first and _holds_stem(kind, run) else (dropped, late)
    made = RecordedLayer(forward, tape.cut(), *sections, grads=tape.release_grads())
    held.clear()
    return replace(made, release=tape.cut())


def _ends_wide(env: Env, kind: LayerKind) -> bool:
    """True if the last norm's output and the logits are fp32, as those of DeepSeek-V4 over ranks (`last_sum`)."""
    return has_streams(kind.family) and env.options.fp32_unit


def _holds_stem(kind: LayerKind, run: LayerWorkload) -> bool:
    """True if the model holds the stem's output as `inputs_embeds` until it returns, as does one around Nemotron-H.

    Nemotron-H itself reuses the variable.
    """
    own = kind.family == "nemotron_h" and not run.images
    return SPARSE[kind.family].holds_stem if kind.family in SPARSE else not own


def _added_masks(env: Env, kind: LayerKind) -> list[Tensor]:
    """Eager attention's mask, if the model's variable is the last that holds it: dropped with the first layer's input.

    A checkpoint keeps it for its replay, see `_tables`.
    """
    run, tape = env.run, env.tape
    if not run.first or not is_eager(env, kind.family) or run.checkpoint == "full":
        return []
    slot = tape.slot("causal_mask", "activation")
    return [tape.external((run.batch, run.seq, run.seq), run.compute, slot, BEFORE)]


def _input(env: Env, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Output of the layer before; its node collects the gradient."""
    hidden = env.tape.external(shape, dtype, HIDDEN, BEFORE)
    hidden.node = Node() if env.run.input_requires_grad else None
    return hidden


def _hand_back(tape: Tape, leaf: Node | None) -> None:
    """The gradient of the input is the layer before's to free."""
    if leaf is None or not leaf.grads:
        return
    grad = leaf.grads.pop(0)
    tape.rename(grad.storage, GRAD_HIDDEN)
    grad.disown()


def _run(env: Env, kind: LayerKind, hidden: Tensor) -> Tensor:
    if isinstance(kind.block, FinalNorm):
        hidden = last_sum(_modules(env), hidden) if kind.block.streams else hidden
        return dense_norm(env, hidden, "model.norm", kind.family)
    if isinstance(kind.block, Head):
        if (changes_logits(kind) or kind.block.bias) and env.run.loss in LINEAR_LOSSES:
            raise NotYet(Problem("training.loss", f"not yet: {env.run.loss} of scaled, capped or biased logits"))
        if has_wide_head(kind.family):  # in fp32, then in the type of the hidden state
            logits = linear(env, aten.cast(env.tape, hidden, "fp32"), "lm_head")
            return aten.cast(env.tape, logits, hidden.dtype)
        logits = finished_logits(env.tape, kind, head(env, hidden, kind.block))
        return aten.cast(env.tape, logits, "fp32") if env.options.wide_logits else logits
    if not _checkpointed(kind, env.run) or by_parts(kind, env.run):
        return _layer(env, kind, hidden)
    if env.run.ep > 1 and env.options.keeps_router:
        env.cache = {}
    return env.tape.checkpoint(partial(_layer, env, kind, hidden))


def _checkpointed(kind: LayerKind, run: LayerWorkload) -> bool:
    everything = run.ep > 1 or kind.family != "nemotron_h"
    return run.checkpoint == "full" and (everything or isinstance(kind.branches[0].block, Mamba2 | Mlp))


def _layer(env: Env, kind: LayerKind, hidden: Tensor) -> Tensor:
    """`x + block(norm(x))` for every branch; some blocks name what a branch made until they return."""
    if env.options.compiled:
        return compiled_layer(env.tape, env.run, kind, hidden, fuses_norms=not norms_by_kernel(kind.family))
    try:
        if shares_in_layer(kind.family):
            return step_layer(env, kind, hidden, partial(_experts_at, env, kind.family))
        return _of_streams(env, kind, hidden) if kind.streams else _branches(env, kind, hidden)
    finally:  # a replay stops before its layer returns
        env.held.clear()


def _branches(env: Env, kind: LayerKind, hidden: Tensor) -> Tensor:
    named = []
    region = env.tape.checkpoint if by_parts(kind, env.run) else _at_once
    for branch in kind.branches:
        residual, env.tape.scope = hidden, ""
        hidden = region(partial(dense_norm, env, hidden, branch.norm, kind.family))
        given, env.tape.scope = hidden, f"{branch.name}."
        hidden = region(partial(_block, env, kind, branch, hidden))
        env.tape.scope = ""
        if kind.family in (*SPARSE, *QWEN3_5) and not is_eager_sparse(kind.family):
            named += [hidden, *([given] if _holds_given(kind, branch) else [])]
        del given
        hidden = aten.add(env.tape, residual, hidden, "residual")
    return hidden


def _of_streams(env: Env, kind: LayerKind, hidden: Tensor) -> Tensor:
    """A layer of DeepSeek-V4, whose experts' module names a mask of tokens."""
    def experts(x: Tensor, block: Moe, path: str) -> Tensor:
        _is_token = env.tape.empty((env.run.tokens,), "uint8", "is_token")
        x = around(env.tape, x, BESIDE[Moe] if env.run.ep > 1 else ALONE)
        return moe_of(env, x, block, path, SPARSE[kind.family])

    return compressed_layer(_modules(env), kind, hidden, experts)


def _experts_at(env: Env, family: str, x: Tensor, block: Moe, path: str) -> Tensor:
    return moe_of(env, x, block, path, SPARSE[family])


def _modules(env: Env) -> Modules:
    return Modules(env.tape, env.run, partial(linear, env), partial(norm, env), env.param, env.options.sparse, env.kept,
                   env.options.fp32_unit, env.options.agrees)


def _holds_given(kind: LayerKind, branch: Branch) -> bool:
    """True for a block whose input the layer names until it returns (Qwen 3.5: `normed_x`)."""
    if kind.family in QWEN3_5:
        return isinstance(branch.block, GatedDeltaNet)
    return SPARSE[kind.family].holds_given and isinstance(branch.block, Moe | Mlp)


def _at_once(run: Callable[[], Tensor]) -> Tensor:
    return run()


def _block(env: Env, kind: LayerKind, branch: Branch, x: Tensor) -> Tensor:
    """Linear layers of attention and MLPs are TransformerEngine's where the family is none of the dense ones.

    (Mamba's are torch's.) Their calls are told apart by module.
    """
    spread = env.run.ep > 1 or not isinstance(branch.block, Moe)
    x = around(env.tape, x, BESIDE[type(branch.block)] if spread else ALONE)
    if kind.family not in DENSE:
        env.tape.module = _MODULES.get(type(branch.block), Module.NONE)
    out = _mixed(env, kind, branch, x)
    env.tape.module = Module.NONE
    return out


_MODULES: Final = {Attention: Module.ATTN, LatentAttention: Module.ATTN, Mlp: Module.MLP}


def _mixed(env: Env, kind: LayerKind, branch: Branch, x: Tensor) -> Tensor:
    block = branch.block
    if isinstance(block, Mamba2):
        return mamba(env, x, block, branch.name)
    if isinstance(block, Moe):
        return moe_of(env, x, block, branch.name, SPARSE.get(kind.family))
    if isinstance(block, LatentAttention):
        return latent_attention(env, x, block, branch.name)
    if isinstance(block, GatedDeltaNet):
        return delta_net(env, x, block, branch.name)
    if isinstance(block, Attention) and is_eager_sparse(kind.family):
        return mimo_attention(env.tape, partial(linear, env), x, block, branch.name, env.held)
    if isinstance(block, Attention) and (block.sinks or block.gated):
        return (oss_attention if block.sinks else gated_attention)(env, x, block, branch.name)
    if isinstance(block, Attention) and kind.family in SPARSE:
        return qwen3_moe_attention(env, x, block, branch.name)
    if isinstance(block, Attention):
        return (dense_attention if kind.family in DENSE else attention)(env, x, block, branch.name)
    assert isinstance(block, Mlp), "other families are refused"
    return mlp(env, x, branch.name, gated=block.gated, splits=kind.family in DENSE)


# ---- the parts around the layers --------------------------------------------------------------------------------
def _embedding(env: Env, kind: LayerKind, block: Embedding) -> RecordedLayer:
    tape, run = env.tape, env.run
    splits = run.tp > 1 and kind.family in DENSE
    weight = env.param("model.embed_tokens.weight")
    ids = [looked_up(tape, run)] if block.streams else []
    out = aten.embedding(tape, weight, run.batch, run.seq, grad_rows=splits * weight.shape[0] * run.tp)
    out = sum_everywhere(tape, out, "embedding_sum") if splits else out
    if block.streams:
        tape.rename(out.storage, tape.slot(EMBEDDED, "activation"))
        out.disown()
        out = expanded(tape, out, block.streams)
    tape.rename(out.storage, HIDDEN)
    out.disown()
    # Tables of angles: the layers' nodes keep them until the first layer's backward, right before this one's.
    tables = tables_of_stem(env, kind, block)
    if kind.family in OF_GRIDS and not block.tower:
        make_tables(env, kind.family, block.rotary_dim)
    forward = tape.cut()
    if out.node is not None:
        slot = tape.slot(GRAD_EMBEDDED, "backward_temp") if block.tower and run.features_train else GRAD_HIDDEN
        tape.seed(out, with_further(env, tape.external(out.shape, out.dtype, slot, block.tower or AFTER)))
    tables.clear()
    tape.backward()
    ids.clear()
    if env.param("model.embed_tokens.weight").tied:
        meet_waiting(tape)
    if splits:
        own_rows(tape, run)
    return RecordedLayer(forward, tape.cut(), grads=tape.release_grads())


def _loss(env: Env, kind: LayerKind, block: Loss) -> RecordedLayer:
    tape, run = env.tape, env.run
    linear_loss = run.loss in LINEAR_LOSSES
    shape = () if linear_loss else (run.batch, run.seq, block.vocab // run.tp)
    is_wide = linear_loss or env.options.wide_inputs or env.options.wide_logits or _ends_wide(env, kind)
    given: Tensor | None = _input(env, shape, "fp32" if is_wide else run.compute)
    assert given is not None
    leaf = given.node
    value: Tensor | None = aten.mul_scalar(tape, given) if linear_loss else loss(env, given, block)
    assert value is not None
    forward = tape.cut()
    if block.further and not linear_loss:
        predicted_logits(tape, run, block.vocab)
    # Logits that became their own gradient need no second view.
    held = [given] if env.options.keeps_logits and run.loss != "te_inplace" else []
    given = None
    after = tape.cut()
    tape.phase = "backward"
    ones: Tensor | None = tape.empty((), "fp32", "grad_loss")
    assert ones is not None
    seed = tape.cut()
    tape.seed(value, ones)
    tape.backward()
    _hand_back(tape, leaf)
    backward = tape.cut()
    held.clear()
    ones = value = None
    return RecordedLayer(forward, backward, after, tape.cut(), seed)


IMPLEMENTATION: Final = Implementation(record=record, tensors=tensors, standing=standing, stage_stem=stage_stem,
                                       stage_passing=stage_passing,
                                       stage_sends=sent_keys, stands_by_chunk=True, exports_experts_apart=True,
                                       predicts_last=True, builds_towers=True)
