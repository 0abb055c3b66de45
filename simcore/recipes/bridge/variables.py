"""Variables of the environment that recipes and launchers of Megatron-Bridge set, and what becomes of each.

Megatron-Bridge 067f987d training/config.py:1984 sets them where the process has none. What a variable does is said by
the file behind it: of Bridge where no other project is named, of TransformerEngine (TE) d0067d0d, Megatron-LM d98e8a64.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.environment import SETTINGS, row_of
from simcore.recipes.imported import Left
from simcore.recipes.megatron.determinism import DETERMINISTIC, expect_variables
from simcore.recipes.megatron.environment import READ, write_environment
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Unmodelled, read_rows

__all__ = ["read_variables"]

_FUSED: Final = "NVTE_CUTEDSL_FUSED_GROUPED_MLP"
_UNFUSED: Final = "TE fuses no experts without it (pytorch/ops/fused/grouped_mlp.py:369): they are simulated fused"
_REPEATS: Final = ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "NCCL_ALGO")
_OFFLOAD: Final = "NVTE_CPU_OFFLOAD_V1"
_HYBRID_EP: Final = ("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "NVLINK_DOMAIN_SIZE", "USE_MNNVL",
                     "NUM_OF_TOKENS_PER_CHUNK_*")


def _vars(*names: str) -> tuple[str, ...]:
    return tuple(f"env_vars.{name}" for name in names)


ROWS: Final = tuple(replace(row, keys=_vars(*row.keys)) for row in SETTINGS)
"""Variables that depend on no other key."""
_REST: Final = (Unmodelled(("env_vars.*",), "a variable that this reader does not know"),)


def read_variables(reader: Reader, draft: Draft) -> None:
    """Writes those that decide the allocator and cuBLAS, and lists the others; the keys of the job are read before."""
    found = {name: reader.text(f"env_vars.{name}") for name in READ}
    options: dict[str, Any] = draft.values.get("framework_options", {})
    write_environment(draft, {name: one for name, one in found.items() if one is not None},
                      captures="cuda_graph_impl" in options)
    _read_fused(reader, draft, is_on=options.get("use_transformer_engine_op_fuser") is True)
    _read_offload(reader, draft, options)
    for repeats in reader.matching(*_vars(*_REPEATS)):
        row = row_of(repeats.key.removeprefix("env_vars."), str(repeats.value))
        if options.get("deterministic_mode"):
            draft.idle(repeats, "model.deterministic_mode says it")
        elif isinstance(row, Unmodelled):
            draft.unmodelled(repeats, row.why)
        else:
            draft.idle(repeats, row.why)
    if options.get("deterministic_mode"):
        _expect_determinism(reader, draft, options)
    sizes = reader.matching(*_vars(*_HYBRID_EP))
    if options.get("moe_flex_dispatcher_backend") == "hybridep":
        draft.unmodelled(sizes, "ranks of an NVLink domain and pieces of HybridEP's exchanges "
                                "(scripts/performance/utils/utils.py:284): links are those of the topology, buffers of "
                                "the order of DeepEP's")
    else:
        draft.idle(sizes, "HybridEP alone reads it")
    read_rows(reader, draft, (*ROWS, *_REST))


def _expect_determinism(reader: Reader, draft: Draft, options: dict[str, Any]) -> None:
    """Records what a deterministic run does not start with; variables that nothing sets here may be of the shell.

    Megatron-Bridge 067f987d training/config.py:1043.
    """
    if options.get("cross_entropy_loss_fusion") is not False:
        draft.fail(draft.path, "Cross Entropy Fusion is currently not deterministic: give "
                               "model.cross_entropy_loss_fusion=false beside model.deterministic_mode=true (Bridge "
                               "training/config.py:1053)")
    found = {name: one for name in DETERMINISTIC if (one := reader.take(f"env_vars.{name}"))}
    expect_variables(draft, found, "env_vars.")


def _read_fused(reader: Reader, draft: Draft, *, is_on: bool) -> None:
    fused = reader.take(f"env_vars.{_FUSED}")
    if not is_on:
        draft.idle(fused, "read with model.use_transformer_engine_op_fuser alone")
    elif fused is not None and str(fused.value) == "1":
        draft.use(fused, why="the experts' one kernel (TE pytorch/ops/fused/grouped_mlp.py:369), as "
                             "use_transformer_engine_op_fuser is simulated")
    else:
        draft.unmodelled(fused, _UNFUSED)
        if fused is None:
            draft.left.append(Left("not modelled", draft.path, f"env_vars.{_FUSED}", "not set", _UNFUSED))


def _read_offload(reader: Reader, draft: Draft, options: dict[str, Any]) -> None:
    older = reader.take(f"env_vars.{_OFFLOAD}")
    if options.get("cpu_offloading_num_layers"):
        draft.unmodelled(older, "TE's older offload (pytorch/cpu_offload.py:28): the present one is simulated")
    elif options.get("fine_grained_activation_offloading"):
        draft.use(older, why="offload of modules asks for it (training/config.py:2209)")
    else:
        draft.idle(older, "nothing is offloaded by layers or modules")
