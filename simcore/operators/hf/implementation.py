"""transformers 5.23 models on eager PyTorch 2.13: tensors and tapes.

Tensors that cross the border between layers:

 * the stem's rotary tables and position ids belong to the embedding, which makes them; the layer with `run.stem` posts
   their deaths (row offset -stem) in its backward; for tensors that no layer keeps, the layer with `run.first` does so,
   in `late`;
 * the head's input, where no operator keeps it, dies when the causal model returns: `after` of the head belongs behind
   the loss;
 * `late` of the loss is what the training loop holds until backward is over: the loss, its gradient, and the logits if
   it keeps the output object;
 * a tied head's gradient waits in the engine for the embedding's; the embedding posts its death with offset TIED_HEAD.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from simcore.errors import NotYet, Problem
from simcore.models.blocks import Attention, Branch, Embedding, FinalNorm, Head, LayerKind, Loss, Moe
from simcore.models.vision_blocks import VisionPart
from simcore.operators.automodel.adapters.split import own_columns
from simcore.operators.automodel.compiled.layer import compiled_layer
from simcore.operators.hf.autocast import layer_norm, narrowed
from simcore.operators.hf.beside.layer import Mix, Norm, both, pair
from simcore.operators.hf.embedding import called, embedding, shared_tables, stage_stem, window_of
from simcore.operators.hf.families import EMBEDDINGS, mix, norm, of_family
from simcore.operators.hf.gemma4.beside import Beside
from simcore.operators.hf.gemma4.own_input import add_own_input
from simcore.operators.hf.head import VALUE_HEADS, final_norm, head
from simcore.operators.hf.layers import Inputs, has_eager_attention, linear
from simcore.operators.hf.losses import loss_of
from simcore.operators.hf.moe import joined
from simcore.operators.hf.options import HfOptions
from simcore.operators.hf.tensors import tensors
from simcore.operators.hf.unsloth import has_fast_layers, input_buffers, unsloth_layer, weight_buffer
from simcore.operators.hf.vision.deepstack import fed, output_before
from simcore.operators.hf.vision.part import Modules
from simcore.operators.implementation import Implementation
from simcore.operators.shared import aten
from simcore.operators.shared.compiled_block import compiled_block
from simcore.operators.shared.compiled_kernels import CompiledBlock
from simcore.operators.shared.features import CHUNKS, TEMPERED, UNIT_NORMS, WEIGHED_INPUT, refuse
from simcore.operators.shared.layer_borders import BEFORE, hand_on, run_around_hook, stream_dtype
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Param, Section, Tape, Tensor

__all__ = ["IMPLEMENTATION", "record", "standing", "tensors"]

SERVED: Final = frozenset({"norms of query and key", "biases of query, key and value", "biases of attention",
                           "attention sinks", "attention within a window", "gated experts", "a router by softmax",
                           "a router by softmax of the chosen", "biases of experts", "gated experts with a shared one",
                           "a router by softmax, not normalised", "a gate of the shared expert",
                           "rotation of a part of each head", "scaled residuals",
                           "a scaled embedding or scaled logits", "residuals in fp32", "a GELU MLP",
                           "the gated delta rule", "Mamba without its norm", "a gate of attention's output",
                           "norms over all heads of query and key", "norms behind blocks", "scores below a cap",
                           "logits below a cap", "LayerNorm", "LayerNorm without a bias", "dropout",
                           "biases of the MLP", "a bias of the head", "attention and MLP beside each other",
                           "a vision tower", "a mixer beside attention", "a norm of values", "values out of keys",
                           "a scaled output of layers", "gated experts chosen by sigmoid",
                           "attention both ways within an image", "keys and values of another layer",
                           "inputs of single layers", "experts beside an MLP", "experts with GELU",
                           "a router with a scale of each expert", "latent attention", UNIT_NORMS, TEMPERED, CHUNKS,
                           WEIGHED_INPUT})
"""Features (`operators/shared/features.py`) of models that these layers are recorded with."""

_LINEARS: Final = {**{f"w{part}": f"self_attn.{part}_proj" for part in "qkvo"},
                   "w1": "mlp.gate_proj", "w2": "mlp.down_proj", "w3": "mlp.up_proj"}


def record(kind: LayerKind, run: LayerWorkload, slots: dict[tuple[str, str], int],
           comms: dict[tuple[str, str, str], int]) -> RecordedLayer:
    """Recording, forward and backward, of one layer of `kind` (or embedding, final norm, head, loss).

    Head and loss are Automodel's where it trains the model. Raises NotYet for features that are not recorded. `slots`,
    `comms`: shared tables of storages and communications, see `recording.rows.Recorder`; entries are added.
    """
    refuse(kind, SERVED, "hf")
    _refuse_others(kind, run)
    assert run.etp == 1
    tape = Tape(slots, comms, no_grad=run.no_grad, left=run.left)
    if isinstance(kind.block, Embedding):
        return embedding(tape, kind, kind.block, run)
    if isinstance(kind.block, VisionPart):
        from simcore.operators.hf.vision.parts import record_part  # most models have no tower

        return record_part(tape, kind.block, run, _modules(run), lambda last, between: shared_tables(
            tape, last.decoder.text, last.decoder, run, between))
    trainer = HfOptions.of(run.options).automodel
    if isinstance(kind.block, Head | Loss) and trainer is not None:
        from simcore.operators.automodel import implementation as automodel

        return automodel.record(kind, replace(run, params=_outside(run), options=trainer), slots, comms)
    if isinstance(kind.block, Loss):
        return loss_of(tape, kind.block, run)
    if isinstance(kind.block, FinalNorm):
        return final_norm(tape, kind, run)
    if isinstance(kind.block, Head):
        return head(tape, kind, kind.block, run)
    return _layer(tape, kind, run)


def _is_replayed(run: LayerWorkload, options: HfOptions) -> bool:
    """True if a layer of a tower is recomputed."""
    return run.checkpoint != "none" and (options.checkpoints_frozen or any(
        param.trainable for param in run.params.values()))


def _modules(run: LayerWorkload) -> Modules:
    """Modules of a tower as those of the decoder: with adapters, packed, under autocast, inside checkpoints."""
    options = HfOptions.of(run.options)
    is_wide = options.wide_sdpa and options.attn_implementation == "sdpa"
    attention = "sdpa_fp32" if is_wide else options.attn_implementation
    return Modules(attention, linear, layer_norm, narrowed, "fp32" if options.autocast else "",
                   "fp32" if options.wide_tower else "", is_replayed=_is_replayed(run, options),
                   drops_output=not options.by_automodel and run.loss != "hf_keep_logits", is_cast=options.casts_tower,
                   is_wide=options.wide_outputs, is_packed=run.options.position_axes > 0)


_SIGMOID: Final = ("deepseek_v3", "exaone_moe", "glm4_moe", "glm4_moe_lite", "llama4_text", "minimax_m2")
"""Families whose gated experts are chosen by the router of Nemotron-H, operator for operator, or by their own."""
_OTHERS: Final = ("gpt2", "mpt")
"""Families whose layers transformers builds of modules that are not recorded (`Conv1D`; a fused projection)."""


def _refuse_others(kind: LayerKind, run: LayerWorkload) -> None:
    """Raises NotYet for layers of `_OTHERS`, and for dropout of attention's weights where they are plain operators."""
    if kind.family in _OTHERS and kind.branches:
        raise NotYet(Problem("model", f"not yet: layers of {kind.family} in the layers of hf; placement is served"))
    if kind.family not in _SIGMOID and any(isinstance(branch.block, Moe) and branch.block.gated
                                           and branch.block.router == "sigmoid" for branch in kind.branches):
        raise NotYet(Problem("model", f"not yet: gated experts chosen by sigmoid ({kind.family}, {kind.name}) in the "
                             f"layers of hf (served: those of {', '.join(_SIGMOID)}); placement is served"))
    shared = any(isinstance(branch.block, Attention) and (branch.block.borrows or branch.block.lent)
                 for branch in kind.branches)
    if run.checkpoint != "none" and (shared or kind.own_input):
        raise NotYet(Problem("training.recompute", "not yet: activation checkpointing of layers with inputs of their "
                             "own, or that use keys and values of others"))
    plain = has_eager_attention(run) or HfOptions.of(run.options).math_attention
    if has_eager_attention(run) and kind.family.startswith("exaone") and not window_of(kind) and any(
            isinstance(branch.block, Attention) and branch.block.rotary for branch in kind.branches):
        raise NotYet(Problem("framework_options.attn_implementation", "not yet: eager attention in a model of "
                             f"{kind.family} without a window, which makes one mask"))
    if plain and any(isinstance(branch.block, Attention) and branch.block.dropout for branch in kind.branches):
        raise NotYet(Problem("framework_options.attn_implementation", "not yet: dropout in attention of plain "
                             "operators"))


def _outside(run: LayerWorkload) -> dict[str, Param]:
    """The head's parameters as they are called outside of it."""
    return {f"lm_head.{name}": param for name, param in run.params.items()}


# ---- layers -----------------------------------------------------------------------------------------------------
def _layer(tape: Tape, kind: LayerKind, run: LayerWorkload) -> RecordedLayer:
    beside = Beside(tape, kind, run)
    inputs: Inputs | None
    inputs, positions, further = called(tape, kind, run, beside)
    stream, leaf = [inputs.hidden, inputs.cos, inputs.sin], inputs.hidden.node
    if HfOptions.of(run.options).casts_stream:  # by FSDP2's hook; the model holds what it was until the layer returns
        inputs = _cast(tape, run, inputs)
    run_layer = _between_casts if HfOptions.of(run.options).wide_outputs else _body
    body: Callable[[], Tensor] = partial(run_layer, tape, kind, run, inputs)
    held: list[Callable[[], Tensor]] = []
    if is_function := run.checkpoint != "none" and run.options.inputs_on_host:
        held.append(_Function(tape, run, inputs, body))
        body = held[0]
    is_whole = run.checkpoint != "none" and not HfOptions.of(run.options).checkpoints_parts
    out = tape.checkpoint(body, nested=is_function) if is_whole else body()
    _keep(tape, run, out, further)
    out = fed(tape, kind, run, out) if kind.fed else out
    hand_on(tape, out)
    forward = tape.cut()
    tape.casts.clear()
    casts = tape.cut()
    del body
    mask, given, inputs = inputs.mask if _keeps_mask(run, out) else None, inputs.mask, None
    embeddings = _embeddings(tape, kind, run)
    del stream[:embeddings is not None]  # what dropout made of them goes with the layer
    returned = tape.cut()  # copies that a hook made of what the model holds
    before = output_before(tape, kind, run)
    if run.input_waits and stream[0]:
        stream[0].storage = None
    del positions, stream, given, embeddings, before, further
    dropped = tape.cut()
    beside.drop()
    late = tape.cut()
    del mask
    after, late = (returned, _joined(dropped, late)) if run.first else (_joined(returned, dropped), late)
    seed, back = run_around_hook(tape, out, leaf, partial(_finished, run=run, beside=beside), held,
                                 ahead=run_layer is _between_casts and not is_whole)
    tape.graph.clear()
    return RecordedLayer(forward, back, after, late, seed, grads=tape.release_grads(), casts=casts, release=tape.cut(),
                         behind=beside.behind(tape), rest=tape.rest())


def _keeps_mask(run: LayerWorkload, out: Tensor) -> bool:
    """True if a checkpoint keeps the mask; attention keeps what it makes of it (torch's convert_boolean_attn_mask)."""
    return out.node is not None and run.checkpoint != "none" and not has_eager_attention(run)


def _joined(first: Section, second: Section) -> Section:
    return Section((*first.rows, *second.rows))


def _finished(tape: Tape, *, run: LayerWorkload, beside: Beside) -> None:
    beside.hand_down(tape)
    own_columns(tape, run=run)


def _keep(tape: Tape, run: LayerWorkload, out: Tensor, further: list[Tensor]) -> None:
    """Tables of layers of another type: kept until backward, but where a hook makes copies for each layer."""
    if HfOptions.of(run.options).casts_stream:
        return
    if out.node is not None:
        tape.save(out.node, *further)
    further.clear()


def _embeddings(tape: Tape, kind: LayerKind, run: LayerWorkload) -> Tensor | None:
    """Output of the embedding before dropout, which some models hold until they return; None for another layer."""
    if not (run.first and kind.dropout and of_family(kind.family).holds_embeddings):
        return None
    slot = tape.slot(EMBEDDINGS, "activation")
    return tape.external((run.batch, run.seq, kind.hidden), stream_dtype(run), slot, BEFORE)


class _Function:
    """A replayed layer as one function of autograd, whose input is on the host until backward or stays.

    It holds the gradient that came in, the input that came back and what the replay put out until all of the layer is
    differentiated (unsloth-zoo `gradient_checkpointing.py`, Unsloth_Offloaded_Gradient_Checkpointer; axolotl's
    `gradient_checkpointing: offload` is a copy of it). Both copies are on the stream of the kernels. Into a new tensor
    or, with `HfOptions.has_input_buffers`, into a buffer that is there before (UnslothCheckpointFunction, same file).
    """

    def __init__(self, tape: Tape, run: LayerWorkload, inputs: Inputs, body: Callable[[], Tensor]) -> None:
        self.tape, self.inputs, self.body = tape, inputs, body
        self.waits, self.has_buffer = run.input_waits, HfOptions.of(run.options).has_input_buffers
        self.out: Tensor | None = None

    def __call__(self) -> Tensor:
        if self.tape.phase != "recompute":
            if self.waits:
                self.tape.copy("to_host", self.inputs.hidden.nbytes, self.inputs.hidden.dtype)
            return self.body()
        if self.waits:
            self._return()
        out = self.body()
        self.out = out.detach()
        return out

    def _return(self) -> None:
        hidden = self.inputs.hidden
        self.tape.copy("to_device", hidden.nbytes, hidden.dtype)
        back = self.tape.empty((0,) if self.has_buffer else hidden.shape, hidden.dtype, "hidden_states.from_host")
        hidden.storage = back.storage


def _cast(tape: Tape, run: LayerWorkload, inputs: Inputs) -> Inputs:
    hidden = aten.cast(tape, inputs.hidden, run.compute)
    cos, sin = (table and aten.cast(tape, table, run.compute) for table in (inputs.cos, inputs.sin))
    return inputs._replace(hidden=hidden, cos=cos, sin=sin)


def _between_casts(tape: Tape, kind: LayerKind, run: LayerWorkload, inputs: Inputs) -> Tensor:
    """A layer between what FSDP2's hooks cast (torch 2.13 `_fsdp_state.py`, cast_forward_inputs and output_dtype).

    transformers' checkpoint of a whole layer is outside of both (`modeling_layers.py`, GradientCheckpointingLayer).
    """
    narrow = inputs._replace(hidden=aten.cast(tape, inputs.hidden, run.compute))
    return aten.cast(tape, _body(tape, kind, run, narrow), "fp32")


def _body(tape: Tape, kind: LayerKind, run: LayerWorkload, inputs: Inputs) -> Tensor:
    """`x + block(norm(x))` for every branch. A replay is a region of autocast's own."""
    if HfOptions.of(run.options).compiled_layers:
        return _compiled(tape, kind, run, inputs)
    try:
        return _branches(tape, kind, run, inputs)
    finally:
        if tape.phase == "recompute":
            tape.casts.clear()


def _compiled(tape: Tape, kind: LayerKind, run: LayerWorkload, inputs: Inputs) -> Tensor:
    """A layer that is compiled alone, inside of what checkpoints it (`nn.Module.compile`)."""
    mixer = kind.branches[0].block
    assert isinstance(mixer, Attention)
    tables = (table for table in (inputs.cos, inputs.sin) if table is not None)
    if HfOptions.of(run.options).by_automodel:  # which checkpoints attention and MLP inside
        return compiled_layer(tape, run, kind, inputs.hidden, *tables, fuses_norms=True)
    return compiled_block(tape, run, CompiledBlock(mixer, _LINEARS, "none"), inputs.hidden, *tables)


def _branches(tape: Tape, kind: LayerKind, run: LayerWorkload, inputs: Inputs) -> Tensor:
    if has_fast_layers(run):
        return unsloth_layer(tape, kind, run, inputs.hidden)
    if kind.beside:
        return both(tape, kind, inputs.hidden, *_functions(tape, kind, run, inputs))
    if run.checkpoint != "none" and HfOptions.of(run.options).checkpoints_parts:
        return _by_parts(tape, kind, run, inputs)
    _held, _both = None, list[Tensor]()
    x = pair(tape, kind, inputs.hidden, *_functions(tape, kind, run, inputs), _both) if kind.paired else inputs.hidden
    for branch in kind.branches[2 * kind.paired:-2 if kind.joined else None]:
        residual = x
        tape.scope = f"{branch.norm}."
        seen = aten.cast(tape, x, run.compute) if kind.wide else x
        x = norm(tape, run, f"{branch.norm}.", seen, kind.family) if branch.norm else seen
        del seen
        if kind.wide:
            residual = aten.cast(tape, residual, "fp32")
        tape.scope = f"{branch.name}."
        fed = inputs._replace(hidden=x, drops=kind.dropout)
        x, given = mix(tape, run, branch, fed, kind.family)
        mixes = isinstance(branch.block, Attention)
        x = aten.dropout(tape, x) if kind.dropout and not mixes else x
        kept = [fed.hidden] * (mixes and of_family(kind.family).holds_mixed)
        _both += [x] * len(kept)
        del fed
        _held = _held if given is None else given
        del given
        if branch.behind:
            tape.scope = f"{branch.behind}."
            x = norm(tape, run, f"{branch.behind}.", x, kind.family)
        tape.scope = ""
        x = aten.add(tape, residual, aten.mul_scalar(tape, x) if kind.scaled else x, "residual")
        kept.clear()
    del residual
    x, _held = joined(tape, kind, run, inputs._replace(hidden=x), mix, norm, _held) if kind.joined else (x, _held)
    if inputs.own is not None:
        x = add_own_input(tape, run, x, inputs.own, linear)
    if kind.scales_output:
        aten.mul_(tape, x, run.params["layer_scalar"])
    return x


def _functions(tape: Tape, kind: LayerKind, run: LayerWorkload, inputs: Inputs) -> tuple[Mix, Norm]:
    return (lambda branch, x: mix(tape, run, branch, inputs._replace(hidden=x), kind.family),
            lambda at, x: norm(tape, run, at, x, kind.family))


_REPLAYED: Final = ("input_layernorm", "post_attention_layernorm")
"""Norms that are replayed where parts of a layer are: the first names that Automodel 0.7.0 knows
(`distributed/activation_checkpointing.py`, apply_submodule_checkpointing); others are run once."""


def _by_parts(tape: Tape, kind: LayerKind, run: LayerWorkload, inputs: Inputs) -> Tensor:
    """`x + block(norm(x))` for every branch, norms and blocks replayed one by one (`checkpoint_wrapper`)."""
    def plain(name: str, x: Tensor) -> Tensor:
        tape.scope = f"{name}."
        return norm(tape, run, f"{name}.", x, kind.family)

    def normed(name: str, x: Tensor) -> Tensor:
        return tape.checkpoint(partial(plain, name, x)) if name in _REPLAYED else plain(name, x)

    x = inputs.hidden
    others = inputs._replace(hidden=Tensor(None, x.shape, x.dtype))  # a replayed block refers to its own input alone

    def mixed(branch: Branch, x: Tensor) -> Tensor:
        tape.scope = f"{branch.name}."
        return mix(tape, run, branch, others._replace(hidden=x), kind.family)[0]

    for branch in kind.branches:
        residual = x
        x = normed(branch.norm, x)
        x = tape.checkpoint(partial(mixed, branch, x))
        if branch.behind:
            x = normed(branch.behind, x)
        tape.scope = ""
        x = aten.add(tape, residual, x, "residual")
    if kind.scales_output:
        aten.mul_(tape, x, run.params["layer_scalar"])
    return x


def standing(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> dict[str, int]:
    """Bytes of what Unsloth's layers share, 0 without: `weight_buffer`, `input_buffers`."""
    return weight_buffer(runs) | input_buffers(runs)


IMPLEMENTATION: Final = Implementation(record=record, tensors=tensors, standing=standing, stage_stem=stage_stem,
                                       builds_towers=True, value_heads=VALUE_HEADS)
