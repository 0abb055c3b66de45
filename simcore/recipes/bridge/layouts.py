"""Layout of the pipeline after a launch has changed its stages, as Bridge's launchers make it anew.

Megatron-Bridge 067f987d scripts/training/recipe_runner.py:373 (sync_model_pipeline_layout): where an override changes
stages or virtual stages and gives no layout, the recipe's own function makes one for the new numbers, and refuses those
that it does not know; a recipe without such a function loses the layers of its first and last stage if the middle
stages do not come out even. scripts/performance/utils/overrides.py:600-624: that launcher does so for DeepSeek-V3,
which keeps its layout for numbers without one, and Kimi-K2, which then has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.inputs.document import Document
from simcore.models.graph import model_config
from simcore.models.names import find
from simcore.recipes.bridge.options import Launcher

__all__ = ["BUILDER", "laid_out"]

_PP: Final = "model.pipeline_model_parallel_size"
_VP: Final = "model.virtual_pipeline_model_parallel_size"
_LAYOUT: Final = "model.pipeline_model_parallel_layout"
BUILDER: Final = "model._pipeline_model_parallel_layout_builder"
_ENDS: Final = ("model.num_layers_in_first_pipeline_stage", "model.num_layers_in_last_pipeline_stage")
_DEEPSEEK, _KIMI = "_get_deepseek_v3_pipeline_layout", "_get_kimi_k2_pipeline_layout"
_SIZES: Final[Mapping[str, tuple[int, Mapping[int, int], frozenset[tuple[int, int]], tuple[str, ...]]]] = {
    _DEEPSEEK: (61, {4: 16, 8: 8, 16: 4}, frozenset({(4, 1), (8, 1), (4, 2), (16, 1), (8, 2), (4, 4)}),
                ("mtp", "loss")),
    _KIMI: (61, {4: 16, 8: 8, 16: 4}, frozenset({(4, 1), (8, 1), (4, 2), (16, 1), (8, 2), (4, 4), (2, 8)}), ("loss",)),
    "_get_moonlight_pipeline_layout": (27, {2: 14, 4: 7, 8: 4}, frozenset({(2, 1), (4, 1), (8, 1), (2, 2), (4, 2)}),
                                       ("loss",))}
"""By a recipe's function (recipes/deepseek/h100/deepseek_v3.py:50, kimi/h100/kimi_k2.py:29, moonlight/h100/
moonlight_16b.py:135): layers, layers of a chunk by the number of chunks, stages x virtual stages, the end."""
_OF_PERFORMANCE: Final = {"deepseek_v3_": _DEEPSEEK, "kimi_k2_": _KIMI}
_SOURCE: Final = "scripts/training/recipe_runner.py:373"


def laid_out(document: Document, name: str, launcher: Launcher, given: frozenset[str], *,
             computed: bool = False) -> Document:
    """The document of the recipe `name` with its layout for the stages that the launch gives (`given`: its keys).

    `computed`: its function is not known. InputError for stages for which Bridge has no layout.
    """
    if not given & {_PP, _VP} or _LAYOUT in given:
        return document
    where = document.where(tuple((_PP if _PP in given else _VP).split(".")))
    sizes = (document.value(_PP) or 1, document.value(_VP) or 1)
    if launcher.rebuilds:
        return _by_performance(document, name, sizes, where)
    builder = "a function of the recipe" if computed else document.value(BUILDER)
    if builder is None:
        return _without_ends(document, given, sizes[0], where)
    if builder not in _SIZES:
        raise InputError(Problem(where, f"not yet: the layout that {builder} makes for other stages ({_SOURCE}): give "
                                        f"{_LAYOUT}"))
    if not _knows(builder, sizes):
        raise InputError(Problem(where, f"Invalid PP and VP size: {sizes[0]} and {sizes[1]}: {builder} of the recipe "
                                        f"has a layout for {_known(builder)} alone ({_SOURCE}): give {_LAYOUT}"))
    return _with(document, _LAYOUT, _layout(builder, sizes), f"{where} (made for it by {builder}: {_SOURCE})")


def _by_performance(document: Document, name: str, sizes: tuple[int, int], where: str) -> Document:
    builder = next((one for start, one in _OF_PERFORMANCE.items() if name.startswith(start)), "")
    if not builder or (builder == _KIMI and isinstance(document.value(_LAYOUT), str)):
        return document
    place = f"{where} (made for it by {builder}: scripts/performance/utils/overrides.py:600)"
    if _knows(builder, sizes):
        return _with(document, _LAYOUT, _layout(builder, sizes), place)
    return _with(document, _LAYOUT, None, place) if builder == _KIMI else document


def _knows(builder: str, sizes: tuple[int, int]) -> bool:
    return sizes == (1, 1) or sizes in _SIZES[builder][2]


def _known(builder: str) -> str:
    return ", ".join(f"{pp} x {vp}" for pp, vp in sorted({(1, 1), *_SIZES[builder][2]}))


def _layout(builder: str, sizes: tuple[int, int]) -> list[list[str]] | None:
    """Layers of each chunk, in order; None on one stage."""
    layers, of_chunk, _, end = _SIZES[builder]
    chunks = sizes[0] * sizes[1]
    if chunks == 1:
        return None
    size = of_chunk[chunks]
    rest = layers - size * (chunks - 1)
    return [["embedding", *["decoder"] * size], *([["decoder"] * size] * (chunks - 2)), [*["decoder"] * rest, *end]]


def _without_ends(document: Document, given: frozenset[str], stages: int, where: str) -> Document:
    """Without the layers of the first and last stage where those between do not come out even."""
    ends = [document.value(key) for key in _ENDS]
    said, layers = [size for size in ends if size is not None], _num_layers(document)
    if not said or _PP not in given or document.value(_LAYOUT) is not None or layers is None:
        return document
    middle, rest = stages - len(said), layers - sum(said)
    fits = middle >= 0 and rest >= 0 and bool(middle) == bool(rest) and (middle == 0 or rest % middle == 0)
    for key, size in zip(_ENDS, ends, strict=True):
        if not fits and size is not None and key not in given:
            document = _with(document, key, None, f"{where} (the recipe's {size} does not fit: {_SOURCE})")
    return document


def _num_layers(document: Document) -> int | None:
    """Layers that the recipe says, or those of the model by its name; None where neither is known."""
    own, name = document.value("model.num_layers"), document.value("model.hf_model_id")
    if own is None and isinstance(name, str) and find(name) is not None:
        own = model_config(name, None, "").get("num_hidden_layers")
    return own if isinstance(own, int) else None


def _with(document: Document, key: str, value: Any, place: str) -> Document:
    return document.with_value(tuple(key.split(".")), value, place)
