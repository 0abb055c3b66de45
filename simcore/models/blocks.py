"""The blocks that layers are made of: architecture only, no implementation and no parallelism.

A layer is a chain of residual branches `x + block(norm(x))`. Norms are RMSNorm, with `layer_norm` LayerNorm with a bias
(or, with `norm_bias` false, without).
"""

from __future__ import annotations

from dataclasses import dataclass

from simcore.models.compressed_blocks import CompressedAttention, Indexer, Streams
from simcore.models.decoder_stem import OwnInput
from simcore.models.vision_blocks import VisionPart

__all__ = ["Attention", "Block", "Branch", "CompressedAttention", "Embedding", "FinalNorm", "GatedDeltaNet", "Head",
           "Indexer", "LatentAttention", "LayerKind", "Loss", "Mamba2", "Mixer", "Mlp", "Moe", "Mtp",
           "SharedTransformer", "Streams"]


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention; `rotary`: rotary position embedding on q and k.

    `bias`: "" none, "qkv" of query, key and value, "all" of the output projection too. `qk_norm`: a norm like the
    layer's over each head of q and of k. `sinks`: one learned number a head in the softmax. `window`: tokens seen, 0
    all. `dropout`: some of the softmax is dropped. `alibi`: a bias that falls with the distance of two tokens is added
    to their score. `rotated`: dimensions of a head that are rotated, 0 all. `capped`: scores are kept below a limit.
    `whole_norms`: norms of q and of k are over all heads together. `gated`: the query's projection is twice as wide,
    and a sigmoid of its second half weighs each head's output. `value_norm`: a norm without a weight over each head of
    values. `values_from_keys`: values are the keys' products before norm and rotation. `two_way`: tokens of an image
    see each other, by a mask. `borrows`: keys and values are an earlier layer's, it has no projections of them; `lent`:
    layers up to the next that uses its keys and values, 0 none. `unit_norms`: norms without a weight over heads of q
    and k, behind their rotation. `tempered`: q is multiplied by a number of its position. `chunk`: tokens of a chunk,
    of which a token sees its own, 0 all. `value`: size of a head of values, 0 that of a key. `head_gates`: a sigmoid of
    a product with the input, a number for each head, weighs what the head puts out.
    """

    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary: bool = False
    bias: str = ""
    qk_norm: bool = False
    sinks: bool = False
    window: int = 0
    dropout: bool = False
    alibi: bool = False
    rotated: int = 0
    capped: bool = False
    whole_norms: bool = False
    gated: bool = False
    value_norm: bool = False
    values_from_keys: bool = False
    two_way: bool = False
    borrows: bool = False
    lent: int = 0
    unit_norms: bool = False
    tempered: bool = False
    chunk: int = 0
    value: int = 0
    head_gates: bool = False

    @property
    def q_size(self) -> int:
        """Elements of all query heads of a token."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Elements of all key heads of a token; those of its values are as many."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention: q, and k with v, are projected down to a rank and up again.

    `q_rank` 0: the query is not compressed. `nope`, `rope`: sizes of a query head without and with rotation (all heads
    share one rotated key); `value`: size of a value head. `inner_norms`: what was projected down passes a norm on its
    way up. `bias`: of the output projection. `dropout`: of the softmax. `indexer`: chooses the keys of each query.
    `tempered`: as of `Attention`.
    """

    hidden: int
    num_heads: int
    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int
    inner_norms: bool = True
    bias: bool = False
    dropout: bool = False
    indexer: Indexer | None = None
    tempered: bool = False

    @property
    def q_size(self) -> int:
        """Elements of all query heads of a token, rotated parts included."""
        return self.num_heads * (self.nope + self.rope)

    @property
    def kv_size(self) -> int:
        """Elements of a token's keys, without their rotated part, and values, of all heads."""
        return self.num_heads * (self.nope + self.value)

    @property
    def out_size(self) -> int:
        """Elements of all value heads of a token, which the output projection takes."""
        return self.num_heads * self.value


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A Mamba-2 mixer: projection, convolution, scan (state-space duality), gated RMSNorm, projection.

    `state`: size of the recurrent state; `conv_kernel`: width of the convolution; `chunk`: tokens of a chunk of the
    scan. `bias`: of both projections; `conv_bias`: of the convolution. `normed`: the gate's product passes a norm.
    """

    hidden: int
    num_heads: int
    head_dim: int
    num_groups: int
    state: int
    conv_kernel: int
    chunk: int
    bias: bool = False
    conv_bias: bool = True
    normed: bool = True

    @property
    def inner(self) -> int:
        """Elements of all heads of a token."""
        return self.num_heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """Number of channels of the convolution: x, B and C."""
        return self.inner + 2 * self.num_groups * self.state

    @property
    def in_proj(self) -> int:
        """Elements of a token's output of the input projection: z, x, B, C and dt."""
        return self.inner + self.conv_dim + self.num_heads


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Linear attention by the gated delta rule: projections, convolution, the rule, gated RMSNorm, projection.

    `key_dim`, `value_dim`: sizes of a head of query and key, and of value; `conv_kernel`: width of the convolution of
    query, key and value. `joint`: query, key, value and gate are one projection, decay and learning rate (a number for
    each value head) another; else there are four, the first of query, key and value.
    """

    hidden: int
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    joint: bool = False

    @property
    def keys(self) -> int:
        """Elements of all key heads of a token; those of its queries are as many."""
        return self.num_key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Elements of all value heads of a token; those of the gate and of the output are as many."""
        return self.num_value_heads * self.value_dim

    @property
    def conv_dim(self) -> int:
        """Number of channels of the convolution: query, key and value."""
        return 2 * self.keys + self.values


@dataclass(frozen=True, slots=True)
class Moe:
    """Routed experts of width `expert_ffn`, and a shared expert of width `shared_ffn` (0: none).

    `gated`: SwiGLU (three matrices), `gelu`: GELU, else relu^2 (two). `router`: "sigmoid" (a buffer corrects the scores
    for the choice; of "sqrtsoftplus" too), "softmax" before the choice of `top_k`, "topk_softmax" after it,
    "scaled_softmax" as "softmax" of a normed and scaled input, with a number for each expert behind the choice.
    `normalised`: weights of the chosen add up to one. `bias`: routed experts have biases; in HF the logits of
    "topk_softmax" have one only then. `shared_gate`: a sigmoid of a product with the input weighs the shared expert's
    output. `latent` > 0: routed experts see so many columns, between a projection down and one up of every token;
    router and shared expert see all. A token's experts are all in `chosen_groups` of `num_groups` equal groups.
    `weighs_input`: weights multiply what experts are given, not what they put out. `table`: tokens of the vocabulary in
    a table that says their experts, 0 if scores do. `clamped`: what gates and their linear parts put out is kept below
    a limit.
    """

    hidden: int
    num_experts: int
    top_k: int
    expert_ffn: int
    shared_ffn: int
    gated: bool = False
    router: str = "sigmoid"
    normalised: bool = True
    bias: bool = False
    gelu: bool = False
    shared_gate: bool = False
    latent: int = 0
    num_groups: int = 1
    chosen_groups: int = 1
    weighs_input: bool = False
    table: int = 0
    clamped: bool = False

    @property
    def expert_hidden(self) -> int:
        """Elements of a token as it is sent to routed experts: `latent` if that is set, else `hidden`."""
        return self.latent or self.hidden


@dataclass(frozen=True, slots=True)
class Mlp:
    """A dense MLP. `gated`: three matrices (SwiGLU; GELU if `gelu`), else two (relu^2, GELU). `bias`: of them."""

    hidden: int
    ffn: int
    gated: bool = True
    gelu: bool = False
    bias: bool = False


@dataclass(frozen=True, slots=True)
class SharedTransformer:
    """Attention and a gated GELU MLP whose weights several layers share, each with adapters (Zamba2).

    It reads the layer's input and the embedding's output, concatenated to 2h columns, and ends in a projection that
    belongs to the layer. `places`: numbers of the layers that use it, among those with such a block; it holds an
    adapter for each. `rank`: of these low-rank adapters, which query, key and value have too where `adapts_attention`.
    `name`: the module inside each of those layers; equal ones are the same module.
    """

    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    rank: int
    places: tuple[int, ...]
    adapts_attention: bool
    rotary: bool
    name: str = "shared_transformer"


@dataclass(frozen=True, slots=True)
class Embedding:
    """The token embedding (`vocab` x `hidden`), and what a model makes before its layers.

    `rotary_dim` > 0: cos and sin tables for the layers. `positions`: number of learned position vectors, 0 none.
    `shared`: multi-token prediction looks tokens up in it too. `window` > 0: a mask for layers that see this many
    tokens, if sequences are as long or longer. `further_dim`: columns of a second pair of rotary tables, 0 none.
    `tower`: number of parts of a vision tower that run before what is made for the layers; the last of them makes it.
    `streams`: number of residual streams that are made of its output; 0: there is one.
    """

    vocab: int
    hidden: int
    rotary_dim: int = 0
    positions: int = 0
    shared: bool = False
    window: int = 0
    further_dim: int = 0
    tower: int = 0
    streams: int = 0


@dataclass(frozen=True, slots=True)
class FinalNorm:
    """The norm after the last layer: RMSNorm, or LayerNorm if `layer_norm`, with a bias if `norm_bias`.

    `streams`: number of residual streams that are summed to one first, by weights of each token; 0: there is one.
    """

    hidden: int
    layer_norm: bool = False
    norm_bias: bool = True
    streams: int = 0


@dataclass(frozen=True, slots=True)
class Mtp:
    """Multi-token prediction: a module that predicts one token further.

    It has two norms, a projection of both halves, one layer and a final norm. `modules`: number of modules in a row.
    `depths`: number of times that each runs, on its previous output (mtp_use_repeated_layer). The layer is its kind's
    branches, in a hybrid several layers; embedding and output projection are those of the model, one weight if `tied`.
    `sees`: the model reads images.
    """

    hidden: int
    vocab: int
    modules: int = 1
    depths: int = 1
    tied: bool = False
    sees: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """The output projection from `hidden` to `vocab`; `tied`: its weight is the embedding's.

    `shared`: number of its runs for further tokens (multi-token prediction). `capped`: logits are kept below a limit.
    `bias`: it has a bias.
    """

    vocab: int
    hidden: int
    tied: bool = False
    shared: int = 0
    capped: bool = False
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """Cross entropy over the logits. `upcast`: the model casts logits to fp32 before the loss (NemotronH).

    `further`: it comes after losses of further tokens (multi-token prediction).
    """

    vocab: int
    upcast: bool = False
    further: bool = False


Mixer = Attention | LatentAttention | CompressedAttention | Mamba2 | GatedDeltaNet | Moe | Mlp
Part = Embedding | FinalNorm | Head | Loss | Mtp | VisionPart
Block = Mixer | Part


@dataclass(frozen=True, slots=True)
class Branch:
    """One residual branch of a layer: `x + block(norm(x))`, `x + behind(block(norm(x)))` or `x + behind(block(x))`.

    `norm`, `name`, `behind`: module names of the norm, the block, and the norm behind it ("": no norm). `layer_norm`:
    True for LayerNorm, else RMSNorm; `norm_bias`: the LayerNorm has a bias.
    """

    norm: str
    name: str
    block: Mixer
    layer_norm: bool = False
    norm_bias: bool = True
    behind: str = ""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers that are alike, or one of the parts around them (embedding, norm, head, loss).

    `block`: a part around layers; None for a layer, which has `branches` (multi-token prediction: both). `family` tells
    implementations which modelling code runs: the `model_type` of the configuration, or of its text part. A model runs
    its kinds in the order embedding, parts of a vision tower, layers, final norm, head, loss; modules of multi-token
    prediction stand before the head. `dropout`: some of what is added to the residual stream is dropped, or of the
    embedding's output. `fp8`: linears compute in 8 bits (a framework may leave the first and last layers in 16).
    `scaled`: what a block adds is multiplied by a number first, or the embedding's output, or the logits. `wide`: the
    residual stream is fp32. `tables`: columns of the rotary tables that pass by for other layers. `shared`: a
    transformer in front of the branches, whose output the first of them reads too. `beside`: all branches read the
    output of the first one's norm, and their outputs are added to the stream at the end. `paired`: so do the first two,
    whose sum is added to the stream before the others. `fed`: tokens of an image to which the model adds features
    behind the layer; `behind_fed`: it does so behind the layer before. `scales_output`: a number in a buffer multiplies
    the layer's output in place. `own_input`: an input that is the layer's alone. `joined`: the last two branches read
    the same stream, to which their sum is added behind a norm of this name; "": each is a residual branch. `streams`:
    there are several residual streams.
    """

    name: str
    family: str
    hidden: int
    branches: tuple[Branch, ...] = ()
    block: Part | None = None
    dropout: bool = False
    fp8: bool = False
    scaled: bool = False
    wide: bool = False
    shared: SharedTransformer | None = None
    tables: int = 0
    beside: bool = False
    paired: bool = False
    fed: int = 0
    behind_fed: bool = False
    scales_output: bool = False
    own_input: OwnInput | None = None
    joined: str = ""
    streams: Streams | None = None
