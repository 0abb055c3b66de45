"""Differences between versions of vLLM that change a number here.

vLLM 0.12.0 and 0.25.1, the wheels' sources: `v1/worker/gpu_worker.py` determine_available_memory; `v1/core/
kv_cache_utils.py`; `model_executor/models/config.py` MambaModelConfig and NemotronHForCausalLMConfig (which 0.12.0 does
not have); `platforms/interface.py` _align_hybrid_block_size of 0.25.1; models that are SupportsMambaPrefixCaching;
routers of `models/nemotron_h.py`, in 0.25.1 a GateLinear with force_fp32_compute (`fused_moe/router/gate_linear.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["RELEASES", "Release", "States"]

States = Literal["one", "last", "every"]
"""Mamba states of a sequence: one; with prefix caching those of the last two blocks ("align") or of all ("all")."""


@dataclass(frozen=True, slots=True)
class Release:
    """One version of vLLM.

    `graphs_in_budget`: an estimate of CUDA graphs is subtracted from the cache's memory; in older versions they are
    additional. `hybrid_state`: default format of the recurrent states of Nemotron-H and Qwen 3.5; ""
    that of the model.
    `padded_below`: layers of two kinds are grouped by the more numerous kind if its number is less than this factor
    times the other's. `by_group`: the need of a sequence is counted in blocks of groups, in older versions in pages of
    layers. `sampled`: bytes of each logit in the sampler, in addition to the model's own: 0.12.0 a copy in fp32, its
    sorted values with indices in int64, and the same again for the sort; 0.25.1 a copy that a kernel masks in place,
    log-probabilities (which NeMo RL asks for), probabilities and their noise, in fp32 each
    (`v1/sample/ops/topk_topp_sampler.py`). `caches_states`: model families (`Architecture.family`) whose states are
    cached block by block; `else_last`: other families cache only those of the last two blocks (in older versions prefix
    caching is off for them). `narrow_routers`: Nemotron-H's routers are stored in the model's dtype where a kernel
    multiplies that into fp32 (compute capability 9.0 and 10), in older versions always in fp32. `plain_towers`:
    activations and norms of a vision tower are torch's operators, not compiled, unless the engine is eager: custom
    kernels are off where the language model is compiled (`config/vllm.py`:637).
    """

    name: str
    graphs_in_budget: bool
    hybrid_state: str
    padded_below: float
    by_group: bool
    sampled: int
    caches_states: tuple[str, ...]
    else_last: bool
    narrow_routers: bool = False
    plain_towers: bool = False

    def states(self, family: str, mode: str = "auto", *, cached: bool) -> States:
        """Mamba states that a sequence keeps in each layer: "one", those of the "last" two blocks, or of "every" block.

        `family`: of the model (`Architecture.family`); `cached`: with prefix caching, else always "one". `mode`: asked
        for, "align" or "all"; "auto", and "all" of a family that has it not, are the version's own.
        """
        if not cached:
            return "one"
        if mode == "align" and self.else_last:
            return "last"
        return "every" if family in self.caches_states else "last" if self.else_last else "one"

    def narrow_router(self, capability: str) -> bool:
        """True if Nemotron-H's routers are stored in the model's dtype on a GPU of compute capability such as "9.0"."""
        return self.narrow_routers and (capability == "9.0" or capability.startswith("10."))


RELEASES = {
    "0.12.0": Release("0.12.0", graphs_in_budget=False, hybrid_state="", padded_below=1.25, by_group=False,
                      sampled=4 + 2 * (4 + 8), caches_states=("bamba", "granitemoehybrid", "nemotron_h"),
                      else_last=False, plain_towers=True),
    "0.25.1": Release("0.25.1", graphs_in_budget=True, hybrid_state="fp32", padded_below=1.5, by_group=True,
                      sampled=4 * 4, caches_states=("granitemoehybrid", "nemotron_h"), else_last=True,
                      narrow_routers=True),
}
