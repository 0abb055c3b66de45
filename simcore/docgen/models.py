"""The page of built-in models, made from their configurations.

python -m simcore.docgen.models > docs/models.md
"""

from __future__ import annotations

import sys
import textwrap
from typing import Final

from simcore.docgen.glossary import table
from simcore.models.graph import ModelGraph, build, known_presets, model_config
from simcore.models.names import ids_of, names_of
from simcore.models.registry import known_families

__all__ = ["graph_of", "presets"]

_HEAD: Final = """# Models

Made by `python -m simcore.docgen.models` from `simcore/models/presets/*.json`; edit those, not this page.

A scenario names a model (`model: llama-3.1-8b`), changes one (`{config: llama-3.1-8b, overrides: {num_hidden_layers:
2}}`), or names a `config.json` of one's own. A preset answers to its name, to the Hugging Face ids below, in any case
and with or without their owner, and to the other names; the report says which preset answered. `rankscope models`
lists them in the terminal, and which frameworks run them. A file's `model_type` is one of:"""
_TABLE: Final = """Parameters are those that the model's code registers: [asked of it](../tests/truth/README.md), but
for `nemotron-nas`, which transformers has no code for. `from`: the repository on Hugging Face whose `config.json` a
preset restates, without fields that change no size; what is assumed says so, here and in every report.
Published totals that counts are held against, and where sizes are from: `tests/truth/models/published.json`."""
_NAMES: Final = """## Other names

Repositories with the same sizes, and what people call a model. Where they differ in a field that changes no weight
(positions, sliding window), that value is taken. Repositories stored in few bits (AWQ, GPTQ, bitsandbytes) are not
here: they have a `quantization_config`. The table is `simcore/models/presets/names.toml`."""


def presets() -> str:
    """Markdown text of `docs/models.md`: known model families, and a table of all presets."""
    families = textwrap.fill(", ".join(f"`{name}`" for name in known_families()) + ".", 120, break_on_hyphens=False)
    rows = table(("preset", "`model_type`", "parameters", "layers", "from"), map(_row, known_presets()))
    others = ((f"`{name}`", ", ".join(f"`{other}`" for other in _others(name))) for name in known_presets())
    named = table(("preset", "other names"), ((name, names) for name, names in others if names))
    return f"{_HEAD}\n{families}\n\n{_TABLE}\n\n{rows}\n\n{_NAMES}\n\n{named}\n"


def graph_of(name: str) -> ModelGraph:
    """Model graph of the preset `name`, with the layers of transformers' implementation."""
    return build(model_config(name, None, name), "hf", name)


def _row(name: str) -> tuple[str, ...]:
    fields, graph = model_config(name, None, name), graph_of(name)
    source = f"`{fields['_name_or_path']}`" if "_name_or_path" in fields else "made up, for examples and tests"
    source = f"assumed: {fields['assumed']}" if "assumed" in fields else source
    return f"`{name}`", f"`{fields['model_type']}`", f"{graph.count():,}", str(graph.num_blocks), source


def _others(preset: str) -> tuple[str, ...]:
    """Names of a preset besides its own and that of the repository which it restates."""
    own = (preset, *ids_of(preset)[:1])
    return tuple(name for name in names_of(preset) if name not in own)


if __name__ == "__main__":
    sys.stdout.write(presets())
