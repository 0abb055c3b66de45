"""Speculative decoding by the model's own module of multi-token prediction: what the drafter adds to an engine's rank.

[Note: the drafter]
vLLM 0.25.1 `config/speculative.py` (method mtp), `v1/spec_decode/llm_base_proposer.py`, `models/deepseek_mtp.py`,
`models/nemotron_h_mtp.py`. One module (`num_nextn_predict_layers`) drafts every further token, one pass each: norms of
the embedding and of the hidden state, a projection of both side by side (whole on each rank in DeepSeek's, split by
columns in Nemotron-H's), the layers of the module, a norm. Embedding and head are the model's own (_maybe_share_*).
Its attention layers have keys and values like the model's; states of Mamba are kept for every drafted token besides
(`kv_cache_interface.py` MambaSpec, num_speculative_blocks), and convolutions keep as many more inputs
(`mamba_utils.py`). Two buffers of hidden states and embeddings of a whole pass are made with the runner, before the
model and outside what sleeps; the budget of the cache does not count them (`utils/mem_utils.py` memory_profiling: they
are there before the profile run begins).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from simcore.models.blocks import Attention, Branch, LatentAttention, LayerKind, Mtp
from simcore.models.config import Architecture
from simcore.models.graph import architecture_of
from simcore.units import dtype_bytes
from simcore.vllm.weights import MODEL_DTYPE, Weight, weights_of_kind

__all__ = ["MODULES", "Drafter", "drafter_of"]

MODULES: Final = {"deepseek_v3": False, "nemotron_h": True}
"""Families whose modules are described; True: the projection is split over tp."""


@dataclass(frozen=True)
class Drafter:
    """Module that drafts `tokens` tokens a pass for each sequence, of which `accepted` are kept on average.

    `architecture`: the engine's model, `kind`: the module's layers, `tp`: ranks of the engine.
    """

    architecture: Architecture
    kind: LayerKind
    tp: int
    tokens: int
    accepted: float
    narrow_router: bool = False

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        """Tensors of one rank, as a component of their own."""
        hidden, split = self.kind.hidden, self.tp if self.splits else 1
        own = [Weight("mtp", 3 * hidden), Weight("mtp", 2 * hidden * hidden // split)]
        layers = weights_of_kind(replace(self.kind, block=None), self.architecture, self.tp, narrow=self.narrow_router)
        return (*own, *(replace(weight, component="mtp") for weight in layers))

    @property
    def splits(self) -> bool:
        """True if tp splits the projection, whose output is then gathered."""
        return MODULES[self.kind.family]

    @property
    def branches(self) -> tuple[Branch, ...]:
        """Blocks of the module's layers."""
        return self.kind.branches

    @property
    def attention_layers(self) -> int:
        """Number of its layers with keys and values."""
        return sum(isinstance(branch.block, Attention | LatentAttention) for branch in self.branches)

    def buffer_bytes(self, tokens: int) -> int:
        """Bytes of hidden states and embeddings of a pass of `tokens` tokens."""
        return 2 * tokens * self.kind.hidden * dtype_bytes(MODEL_DTYPE)


def drafter_of(fields: Mapping[str, Any], found: Architecture, tp: int, tokens: int, accepted: float, *,
               narrow_router: bool) -> Drafter | None:
    """Drafter of a model's configuration `fields`; None for families, or numbers of modules, that are not described.

    `found`: the engine's model, of which nothing is built that predicts further tokens.
    """
    if found.family not in MODULES or _num_modules(fields, found.family) != 1:
        return None
    further = {"mtp_num_layers": 1, "mtp_use_repeated_layer": True} if MODULES[found.family] else {"mtp_num_layers": 1}
    built = architecture_of({**fields, **further})
    kind = next((kind for _, kind in built.parts if isinstance(kind.block, Mtp)), None)
    return None if kind is None else Drafter(found, kind, tp, tokens, accepted, narrow_router)


def _num_modules(fields: Mapping[str, Any], family: str) -> int:
    """Modules of the published configuration; presets of Nemotron-H leave the number out, and have a pattern of one."""
    if family == "nemotron_h":
        return int(fields.get("num_nextn_predict_layers", bool(fields.get("mtp_hybrid_override_pattern"))))
    return int(fields.get("num_nextn_predict_layers") or 0)
