"""Attention of NeMo Automodel's Qwen 3.5 (nemo-automodel 0.7.0, `components/models/qwen3_next/layers.py`), its tables.

[Note: attention with a gate]
`Qwen3NextAttention.forward`: the query's projection has a gate in the second half of each head, which is copied; norms
of query and key are plain operators, their rotation is Qwen3-MoE's. Query, key and value are copied to lie by heads for
SDPA, not for TE; the output is multiplied by a sigmoid of the gate.

[Note: tables of grids]
`components/models/{qwen3_5*,qwen3_vl_moe}`: cosines and sines of each token in the type of the stream, of which half
stands side by side in `freqs_cis`, and position ids, which images make [3, batch, sequence] of (`get_rope_index`).
Attention keeps `freqs_cis`, checkpoints what they are given besides: positions, of Qwen 3 VL the mask of padding. The
rest lives until the model returns, places of one sequence (`cache_position`) too.

[Note: a further token]
`components/models/qwen3_5/model.py`, Qwen3_5DenseMTPSublayer: transformers' decoder layer with SDPA behind the fusion
of both streams, with tables of its own; nothing replays it.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcore.models.blocks import Attention, LayerKind
from simcore.operators.automodel.dense import rotated, turned
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.layers import by_heads, linear, mlp, te_attention
from simcore.operators.automodel.sparse import OF_GRIDS, QWEN3_5
from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import BEFORE
from simcore.operators.shared.rms_norm import rms_norm_from_zero
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["StemTables", "further_layer", "gated_attention", "kept_on_stage", "make_tables", "stem_tables"]

_Spec = tuple[tuple[int, ...], str]


def gated_attention(env: Env, x: Tensor, block: Attention, path: str) -> Tensor:
    """[Note: attention with a gate]: output for `x` [batch, sequence, hidden], in x's shape.

    `path`: its module's name in the layer.
    """
    tape, dim, by_te = env.tape, block.head_dim, not env.options.sdpa
    both, k, v = (linear(env, x, f"{path}.{part}_proj") for part in "qkv")
    q, gate = aten.chunk(tape, aten.to_heads(tape, both, 2 * dim))
    del both
    gate = aten.contiguous(tape, gate, "gate").view(*x.shape[:2], block.q_size)
    q = rms_norm_from_zero(tape, env.param(f"{path}.q_norm.weight"), q)
    k = aten.to_heads(tape, k, dim)
    k = rms_norm_from_zero(tape, env.param(f"{path}.k_norm.weight"), k)
    v = aten.to_heads(tape, v, dim)
    q, k = rotated(tape, q, k)
    if by_te:
        out = te_attention(env, q, k, v)
    else:
        parts = [q, k, v]
        del q, k, v
        out = by_heads(env, parts)
    out = aten.mul(tape, out.view(*x.shape[:2], block.q_size), aten.sigmoid(tape, gate), "gated")
    return linear(env, out, f"{path}.o_proj")


def further_layer(env: Env, kind: LayerKind, x: Tensor) -> Tensor:
    """Output of the layer that predicts a further token, for `x` [batch, sequence, hidden], in x's shape.

    [Note: a further token]. The kind's branches are attention and an MLP.
    """
    tape, run = env.tape, env.run
    table: tuple[int, ...] = (run.batch, run.seq, 1, _rotated(kind))
    cos, sin = (tape.empty(table, run.compute, f"further.{name}") for name in ("cos", "sin"))
    for branch in kind.branches:
        residual = x
        tape.scope = f"{branch.norm}."
        x = rms_norm_from_zero(tape, env.param(f"{branch.norm}.weight"), x)
        tape.scope = f"{branch.name}."
        if isinstance(branch.block, Attention):
            x = _further_attention(env, x, branch.block, branch.name, (cos, sin))
        else:
            x = mlp(env, x, branch.name, gated=True)
        tape.scope = ""
        x = aten.add(tape, residual, x, "residual")
    return x


def _further_attention(env: Env, x: Tensor, block: Attention, path: str, tables: tuple[Tensor, Tensor]) -> Tensor:
    """`Qwen3_5Attention`: query and key are rotated by plain operators, and SDPA is given them as they lie."""
    tape, dim = env.tape, block.head_dim
    q, gate = aten.chunk(tape, aten.to_heads(tape, linear(env, x, f"{path}.q_proj"), 2 * dim))
    gate = aten.contiguous(tape, gate, "gate").view(*x.shape[:2], block.q_size)
    q = rms_norm_from_zero(tape, env.param(f"{path}.q_norm.weight"), q)
    k = aten.to_heads(tape, linear(env, x, f"{path}.k_proj"), dim, copy_grad=True)
    k = rms_norm_from_zero(tape, env.param(f"{path}.k_norm.weight"), k)
    v = aten.to_heads(tape, linear(env, x, f"{path}.v_proj"), dim)
    q, k = _partly_turned(tape, q, k, tables)
    out = aten.contiguous(tape, aten.scaled_dot_product_attention(tape, q, k, v), "attention")
    out = aten.mul(tape, out.view(*x.shape[:2], block.q_size), aten.sigmoid(tape, gate), "gated")
    return linear(env, out, f"{path}.o_proj")


def _partly_turned(tape: Tape, q: Tensor, k: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Query and key, whose first dimensions are rotated and joined with the rest."""
    size = tables[0].shape[-1]
    parts = [(aten.slice_last(tape, x, size), aten.slice_last(tape, x, x.shape[-1] - size)) for x in (q, k)]
    q, k = (turned(tape, first, tables) for first, _ in parts)
    return aten.cat(tape, q, parts[0][1]), aten.cat(tape, k, parts[1][1])


@dataclass(slots=True)
class StemTables:
    """Tables whose deaths a layer records: `late` when the model returns, `kept` at the end of its backward."""

    late: list[Tensor]
    kept: list[Tensor]

    def drop_late(self) -> None:
        """Records the deaths of what the model's variables alone hold."""
        self.late.clear()

    def drop(self) -> None:
        """Records the deaths of what the layers' nodes hold."""
        self.kept.clear()


def _specs(env: Env, family: str, dim: int) -> dict[str, _Spec]:
    """(shape, dtype) by name, in the order in which they are made; `dim`: rotated dimensions of a head.

    `family`: of the decoder or of its tower.
    """
    run, seen = env.run, env.options.masks_padding
    table: _Spec = ((run.batch, run.seq, dim), run.compute)
    positions = (3, run.batch, run.seq) if seen else (run.seq,)
    masks: dict[str, _Spec] = {"padding_mask": ((run.batch, run.seq), "uint8")} if seen else {}
    if family.startswith("qwen3_vl") or (seen and family.startswith("qwen3_5")):
        masks["cache_position"] = ((run.seq,), "int64")
    return {"position_ids": (positions, "int64"), **masks, "rotary.cos": table, "rotary.sin": table,
            "freqs_cis": table}


def make_tables(env: Env, family: str, dim: int) -> None:
    """Records the tables of a model whose heads have `dim` rotated dimensions; its first layer frees them.

    `family`: of the decoder or of its tower.
    """
    for name, (shape, dtype) in _specs(env, family, dim).items():
        made = env.tape.empty(shape, dtype, name)
        env.tape.rename(made.storage, env.tape.slot(name, "activation"))
        made.disown()


def stem_tables(env: Env, kind: LayerKind) -> StemTables:
    """The tables that this layer frees, of a model with grids.

    The first layer, behind their maker, frees those that no layer keeps. It frees the others too, or the lowest layer
    with the mixer that keeps a table frees it.
    """
    run = env.run
    if kind.family not in OF_GRIDS or not (run.first or run.stem):
        return StemTables([], [])
    specs, kept = _specs(env, kind.family, kind.tables or _rotated(kind)), _kept(env, kind.family)
    mine = [name for name in kept if name in specs and (_keeps(kind, name) if _by_mixer(env, kind) else run.first)]
    late = [name for name in specs if name not in kept] if run.first else []

    def given(name: str) -> Tensor:
        return env.tape.external(*specs[name], env.tape.slot(name, "activation"), BEFORE * (run.stem or 1))

    return StemTables([given(name) for name in late], [given(name) for name in mine])


def _by_mixer(env: Env, kind: LayerKind) -> bool:
    """True if a table is kept by layers with one mixer alone; a checkpoint of a whole layer keeps all."""
    whole = env.run.checkpoint == "full" and not _is_apart(env, kind.family)
    return kind.family in QWEN3_5 and env.options.frees_tables_by_mixer and not whole


def _keeps(kind: LayerKind, name: str) -> bool:
    return (name == "freqs_cis") == isinstance(kind.branches[0].block, Attention)


def _is_apart(env: Env, family: str) -> bool:
    """True if a layer's parts are checkpoints apart, where there are any."""
    return family in QWEN3_5 and env.run.ep == 1


def _kept(env: Env, family: str) -> list[str]:
    """Names of the tables that a layer keeps for its backward: attention angles, checkpoints what they are given.

    A Qwen 3.5's parts are checkpoints apart without expert parallelism, of which a delta net alone is given positions
    (`components/models/qwen3_5/model.py`, Qwen3_5DenseBlock).
    """
    options, whole, apart = env.options, env.run.checkpoint == "full", _is_apart(env, family)
    angles = options.attends or (whole and not apart)
    given = whole and (options.recurs or not apart)
    names = {"freqs_cis": angles, "position_ids" if family in QWEN3_5 else "padding_mask": given}
    return [name for name, kept in names.items() if kept and not env.run.no_grad]


def kept_on_stage(family: str, run: LayerWorkload, dim: int) -> dict[str, int]:
    """Bytes by name of what the layers of a stage after the first keep of its tables; `dim`: of a head, rotated.

    {} for Qwen 3.5, whose stages are refused.
    """
    if family in QWEN3_5:
        return {}
    given = {"padding_mask": run.tokens} if run.checkpoint == "full" else {}
    return {"freqs_cis": run.tokens * dim * dtype_bytes(run.compute), **given}


def _rotated(kind: LayerKind) -> int:
    block = kind.branches[0].block
    return (block.rotated or block.head_dim) if isinstance(block, Attention) else 0
