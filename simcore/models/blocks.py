"""The blocks that layers are made of: architecture only, no implementation and no parallelism.

`h` is the hidden size everywhere. A layer is a chain of residual branches `x + block(norm(x))`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Attention", "Block", "Branch", "Embedding", "FinalNorm", "Head", "LayerKind", "Loss", "Mamba2", "Mixer",
           "Mlp", "Moe"]


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention; `rotary`: rotary position embedding on q and k."""

    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary: bool = False

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A Mamba-2 mixer (state-space duality), gated RMSNorm, output projection."""

    hidden: int
    num_heads: int
    head_dim: int
    num_groups: int
    state: int
    conv_kernel: int
    chunk: int

    @property
    def inner(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.inner + 2 * self.num_groups * self.state

    @property
    def in_proj(self) -> int:
        """Rows of the input projection: z, x, B, C, dt."""
        return self.inner + self.conv_dim + self.num_heads


@dataclass(frozen=True, slots=True)
class Moe:
    """Routed experts with a shared expert. `gated`: SwiGLU experts (three matrices), else relu^2 (two)."""

    hidden: int
    num_experts: int
    top_k: int
    expert_ffn: int
    shared_ffn: int
    gated: bool = False


@dataclass(frozen=True, slots=True)
class Mlp:
    """A dense MLP. `gated`: SwiGLU, else relu^2."""

    hidden: int
    ffn: int
    gated: bool = True


@dataclass(frozen=True, slots=True)
class Embedding:
    """The token embedding. `rotary_dim` > 0: the stem makes cos and sin tables for the layers."""

    vocab: int
    hidden: int
    rotary_dim: int = 0


@dataclass(frozen=True, slots=True)
class FinalNorm:
    """The RMSNorm after the last layer."""

    hidden: int


@dataclass(frozen=True, slots=True)
class Head:
    """The output projection; `tied`: its weight is the embedding's."""

    vocab: int
    hidden: int
    tied: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """Cross entropy over the logits. `upcast`: the model casts logits to fp32 before the loss (NemotronH)."""

    vocab: int
    upcast: bool = False


Mixer = Attention | Mamba2 | Moe | Mlp
Block = Mixer | Embedding | FinalNorm | Head | Loss


@dataclass(frozen=True, slots=True)
class Branch:
    """One residual branch of a layer: module names of the norm and the block, and the block."""

    norm: str
    name: str
    block: Mixer


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers that are alike, or one of the parts around them (embedding, norm, head, loss).

    `family` tells implementations which modelling code runs (nemotron_h, llama). A model runs its kinds in the order
    embedding, layers, final norm, head, loss.
    """

    name: str
    family: str
    hidden: int
    branches: tuple[Branch, ...] = ()
    block: Embedding | FinalNorm | Head | Loss | None = None
