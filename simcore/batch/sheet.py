"""The page of sizes: fewest GPUs and largest micro batch of models by method and kind of GPU, each simulated.

python -m simcore.batch.sheet SCENARIOS > docs/sheet.md

SCENARIOS: the folder of the three scenarios `sheet-full`, `sheet-lora` and `sheet-qlora`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from simcore.batch.solve import limit_of
from simcore.docgen.glossary import table
from simcore.inputs.loading import load
from simcore.inputs.scenario import Scenario
from simcore.results.limit import Limit

__all__ = ["CARDS", "METHODS", "MODELS", "fewest", "largest", "scenario_of", "sheet"]

MODELS: Final = ("llama-2-7b", "llama-2-13b", "llama-2-70b", "nemotron-dense-100b", "llama-3.1-405b")
CARDS: Final = ("rtx-4090", "dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200")
METHODS: Final = ("full", "lora", "qlora")
_MOST: Final = 1024
"""GPUs that are tried at most."""

_HEAD: Final = """# Sizes

Made by `python -m simcore.batch.sheet scenarios/claims`; each cell is a `rankscope solve` of a scenario there, with
the cell's model and machine: one sequence of 4096 tokens a GPU in bf16, layers recomputed. Full fine-tuning and LoRA
(rank 16 on all linears) shard with DeepSpeed ZeRO-3; QLoRA (NF4, paged AdamW) has the whole model on each GPU.

`27 (25)`: 27 GPUs surely fit; at 25 the likely peak fits, and measured errors of such layouts leave it open. `-`: no
number of GPUs up to 1,024 fits, or none that the machine has; `refused`: the machine has fewer than 8 GPUs. Host memory
is not asked here.
"""
_FEWEST: Final = """## Fewest GPUs"""
_LARGEST: Final = """## Largest micro batch

Sequences of 4096 tokens on each of 8 GPUs (QLoRA: on one)."""


def sheet(folder: Path) -> str:
    """Markdown text of `docs/sheet.md`; `folder`: that of the three scenarios."""
    heads = ("model", "method", *CARDS)
    fewest_rows, largest_rows = (table(heads, _rows(folder, what)) for what in ("gpus", "micro_batch"))
    return f"{_HEAD}\n{_FEWEST}\n\n{fewest_rows}\n\n{_LARGEST}\n\n{largest_rows}\n"


def _rows(folder: Path, what: str) -> Iterator[tuple[str, ...]]:
    cell = fewest if what == "gpus" else largest
    for model in MODELS:
        for method in METHODS:
            yield f"`{model}`", method, *(cell(folder, model, method, card) for card in CARDS)


@lru_cache(maxsize=256)
def scenario_of(folder: Path, model: str, method: str, card: str) -> Scenario:
    """Scenario of one cell: that of the method, with the cell's model and machine."""
    settings = ["sweep=null", f"model={model}", f"topology={card}"]
    return load(folder / f"sheet-{method}.yaml", settings)[0]


def fewest(folder: Path, model: str, method: str, card: str) -> str:
    """Text of a cell: the fewest GPUs; QLoRA replicates the model, so that it fits on one GPU or on none."""
    most = 1 if method == "qlora" else _MOST
    return _told(limit_of(scenario_of(folder, model, method, card), "gpus", between=(1, most), checked=False))


def largest(folder: Path, model: str, method: str, card: str) -> str:
    """Text of a cell: the largest micro batch."""
    return _told(limit_of(scenario_of(folder, model, method, card), "micro_batch", checked=False))


def _told(limit: Limit) -> str:
    if limit.problem:
        return "refused"
    if limit.value is None:
        return "-" if limit.likely is None else f"- ({limit.likely:,})"
    return f"{limit.value:,}" + (f" ({limit.likely:,})" if limit.likely != limit.value else "")


if __name__ == "__main__":
    sys.stdout.write(sheet(Path(sys.argv[1])))
