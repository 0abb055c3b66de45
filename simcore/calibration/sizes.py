"""Sizes of a model's kernels, read from its layers."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.models.blocks import (
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    Head,
    LatentAttention,
    LayerKind,
    Mamba2,
    Mixer,
    Mlp,
    Moe,
)
from simcore.models.graph import layer_kinds, model_config

__all__ = ["Core", "Product", "Sizes", "sizes_of"]


@dataclass(frozen=True, slots=True)
class Product:
    """One linear layer as a matrix product: (rows, k) times (k, n), so k inputs and n outputs."""

    name: str
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class Core:
    """Attention of one layer without its projections: numbers of query and of key heads, and widths of heads.

    `heads`: query heads; `kv_heads`: key (and value) heads; `dim`: width of a query or key head; `value`: of a value
    head.
    """

    heads: int
    kv_heads: int
    dim: int
    value: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one model's kernels; parts that it lacks are None or empty.

    `hidden`: width; `vocab`: rows of the output head; `products`: its different linear layers, head included, routed
    experts not; `core`, `mamba`, `moe`: of the first layer that has one; `grouped`: the two linears of one routed
    expert (gate and up are one).
    """

    hidden: int
    vocab: int
    products: tuple[Product, ...]
    core: Core | None
    mamba: Mamba2 | None
    moe: Moe | None
    grouped: tuple[Product, ...]


def sizes_of(model: str, where: str = "model") -> Sizes:
    """Sizes of the kernels of `model`, a preset or the path of a `config.json`.

    InputError, at `where` or at the file's line, if it is unknown or cannot be read.
    """
    kinds = layer_kinds(model_config(model, None, where), where)
    blocks = [branch.block for kind in kinds for branch in kind.branches]
    head = next(kind.block for kind in kinds if isinstance(kind.block, Head))
    moe = next((block for block in blocks if isinstance(block, Moe)), None)
    return Sizes(
        head.hidden, head.vocab, tuple(dict.fromkeys(product for kind in kinds for product in _products(kind))),
        next((_core(block) for block in blocks if isinstance(
            block, Attention | CompressedAttention | LatentAttention)), None),
        next((block for block in blocks if isinstance(block, Mamba2)), None),
        moe, _two("expert", moe.expert_ffn, moe.expert_hidden, gated=moe.gated) if moe else ())


def _products(kind: LayerKind) -> list[Product]:
    products = [product for branch in kind.branches for product in _of_block(branch.block)]
    if isinstance(kind.block, Head):
        products.append(Product("head", kind.block.vocab, kind.block.hidden))
    return products


def _of_block(block: Mixer) -> tuple[Product, ...]:
    match block:
        case Attention():
            return (Product("qkv", block.q_size * (1 + block.gated) + 2 * block.kv_size, block.hidden),
                    Product("attention_out", block.hidden, block.q_size))
        case LatentAttention():
            return _latent(block)
        case CompressedAttention():
            return (Product("q_down", block.q_rank, block.hidden), Product("q_up", block.q_size, block.q_rank),
                    Product("key", block.head_dim, block.hidden),
                    Product("attention_out", block.hidden, block.groups * block.group_rank))
        case GatedDeltaNet():
            return (Product("delta_in", block.conv_dim + block.values, block.hidden),
                    Product("delta_out", block.hidden, block.values))
        case Mamba2():
            return Product("mamba_in", block.in_proj, block.hidden), Product("mamba_out", block.hidden, block.inner)
        case Mlp():
            return _two("mlp", block.ffn, block.hidden, gated=block.gated)
        case Moe() if block.shared_ffn:
            return _two("shared_expert", block.shared_ffn, block.hidden, gated=block.gated)
    return ()


def _latent(block: LatentAttention) -> tuple[Product, ...]:
    query = (Product("q_down", block.q_rank, block.hidden), Product("q_up", block.q_size, block.q_rank)) \
        if block.q_rank else (Product("q", block.q_size, block.hidden),)
    return (*query, Product("kv_down", block.kv_rank + block.rope, block.hidden),
            Product("kv_up", block.kv_size, block.kv_rank), Product("attention_out", block.hidden, block.out_size))


def _two(name: str, ffn: int, hidden: int, *, gated: bool) -> tuple[Product, ...]:
    return Product(f"{name}_1", ffn * (2 if gated else 1), hidden), Product(f"{name}_2", hidden, ffn)


def _core(block: Attention | CompressedAttention | LatentAttention) -> Core:
    if isinstance(block, CompressedAttention):
        return Core(block.num_heads, 1, block.head_dim, block.head_dim)
    if isinstance(block, Attention):
        return Core(block.num_heads, block.num_kv_heads, block.head_dim, block.head_dim)
    return Core(block.num_heads, block.num_heads, block.nope + block.rope, block.value)
