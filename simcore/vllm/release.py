"""What differs between versions of vLLM, as far as it moves a number here.

vLLM 0.12.0 and 0.25.1, the wheels' sources: `v1/worker/gpu_worker.py` determine_available_memory,
`model_executor/models/config.py` NemotronHForCausalLMConfig (which 0.12.0 does not have).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RELEASES", "Release"]


@dataclass(frozen=True, slots=True)
class Release:
    """`graphs_in_budget`: an estimate of CUDA graphs is taken off what the cache may fill; before, they come on top.

    `hybrid_state`: format of Nemotron-H's recurrent state where nobody asks for one; "" that of the model.
    """

    name: str
    graphs_in_budget: bool
    hybrid_state: str


RELEASES = {
    "0.12.0": Release("0.12.0", graphs_in_budget=False, hybrid_state=""),
    "0.25.1": Release("0.25.1", graphs_in_budget=True, hybrid_state="fp32"),
}
