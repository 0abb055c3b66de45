"""Protocol of an inference engine: sizes and limits that steps of reinforcement learning, results and traffic read.

vLLM's `Engine` (`engine.py`) and SGLang's (`simcore/sglang/engine.py`) have it. All bytes are of one rank.
"""

from __future__ import annotations

from typing import Protocol

from simcore.hardware.topology import Topology
from simcore.inputs.generation import Generation
from simcore.models.config import Architecture
from simcore.vllm.cache import Cache, Formats, Pages
from simcore.vllm.drafter import Drafter
from simcore.vllm.engine import Limits
from simcore.vllm.profile import Profile
from simcore.vllm.quantized.recipe import Recipe
from simcore.vllm.weights import Weight

__all__ = ["InferenceEngine"]


class InferenceEngine(Protocol):
    """Engine on `tp` equal ranks, which generates sequences of up to `max_model_len` tokens."""

    @property
    def architecture(self) -> Architecture:
        """The model that it runs."""

    @property
    def generation(self) -> Generation:
        """Block of the scenario that asks for it."""

    @property
    def topology(self) -> Topology:
        """Its GPUs."""

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence."""

    @property
    def limits(self) -> Limits:
        """Most tokens of a pass, and sequences at once."""

    @property
    def recipe(self) -> Recipe | None:
        """Quantisation of weights, None for 16 bits."""

    @property
    def drafter(self) -> Drafter | None:
        """Drafter of speculative decoding, None without."""

    @property
    def buffers(self) -> int:
        """Bytes of the model's buffers."""

    @property
    def version(self) -> str:
        """Its version, such as "0.12.0"."""

    @property
    def tp(self) -> int:
        """Number of its ranks."""

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Tensors of one rank, layer by layer."""

    @property
    def by_component(self) -> dict[str, int]:
        """Bytes of weights by component, without empty ones."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights and buffers."""

    @property
    def adapter_bytes(self) -> int:
        """Bytes of buffers for adapters."""

    @property
    def formats(self) -> Formats:
        """Formats of the cache."""

    @property
    def pages(self) -> Pages:
        """Layout of keys and values."""

    @property
    def profile(self) -> Profile:
        """Bytes beside weights and cache at the highest moment of a pass."""

    @property
    def cache(self) -> Cache:
        """Keys and values of as many tokens as there is room for."""

    @property
    def cache_bytes(self) -> int:
        """Bytes of all that is made with the cache."""

    @property
    def cache_budget(self) -> int:
        """Bytes that the cache may fill, below zero if there are none."""

    @property
    def requested_bytes(self) -> int:
        """Bytes that weights and cache may take."""

    @property
    def graph_bytes(self) -> int:
        """Bytes of CUDA graphs."""

    @property
    def workspace_bytes(self) -> int:
        """Bytes of cuBLAS's workspace."""

    @property
    def loaded(self) -> dict[str, int]:
        """Bytes by category of what leaves with the weights when it sleeps."""

    @property
    def stays(self) -> dict[str, int]:
        """Bytes by category of what stays while it sleeps."""

    @property
    def cached(self) -> dict[str, int]:
        """Bytes by category of what comes and goes with the cache."""

    @property
    def refusal(self) -> str:
        """Reason, as a sentence, for which it does not start; "" if it does."""

    def bytes_of(self, weight: Weight) -> int:
        """Bytes of one of `weights`."""

    def outside(self) -> dict[str, int]:
        """Bytes outside torch's allocator, by category."""

    def beside(self, occupied: int) -> InferenceEngine:
        """The engine as it starts on GPUs of which others hold `occupied` bytes."""
