"""Layers that stay in 16 bits, by the lists of a checkpoint: each method of vLLM reads its list in another way.

vLLM 0.12.0 `utils/quant_utils.py` is_layer_skipped (fp8: whole names; awq: parts of names), `compressed_tensors/
utils.py` should_ignore_layer (whole names or "re:" patterns), `modelopt.py` is_layer_excluded (whole names, parts of
names, wildcards), `bitsandbytes.py` is_layer_skipped_bnb (components of a name). Merged layers are asked for by the
names of their matrices, which must agree. Names of Nemotron-H begin with "backbone" in files, with "model" in vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Final

__all__ = ["Skipped"]

_MERGED: Final = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_EXPERTS: Final = "experts"


@dataclass(frozen=True, slots=True)
class Skipped:
    """List of a checkpoint. `reading`: "names", "parts", "patterns", "wildcards", "components" or "parameters".

    "parameters": parts of names of transformers' parameters, of which NeMo RL makes the list (7ea279ab
    `models/generation/vllm/quantization/fp8.py` init_fp8); those of all experts of a layer are two.
    """

    reading: str = "names"
    listed: tuple[str, ...] = ()

    def has(self, module: str) -> bool:
        """True if the module of vLLM with this path stays in 16 bits; ValueError where its matrices disagree."""
        if not self.listed:
            return False
        return _READINGS[self.reading](module, [_renamed(item) for item in self.listed])

    def names(self, module: str) -> bool:
        """True if the list names this module or one inside it, so that files hold it in 16 bits, by components."""
        return _is_component(module, self.listed) or any(item.startswith(f"{module}.") for item in self.listed)


def _renamed(item: str) -> str:
    return "model" + item.removeprefix("backbone") if item.startswith("backbone") else item


def _of_matrices(module: str, matches: Callable[[str], bool]) -> bool:
    """The answer for a merged layer's matrices, or for the layer itself."""
    path, _, last = module.rpartition(".")
    answers = {matches(f"{path}.{name}") for name in _MERGED.get(last, (last,))}
    if len(answers) > 1:
        raise ValueError(f"some but not all matrices of {module} are quantised")
    return answers.pop()


def _by_names(module: str, listed: list[str]) -> bool:
    if module.endswith(f".{_EXPERTS}"):
        return any(module in item for item in listed if _EXPERTS in item)
    return _of_matrices(module, lambda name: name in listed)


def _by_parts(module: str, listed: list[str]) -> bool:
    return _of_matrices(module, lambda name: any(item in name for item in listed))


def _by_parameters(module: str, listed: list[str]) -> bool:
    if module.endswith(f".{_EXPERTS}"):
        return any(item in f"{module}.{name}" for item in listed for name in ("gate_up_proj", "down_proj"))
    return _by_parts(module, listed)


def _by_patterns(module: str, listed: list[str]) -> bool:
    def matches(name: str) -> bool:
        return any(re.match(item[3:], name) if item.startswith("re:") else item == name for item in listed)

    if module.endswith(f".{_EXPERTS}"):
        answers = {bool(matches(f"{module}.0.{name}")) for name in ("gate_proj", "up_proj", "down_proj")}
        if len(answers) > 1:
            raise ValueError(f"some but not all matrices of {module} are quantised")
        return answers.pop()
    return module in listed or _of_matrices(module, lambda name: bool(matches(name)))


def _by_wildcards(module: str, listed: list[str]) -> bool:
    return (_by_names(module, listed) or any(item in module for item in listed)
            or any(fnmatch(module, item) for item in listed))


def _by_components(module: str, listed: list[str]) -> bool:
    """Linears alone: `get_quant_method` of bitsandbytes does not ask for experts, which are always quantised."""
    return not module.endswith(f".{_EXPERTS}") and _is_component(module, listed)


def _is_component(module: str, listed: Sequence[str]) -> bool:
    names = module.split(".")
    prefixes = {".".join(names[:end]) for end in range(1, len(names) + 1)}
    return any(item in names or item in prefixes for item in listed)


_READINGS: Final[dict[str, Callable[[str, list[str]], bool]]] = {
    "names": _by_names, "parts": _by_parts, "patterns": _by_patterns, "wildcards": _by_wildcards,
    "components": _by_components, "parameters": _by_parameters}
