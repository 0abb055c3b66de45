"""Operators that parts of all towers share, and how a layer of one is recorded: forward, replayed, backward.

[Note: a tower whose front takes a gradient]
transformers 5.23 `modeling_utils.py`, enable_input_require_grads: beside checkpoints, what the input embeddings of each
model inside the model put out requires a gradient, and so do SigLIP's and Pixtral's convolution (get_input_embeddings)
and Qwen 2.5 VL's `patch_embed` (_input_embed_layer). A frozen tower then is replayed and differentiated all the same,
down to the patches. Qwen 3 VL's and Qwen 3.5's have no such module (get_input_embeddings raises): nothing is asked.
The graph keeps what such a module has put out until it has been differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from simcore.models.vision_blocks import TowerEnd
from simcore.operators.hf.vision.scatter import masked_scatter
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.eager_attention import eager_core
from simcore.operators.shared.layer_borders import (
    BEFORE,
    GRAD_EMBEDDED,
    hand_back,
    hand_on,
    nothing,
    run_backward,
    stream_dtype,
)
from simcore.operators.shared.rms_norm import rms_norm
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Node, Param, Section, Tape, Tensor

__all__ = ["PLAIN", "Modules", "asks", "attended", "end", "ended", "entered", "front", "gelu_mlp", "layer_norm", "leaf",
           "merged", "normed", "regrouped", "tower_layer"]


def _linear(tape: Tape, run: LayerWorkload, name: str, x: Tensor) -> Tensor:
    return aten.linear(tape, x, run.params[f"{name}.weight"], name.removeprefix(tape.scope),
                       bias=run.params.get(f"{name}.bias"))


def _layer_norm(tape: Tape, run: LayerWorkload, x: Tensor, weight: Param, bias: Param) -> Tensor:
    return aten.layer_norm(tape, x, weight, bias)


def _same(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True, slots=True, eq=False)
class Modules:
    """Functions by which one implementation runs the modules of a tower; the defaults are plain operators.

    `attention`: eager, flash_attention_2, torch's (sdpa), or that given fp32 (sdpa_fp32, see `pooled`). `linear`:
    (tape, run, name, x) -> output [..., n] of `x` [..., k]; `layer_norm`: (tape, run, x, weight, bias) -> the norm, in
    `norm_dtype`, "" for that of products; `narrowed`: (tape, run, x) -> x as a product reads it. `is_replayed`:
    transformers' checkpoints are around layers.
    `drops_output`: the model's output is dropped when it has returned, since its caller takes the loss of it.
    `stream`: dtype of what layers hand on, "" for that of products.
    `is_cast`: FSDP2's hooks cast what the model and each layer is given in fp32, images and rotary tables, and hold the
    copies until it returns (torch 2.13 `_fsdp_state.py`, cast_forward_inputs). `is_wide`: they also cast what each
    layer puts out to fp32, and autocast narrows what products are given. `is_packed`: sequences lie end to end, see
    [Note: features of packs] in `placed`.
    """

    attention: str = "sdpa"
    linear: Callable[[Tape, LayerWorkload, str, Tensor], Tensor] = _linear
    layer_norm: Callable[[Tape, LayerWorkload, Tensor, Param, Param], Tensor] = _layer_norm
    narrowed: Callable[[Tape, LayerWorkload, Tensor], Tensor] = _same
    norm_dtype: str = ""
    stream: str = ""
    is_replayed: bool = False
    drops_output: bool = False
    is_cast: bool = False
    is_wide: bool = False
    is_packed: bool = False


PLAIN = Modules()


def layer_norm(tape: Tape, run: LayerWorkload, modules: Modules, at: str, x: Tensor) -> Tensor:
    """LayerNorm `at` ("" or with a dot at the end) of `x`, in its shape."""
    tape.scope = at
    return modules.layer_norm(tape, run, x, run.params[f"{at}weight"], run.params[f"{at}bias"])


def normed(tape: Tape, run: LayerWorkload, at: str, x: Tensor) -> Tensor:
    """RMSNorm `at` of the tower, in x's shape and type."""
    tape.scope = f"{at}."
    return rms_norm(tape, run.params[f"{at}.weight"], x, weight_in_fp32=False)


def gelu_mlp(tape: Tape, run: LayerWorkload, modules: Modules, x: Tensor) -> Tensor:
    """MLP of two linears with GELU between (`fc1`, `fc2`) of `x`, in its shape."""
    tape.scope = "mlp."
    return modules.linear(tape, run, "mlp.fc2", aten.gelu(tape, modules.linear(tape, run, "mlp.fc1", x)))


def attended(tape: Tape, run: LayerWorkload, modules: Modules, given: tuple[Tensor, Tensor, Tensor],
             held: list[Tensor]) -> Tensor:
    """Attention of each patch to all of its image, of query, key and value, each [images, patches, heads, d].

    `held`: gets the probabilities of attention that is plain operators.
    """
    if modules.attention == "eager":
        return eager_core(tape, None, held, by_heads=False, narrowed=partial(modules.narrowed, tape, run))(*given)
    value, key, query = (modules.narrowed(tape, run, part) for part in reversed(given))
    pairs = 2 * run.images * query.shape[1]**2
    if modules.attention == "flash_attention_2":
        return aten.flash_attention(tape, query, key, value, pairs, 0)
    return aten.scaled_dot_product_attention(tape, query, key, value, pairs)


def tower_layer(tape: Tape, run: LayerWorkload, modules: Modules, shape: tuple[int, ...],
                body: Callable[[Tensor], Tensor], *, down: int = BEFORE, stays: bool = False,
                first: bool = False) -> RecordedLayer:
    """Recording of a layer whose body makes of its input, of `shape`, its output; its caller holds the input till then.

    `down`: layers to the one whose output it takes. `stays`: the tower holds the input until the tower returns, unless
    the graph keeps it longer. transformers' checkpoint of it keeps nothing but the input. `first`: behind the patches.
    """
    given = "fp32" if modules.is_wide and not first else modules.stream or run.compute
    hidden: Tensor | None = tape.external(shape, given, HIDDEN, down)
    assert hidden is not None
    node = hidden.node = Node() if run.input_requires_grad else None
    if stays:
        hidden.disown()
    run_body: Callable[[], Tensor] = partial(_between_casts, tape, run, body, hidden) if modules.is_wide else partial(
        body, hidden)
    out = tape.checkpoint(run_body) if modules.is_replayed else run_body()
    hand_on(tape, out)
    forward = tape.cut()
    tape.casts.clear()
    casts = tape.cut()
    del run_body
    hidden = None
    after = tape.cut()
    back = run_backward(tape, out, node, nothing) if out.node is not None else Section(())
    tape.graph.clear()
    return RecordedLayer(forward, back, after, grads=tape.release_grads(), casts=casts, release=tape.cut())


def _between_casts(tape: Tape, run: LayerWorkload, body: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    return aten.cast(tape, body(aten.cast(tape, hidden, run.compute)), "fp32")


def asks(run: LayerWorkload) -> bool:
    """True if what the front of the tower puts out requires a gradient by itself."""
    return run.options.patches_require_grad and not run.no_grad


def leaf(tape: Tape, out: Tensor, *, copies: bool = False) -> Node | None:
    """Node of `out`, which requires a gradient by itself and is kept until it has one; `copies`: that is a copy."""
    shape, dtype, size = out.shape, out.dtype, out.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        if copies:
            _own = aten.new(tape, shape, dtype, "grad_patches", size, Kernel.COPY)
        return [None]

    return tape.node((Tensor(None, (), "fp32", Node()),), (out,), backward)


def front(tape: Tape, out: Tensor, made: dict[str, Tensor], node: Node | None, kept: Sequence[str]) -> RecordedLayer:
    """Recording of the front of a tower, which hands on `out` and leaves what it has `made` to layers, by name.

    The end of the tower frees that, but of `kept` with a `node`: its backward does.
    """
    hand_on(tape, out)
    if node is not None:
        tape.save(node, *(made.pop(name) for name in kept))
    for name, tensor in made.items():
        tape.rename(tensor.storage, tape.slot(name, "activation"))
        tensor.disown()
    made.clear()
    forward = tape.cut()
    back = run_backward(tape, out, None, nothing) if out.node is not None else Section(())
    return RecordedLayer(forward, back, grads=tape.release_grads())


def entered(tape: Tape, run: LayerWorkload, shape: tuple[int, ...], dtype: str,
            down: int = BEFORE) -> tuple[Tensor, Node | None]:
    """(output of the tower, of `shape`, as its end takes it in; its node, if gradients reach it).

    `down`: layers to the one whose output it is.
    """
    patches = tape.external(shape, dtype, HIDDEN, down)
    patches.node = Node() if run.input_requires_grad else None
    return patches, patches.node


def regrouped(tape: Tape, x: Tensor, name: str) -> Tensor:
    """Parts of `x` for each image, which are views of one, joined again: a copy, as is the gradient."""
    shape, dtype, size = x.shape, x.dtype, x.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [aten.new(tape, shape, dtype, "grad_split", size, Kernel.COPY)]

    node = tape.node((x,), (), backward)
    out = aten.new(tape, shape, dtype, name, size, Kernel.COPY)
    out.node = node
    return out


def merged(tape: Tape, block: TowerEnd, run: LayerWorkload, mask: Tensor,
            features: Tensor) -> tuple[Tensor, Node | None]:
    """(the sequence with image tokens, node of the embedding's output if it needs a gradient).

    `mask`: of image tokens, a byte each; `features`: the tokens of all images.
    """
    embedded = tape.external((run.batch, run.seq, block.hidden), stream_dtype(run), HIDDEN, -block.below)
    embedded.node = Node() if run.embedding_trains else None
    if run.embedding_stays:
        embedded.disown()
    return masked_scatter(tape, embedded, mask, features), embedded.node


def end(tape: Tape, out: Tensor, patches: Node | None, embedded: Node | None) -> Section:
    """Backward of the end of a tower, from the gradient of the sequence `out` to those of what it was made of.

    `patches`, `embedded`: nodes of the tower's output and of the embedding's; None if it needs none. A trained tower's
    is `grad_hidden_states`, and then the embedding's has a name of its own.
    """
    if patches is None:
        return run_backward(tape, out, embedded, nothing)

    def hand_over(tape: Tape) -> None:
        if embedded is not None:
            hand_back(tape, embedded, tape.slot(GRAD_EMBEDDED, "backward_temp"))

    return run_backward(tape, out, patches, hand_over)


def ended(tape: Tape, run: LayerWorkload, modules: Modules, out: Tensor, nodes: tuple[Node | None, Node | None], *,
          behind: list[Tensor], held: list[Tensor], features: list[Tensor]) -> RecordedLayer:
    """Recording of a tower's end, behind what the model then makes for its layers.

    `out`: the embedded sequence; `nodes`: of the patches and of the embedding's output. `behind`, `held`: tensors that
    live until the model's forward is over, those of the tower and masks; `features`: joined tokens, which leave the
    model in its output. The lists are the last to name their tensors, and get empty.
    """
    hand_on(tape, out)
    forward = tape.cut()
    behind.clear()
    held.clear()
    late = tape.cut()
    if run.no_grad or modules.drops_output:
        features.clear()
    dropped = tape.cut()
    backward = end(tape, out, *nodes)
    made = RecordedLayer(forward, backward, late=late, grads=tape.release_grads(), casts=dropped)
    features.clear()
    tape.graph.clear()
    return replace(made, release=tape.cut())
