"""Workspaces of GEMM libraries and frameworks in torch's allocator, which they keep from one step to the next.

[Note: which workspaces there are]
torch hands cuBLAS a workspace for each thread and stream that multiplies matrices: forward runs in the main thread,
backward in autograd's, so there are two (torch `aten/src/ATen/cuda/CublasHandlePool.cpp`, cuBLASLt shares them).
TransformerEngine keeps one for its linears, four more for grouped GEMMs, three more for user buffers under tensor
parallel overlap (TE d0067d0d `pytorch/cpp_extensions/gemm.py`, `get_cublas_workspace`; four streams:
`common/util/multi_stream.cpp`). Megatron-Core has one global buffer, as large as its largest user needs (0.16.1
`utils.py:617`): the output layer's gathered input (`tensor_parallel/layers.py:482`), the tokens of all expert parallel
ranks (`transformer/moe/token_dispatcher.py:275`, the all-gather dispatcher), the input that its own attention gives
`baddbmm` in addition to the scores (`transformer/dot_product_attention.py:185`). It caches the angles of rotary
embeddings (`models/common/embeddings/rotary_pos_embedding.py:177`, `yarn_rotary_pos_embedding.py:159`: 32 entries).

[Note: tables of YaRN]
Latent attention has an embedding of its own in each layer and MTP module, which is YaRN's unless `rope_type` says
otherwise (core 0.16.1 `transformer/transformer_config.py:2034`; no bridge does, also where a model is not scaled);
GPT-OSS has one a chunk. Each registers cosines and sines (`yarn_rotary_pos_embedding.py`, _set_cos_sin_cache): of
`original_max_position_embeddings` positions, 4096 in core and in Bridge's GPT-OSS, of which a rank of cp has its share.
Float16Module casts them, as all buffers, to 16 bits. A fused rotation asks for them in its input's type, which is not
the one they were made in, and so they are made anew, for the sequence (`transformer/multi_latent_attention.py:554`).
Measured: `tests/truth/draw_rotary_tables.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from simcore.memory.paged_stash import stash_buffers
from simcore.models.blocks import Attention, Head, LatentAttention, LayerKind, Moe
from simcore.models.registry import family_of
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.placement.libraries import KernelLibraries
from simcore.placement.plan import Plan
from simcore.units import dtype_bytes

__all__ = ["Workspace", "WorkspaceInputs", "spaces"]

MIB: Final = 2**20
_TORCH: Final = "torch aten/src/ATen/cuda/CublasHandlePool.cpp parseChosenWorkspaceSize"
_TE: Final = "TransformerEngine d0067d0d pytorch/cpp_extensions/gemm.py get_cublas_workspace"
_BLACKWELL: Final = 10, 12
_WIDE_ON_BLACKWELL: Final = "2026-03"
"""Date of torch with PR 175344 (2026-02): 32 MiB on compute capability 10 and 12 too."""
_TE_TAIL: Final = "2025-10"
"""Date of TE with 3f5b4754 (2025-09-29): 1,024 B more, for scales."""
_ROPE_ENTRIES: Final = 32
_YARN_POSITIONS: Final = 4096


@dataclass(frozen=True, slots=True)
class Workspace:
    """One workspace that a library allocates through torch and keeps.

    `num_bytes`: its size. `kind`: evidence for the size, derived from the library's code or assumed; `source`: where it
    is from.
    """

    name: str
    num_bytes: int
    kind: Literal["derived", "assumed"]
    source: str


@dataclass(frozen=True, slots=True)
class WorkspaceInputs:
    """Inputs of workspace sizes besides the plan.

    `capability`: major compute capability of the GPU. `cublas_bytes`: size of one cuBLAS workspace, None for torch's
    default. `batch` sequences of `seq` positions are a microbatch on this rank, of which a step has `microbatches`.
    `rows_per_token`: as `Workload.rows_per_token`.
    """

    capability: int
    cublas_bytes: int | None
    batch: int
    seq: int
    microbatches: int = 1
    rows_per_token: int = 0


def spaces(plan: Plan, setting: WorkspaceInputs) -> tuple[Workspace, ...]:
    """Workspaces of torch (cuBLAS), TransformerEngine and Megatron-Core on the plan's rank that are not 0 bytes."""
    libraries = plan.framework.libraries
    workspaces = (*_torch(plan, setting), *_te(plan, setting, libraries), *_core(plan, setting, libraries),
                  *_stash(plan, setting))
    return tuple(space for space in workspaces if space.num_bytes)


# ---- torch ----------------------------------------------------------------------------------------------------------
def _torch(plan: Plan, setting: WorkspaceInputs) -> tuple[Workspace, ...]:
    if not _runs_torch_gemms(plan):
        return ()
    size = _cublas_default(plan.framework.libraries, setting) if setting.cublas_bytes is None else setting.cublas_bytes
    return tuple(Workspace(f"cublas_workspace.{thread}", size, "derived", _TORCH) for thread in ("forward", "backward"))


def _runs_torch_gemms(plan: Plan) -> bool:
    """True if torch multiplies matrices: where TE runs all linears, only for the output layer and for routers."""
    return not plan.framework.libraries.te_linears or any(
        isinstance(kind.block, Head) or _has(kind, Moe) for kind in _kinds(plan))


def _cublas_default(libraries: KernelLibraries, setting: WorkspaceInputs) -> int:
    """Bytes of one workspace: 32 MiB on Hopper, and on Blackwell since 2026-02; else 2 of 4 MiB and 8 of 16 KiB."""
    wide = setting.capability == 9 or (setting.capability in _BLACKWELL and libraries.date >= _WIDE_ON_BLACKWELL)
    return 32 * MIB if wide else 2 * 4096 * 1024 + 8 * 16 * 1024


# ---- TransformerEngine ----------------------------------------------------------------------------------------------
def _te(plan: Plan, setting: WorkspaceInputs, libraries: KernelLibraries) -> tuple[Workspace, ...]:
    if not libraries.te_linears:
        return ()
    tail = 1024 if libraries.date >= _TE_TAIL else 0
    size = 32 * MIB + tail if setting.capability >= 9 else 4 * MIB
    grouped = libraries.te_grouped and any(_has(kind, Moe) for kind in _kinds(plan))
    return (Workspace("te_workspace", size, "derived", _TE),
            Workspace("te_workspace.grouped_gemm", 4 * size * grouped, "derived", _TE),
            Workspace("te_workspace.user_buffers", 3 * size * libraries.te_overlap, "derived", _TE))


# ---- Megatron-Core --------------------------------------------------------------------------------------------------
def _core(plan: Plan, setting: WorkspaceInputs, libraries: KernelLibraries) -> tuple[Workspace, ...]:
    if not libraries.core_buffers:
        return ()
    users = {
        "tensor_parallel/layers.py:482: the output layer's input, gathered over tp": _gathered_input(plan, setting),
        "transformer/dot_product_attention.py:185: an input of the scores' product":
        _scores_input(plan, setting, libraries),
        "transformer/moe/token_dispatcher.py:275: tokens gathered over ep": _gathered_tokens(plan, setting)}
    largest = max(users, key=lambda user: users[user])
    return (Workspace("global_memory_buffer", users[largest], "derived", f"core 0.16.1 {largest}"),
            Workspace("rope_cache", _angles(plan, setting), "derived",
                  "core 0.16.1 models/common/embeddings/rotary_pos_embedding.py:177: fp32, cached for good"),
            Workspace("rope_tables", _tables(plan, setting), "derived",
                  "core 0.16.1 models/common/embeddings/yarn_rotary_pos_embedding.py:187: registered buffers"))


def _stash(plan: Plan, setting: WorkspaceInputs) -> tuple[Workspace, ...]:
    tokens = -(-setting.batch * setting.seq // (plan.mesh.tp if plan.framework.sequence_parallel else 1))
    made = stash_buffers(plan, tokens, tokens * setting.rows_per_token >> 16, setting.microbatches)
    return tuple(Workspace(f"paged_stash.{buffer.dtype}.{buffer.width}", buffer.num_bytes, "derived",
                           "main 2026-08-22 transformer/moe/paged_stash.py, allocate_stash_buffers") for buffer in made)


def _gathered_input(plan: Plan, setting: WorkspaceInputs) -> int:
    """Bytes of a trained output layer's gathered input (`linear_with_frozen_weight` gathers into another tensor)."""
    if not plan.framework.sequence_parallel or plan.mesh.tp == 1:
        return 0
    heads = [kind.block for kind in _kinds(plan) if isinstance(kind.block, Head)]
    trained = any(p.spec.trainable for number, _ in plan.kind_counts if isinstance(plan.graph.kinds[number].block, Head)
                  for p in plan.kinds[number])
    hidden = heads[0].hidden if heads and trained else 0
    return setting.batch * setting.seq * hidden * dtype_bytes(plan.framework.compute_dtype)


def _scores_input(plan: Plan, setting: WorkspaceInputs, libraries: KernelLibraries) -> int:
    """Bytes of a persistent tensor as large as the scores; no kernel reads it (beta of `baddbmm` is 0)."""
    if not libraries.core_attention:
        return 0
    heads = max((b.block.num_heads for kind in _kinds(plan) for b in kind.branches if isinstance(b.block, Attention)),
                default=0)
    square = setting.batch * setting.seq ** 2
    return heads // plan.mesh.tp * square * dtype_bytes(plan.framework.compute_dtype)


def _gathered_tokens(plan: Plan, setting: WorkspaceInputs) -> int:
    """Bytes of the tokens of all ranks of ep and etp, before the dispatcher picks those of its experts."""
    hidden = max((branch.block.expert_hidden for kind in _kinds(plan) for branch in kind.branches
                  if isinstance(branch.block, Moe)), default=0)
    ranks = plan.mesh.ep * plan.mesh.etp
    options = plan.framework.options
    gathers = isinstance(options, MegatronOptions) and options.dispatcher == "allgather"
    if not gathers or ranks == 1:
        return 0
    local = setting.batch * setting.seq // (plan.mesh.tp if plan.framework.sequence_parallel else 1)
    return ranks * local * hidden * dtype_bytes(plan.framework.compute_dtype)


def _angles(plan: Plan, setting: WorkspaceInputs) -> int:
    """Bytes of rotary angles: one table a chunk; latent attention has one a layer, of which the cache keeps 32.

    Gemma 3 has two, and both again as one (Bridge 067f987d `models/gemma/gemma3_provider.py`, Gemma3RotaryEmbedding).
    """
    blocks = [(branch.block, count) for number, count in plan.kind_counts
              for branch in plan.graph.kinds[number].branches]
    shared = max((b.head_dim for b, _ in blocks if isinstance(b, Attention) and b.rotary), default=0)
    own = [(b.rope, count) for b, count in blocks if isinstance(b, LatentAttention)]
    kept = min(_ROPE_ENTRIES, sum(count for _, count in own)) * max((size for size, _ in own), default=0)
    tables = 4 if plan.graph.architecture.family == "gemma3_text" else 1
    return 4 * setting.seq * (len(plan.chunks) * tables * shared + kept)


def _tables(plan: Plan, setting: WorkspaceInputs) -> int:
    """Bytes of cosines and sines that YaRN's embeddings keep, see [Note: tables of YaRN]."""
    blocks = [(branch.block, count) for number, count in plan.kind_counts
              for branch in plan.graph.kinds[number].branches]
    rows = _YARN_POSITIONS // plan.mesh.cp
    width = 0
    if plan.graph.implementation in family_of(plan.graph.architecture.family).tables_by_chunk:
        width = len(plan.chunks) * max(b.head_dim for kind in plan.graph.kinds for b in (
            branch.block for branch in kind.branches) if isinstance(b, Attention))
    elif latent := sum(count * b.rope for b, count in blocks if isinstance(b, LatentAttention)):
        options, width = plan.framework.options, latent
        rows = setting.seq if isinstance(options, MegatronOptions) and options.apply_rope_fusion else rows
    return 2 * rows * width * dtype_bytes(plan.framework.compute_dtype)


def _kinds(plan: Plan) -> list[LayerKind]:
    """Layer kinds of the plan's stage."""
    return [plan.graph.kinds[number] for number, _ in plan.kind_counts]


def _has(kind: LayerKind, block: type) -> bool:
    return any(isinstance(branch.block, block) for branch in kind.branches)
