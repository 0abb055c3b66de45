"""Tensors that a model makes before its layers, or in its first step, and that its layers share.

nemo-automodel 0.7.0 `components/models/*/model.py`, `components/distributed/pipelining/hf_utils.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simcore.errors import NotYet, Problem
from simcore.models.blocks import Attention, CompressedAttention, Embedding, LatentAttention, LayerKind
from simcore.models.placed_blocks import MoonPatches
from simcore.operators.automodel.compressed.stem import EMBEDDED, bytes_of, given_to_layers, make_given
from simcore.operators.automodel.dense import DENSE, is_eager, made_mask
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.latent import received_keys
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.automodel.qwen3_5 import kept_on_stage
from simcore.operators.automodel.sparse import OF_GRIDS, QWEN3_5, SPARSE, is_eager_sparse, makes_tables
from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import BEFORE
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Tensor
from simcore.units import dtype_bytes

__all__ = ["by_parts", "held_for_streams", "stage_passing", "stage_stem", "standing", "tables_of_stem"]


_POSITIONS = 512
"""Rows and columns of places of patches in Kimi-VL's tower (0.7.0 `models/kimivl/model.py`, MoonVitEncoder)."""


def standing(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> dict[str, int]:
    """Bytes that the first step makes and that stay: "rotary_cache" of dense models, "block_masks" of flex attention.

    Tables: fp32 cosines and sines of every position so far: `models/llama/rope_utils.py`,
    LlamaRotaryEmbedding._build_cache; of Kimi-VL's tower complex numbers of a square of places
    (`models/kimivl/model.py`, Rope2DPosEmb.freqs_cis). Masks: one of each window ([Note: flex attention] in
    `operators/shared/aten/flex.py`).
    """
    found = [2 * 4 * run.seq * run.cp * block.block.head_dim for kind, run in runs if kind.family in DENSE
             for block in kind.branches if isinstance(block.block, Attention)]
    masks = {block.block.window: aten.block_masks(run.seq, run.batch * block.block.num_heads) for kind, run in runs
             for block in kind.branches if isinstance(block.block, Attention) and AutomodelOptions.of(run.options).flex}
    found += [_POSITIONS**2 * 8 * (block.rotary_dim // 2) for kind, _ in runs
              if isinstance(block := kind.block, MoonPatches)]
    return {"rotary_cache": max(found, default=0), **({"block_masks": sum(masks.values())} if masks else {})}


def stage_stem(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> dict[str, int]:
    """Bytes by name of angles, and of positions that checkpoints keep, which each stage makes for its own layers.

    0.7.0 `distributed/pipelining/hf_utils.py`, create_pipeline_forward_inner; the models of `sparse` in their own
    forward. Nemotron-H has none.
    """
    if _is_checkpointed(runs):
        return _of_streams(runs)
    if any(makes_tables(kind.family) for kind, _ in runs):
        return _tables_beside_own(runs, dropped=False)
    attending = ((kind, run, branch.block) for kind, run in runs if kind.family != "nemotron_h"
                 for branch in kind.branches)
    for kind, run, block in attending:
        if isinstance(block, Attention | LatentAttention):
            dim = block.rope if isinstance(block, LatentAttention) else block.rotated or block.head_dim
            if kind.family in OF_GRIDS:
                return kept_on_stage(kind.family, run, dim)
            return {name: math.prod(shape) * dtype_bytes(dtype) for name, shape, dtype in (
                *_angles(kind, run, dim), *received_keys(run, block))}
    return {}


def tables_of_stem(env: Env, kind: LayerKind, block: Embedding) -> list[Tensor]:
    """Angles, and positions that a checkpoint keeps, in the order in which the stem makes them.

    Raises NotYet for a model whose masks and two pairs of tables have not been read (MiMo-V2-Flash).
    """
    tape, run = env.tape, env.run
    if block.tower and kind.family == "deepseek_v3":
        return []  # behind the tower, whose end makes them (`operators/hf/vision/moon.py`)
    if is_eager_sparse(kind.family):
        raise NotYet(Problem("model", f"not yet: masks and tables that Automodel's model of {kind.family} makes for "
                             "its layers; placement is served"))
    if block.streams:
        made = make_given(tape, run, block.rotary_dim)
        if run.checkpoint == "full" and not run.no_grad:
            return made
        for one in made:
            one.disown()
        return []
    if makes_tables(kind.family) and (run.checkpoint != "full" or run.no_grad):  # no layer reads them
        for shape, dtype, name in ((shape, dtype, name) for name, shape, dtype in _angles(kind, run, block.rotary_dim)):
            tape.empty(shape, dtype, name).disown()
        return []
    mask = [made_mask(env)] if is_eager(env, kind.family) else []
    if mask and run.checkpoint != "full":
        mask.pop().disown()
    return mask + [tape.empty(shape, dtype, name) for name, shape, dtype in _angles(kind, run, block.rotary_dim)]


def held_for_streams(env: Env, kind: LayerKind) -> list[Tensor]:
    """Tensors that a model drops when it returns, of which its first layer records the deaths.

    What layers with residual streams are given, and tables of a model whose layers make their own.
    """
    run, first = env.run, kind.branches[0].block if kind.branches else None
    drops = makes_tables(kind.family) and (run.checkpoint != "full" or run.no_grad)
    if drops and run.first and isinstance(first, Attention):
        return [env.tape.external(shape, dtype, env.tape.slot(name, "activation"), BEFORE)
                for name, shape, dtype in _angles(kind, run, first.rotated)]
    if not (kind.streams and run.first and isinstance(first, CompressedAttention)):
        return []
    given = [] if run.checkpoint == "full" and not run.no_grad else given_to_layers(run, first.rope)
    return [env.tape.external(shape, dtype, env.tape.slot(name, "activation"), BEFORE) for name, shape, dtype in (
        (EMBEDDED, (run.batch, run.seq, kind.hidden), run.compute), *given)]


def stage_passing(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> dict[str, int]:
    """Bytes by name of what each later stage makes for its own layers, and drops when its forward returns."""
    return {} if _is_checkpointed(runs) else {**_of_streams(runs), **_tables_beside_own(runs, dropped=True)}


def _tables_beside_own(runs: Sequence[tuple[LayerKind, LayerWorkload]], *, dropped: bool) -> dict[str, int]:
    """Bytes by name of the table that a model makes whose layers make their own: checkpoints alone keep it."""
    for kind, run in runs:
        block = kind.branches[0].block if kind.branches else None
        is_dropped = run.checkpoint != "full" or run.no_grad
        if makes_tables(kind.family) and isinstance(block, Attention) and dropped == is_dropped:
            return {name: math.prod(shape) * dtype_bytes(dtype)
                    for name, shape, dtype in _angles(kind, run, block.rotated)}
    return {}


def _is_checkpointed(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> bool:
    return any(run.checkpoint == "full" and not run.no_grad for kind, run in runs if kind.streams)


def _of_streams(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> dict[str, int]:
    """Bytes by name of what layers with residual streams are given."""
    return next((bytes_of(run, branch.block.rope) for kind, run in runs for branch in kind.branches
                 if isinstance(branch.block, CompressedAttention)), {})


def _angles(kind: LayerKind, run: LayerWorkload, dim: int) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype of what turns queries and keys; `dim`: dimensions of a head that are rotated, 0 none.

    Cosines and sines in fp32. A row a token of the models in `sparse`: of those with latent attention complex64
    (`rope_utils.py`, freqs_cis_from_position_ids), of others side by side (`gpt_oss/rope_utils.py`,
    position_ids_to_freqs_cis).
    """
    if kind.family in OF_GRIDS:
        return []
    if kind.family in SPARSE:
        return [("freqs_cis", (run.batch, run.seq, dim), "fp32")]
    # A checkpoint keeps what attention is given by name, positions among it.
    positions = [("position_ids", (run.seq,), "int64")] if by_parts(kind, run) else []
    return positions + [(f"rotary_{name}", (1, run.seq, dim), "fp32") for name in ("cos", "sin") if dim]


def by_parts(kind: LayerKind, run: LayerWorkload) -> bool:
    """Norms, attention and MLP are checkpoints of their own, see `_checkpointed`."""
    return run.checkpoint == "full" and run.ep == 1 and kind.family in (*DENSE, "gpt_oss", "qwen3_moe", *QWEN3_5)
