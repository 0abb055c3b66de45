"""Inputs of single layers of Gemma 4, which the model makes of tokens and of the sequence with images' tokens.

transformers 5.23 `models/gemma4`, Gemma4Model.forward, get_per_layer_inputs and project_per_layer_inputs. What is
looked up, and the sequence with padding in the place of images, live until the model's forward is over; upstream makes
both before the tower runs, here they are made behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from simcore.models.pooled_blocks import PooledStem
from simcore.operators.hf.gemma4.own_input import GRAD_OF_ALL, OF_ALL
from simcore.operators.hf.vision.part import Modules
from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import AFTER, BEFORE, hand_back, stream_dtype
from simcore.operators.shared.rms_norm import rms_norm_by_power
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Node, Tape, Tensor

__all__ = ["pooled_stem"]


def pooled_stem(tape: Tape, block: PooledStem, run: LayerWorkload, modules: Modules,
                make_tables: Callable[[Callable[[], None]], None]) -> RecordedLayer:
    """Recording of the inputs of all layers; the sequence passes through.

    `make_tables`: records masks, calls what it is given, and records tables for the layers.
    """
    given = tape.external((run.batch, run.seq, block.hidden), stream_dtype(run), HIDDEN, BEFORE)
    leaf = given.node = Node() if run.embedding_trains or run.input_requires_grad else None
    held = [aten.new(tape, given.shape, given.dtype, "llm_inputs_embeds", given.nbytes),
            aten.mul_scalar(tape, aten.embedding(tape, run.params["embed_tokens_per_layer.weight"], run.batch,
                                                 run.seq))]
    made: list[Tensor] = []
    project = partial(_projected, tape, block, run, modules, given, held[1], made)
    make_tables(project)
    del project
    out = made.pop()
    tape.save(out.node, given)  # the first layer leaves its free to this part
    shape, dtype = given.shape, given.dtype
    del given
    if out.node is None:  # the sequence goes on under this part's number
        tape.empty(shape, dtype, "hidden_states", "activation").disown()
    tape.rename(out.storage, tape.slot(OF_ALL, "activation"))
    out.disown()
    forward = tape.cut()
    held.clear()
    late = tape.cut()
    if out.node is not None:
        tape.seed(out, tape.external(out.shape, out.dtype, tape.slot(GRAD_OF_ALL, "backward_temp"), AFTER))
        if leaf is not None:
            leaf.grads[0] = tape.external(shape, dtype, GRAD_HIDDEN, AFTER)
        tape.backward()
        if leaf is not None:
            hand_back(tape, leaf)
    return RecordedLayer(forward, tape.cut(), late=late, grads=tape.release_grads())


def _projected(tape: Tape, block: PooledStem, run: LayerWorkload, modules: Modules, x: Tensor,
               found: Tensor, into: list[Tensor]) -> None:
    """Puts a product of the sequence `x`, normed, and what was `found` for its tokens: [batch, seq, layers, size]."""
    shape = (run.batch, run.seq, block.layers, block.size)
    made = aten.mul_scalar(tape, modules.linear(tape, run, "per_layer_model_projection", x)).view(*shape)
    tape.scope = "per_layer_projection_norm."
    made = rms_norm_by_power(tape, run.params["per_layer_projection_norm.weight"], made)
    tape.scope = ""
    into.append(aten.mul_scalar(tape, aten.add(tape, made, found.view(*shape))))
