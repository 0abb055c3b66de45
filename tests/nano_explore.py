"""Stored search of `scenarios/nano-explore`: every layout of three frameworks, and the tables of its README.

    python tests/nano_explore.py                                # searches again (minutes), writes answers/search.json
    python tests/test_scenarios.py --write nano-explore         # then the README's tables, from that

Everything that fits is timed (no bound prunes), so that the best of each ep is known, not only the best of all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from typing import Any

from checkout import ROOT
from simcore.cli.search import asked_space, chosen_objectives
from simcore.executors.processes import processes
from simcore.inputs.loading import load
from simcore.inputs.scenario import Scenario
from simcore.results.found import FoundLayout, SearchResult
from simcore.search.search import Search
from simcore.search.search import search as find
from simcore.units import in_gib

FOLDER = ROOT / "scenarios" / "nano-explore"
STORED = FOLDER / "answers" / "search.json"
METHODS = ("lora", "full")
_ALL = 10**6
_KEPT = 5

Row = dict[str, Any]
Rows = list[list[str]]


def asked(method: str, overrides: Sequence[str] = ()) -> Scenario:
    (scenario,) = load(FOLDER / f"{method}.yaml", overrides)
    return scenario


def searched(scenario: Scenario, gpus: int, frameworks: Iterable[str] = (), workers: int = 1) -> SearchResult:
    """Every layout on `gpus` GPUs, all that fit ranked."""
    assert scenario.search is not None
    objectives = chosen_objectives(scenario.search.objective, scenario.search.pareto)
    space = asked_space(scenario, str(gpus), tuple(frameworks), (), None)
    return find(Search(space, objectives, _ALL, place=processes(workers) if workers > 1 else None, prunes=False))


def row(found: FoundLayout) -> Row:
    """Facts of a layout, times to four digits: more are no part of the answer."""
    return {"framework": found.framework, "layout": found.layout, "keys": found.keys, "verdict": found.verdict,
            "peak_bytes": found.peak_bytes, "step_s": float(f"{found.step_s:.4g}"),
            "tokens_per_s_per_gpu": float(f"{found.tokens_per_s_per_gpu:.4g}"), "evidence": found.evidence}


def ep_of(found: FoundLayout) -> int:
    return int(found.keys.get("mesh.ep", 1))


def facts(result: SearchResult) -> Row:
    """Counts, the first of the ranking, the Pareto set, and the best of each ep."""
    by_ep = {str(ep): row(min(same, key=result.best.index))
             for ep, same in groupby(sorted(result.best, key=ep_of), key=ep_of)}
    return {"counts": result.counts.model_dump(), "best": [row(one) for one in result.best[:_KEPT]],
            "pareto": [row(one) for one in result.pareto], "by_ep": by_ep,
            "refused": [{"rule": one.message, "count": one.count} for one in result.refused[:_KEPT]]}


def write_answers() -> None:
    """Searches and stores; each number of GPUs as it comes."""
    found: dict[str, dict[str, Row]] = {}
    for method in METHODS:
        scenario = asked(method)
        assert scenario.search is not None
        for gpus in scenario.search.gpus:
            found.setdefault(method, {})[str(gpus)] = facts(searched(scenario, gpus, workers=os.cpu_count() or 1))
            STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


@cache
def stored() -> dict[str, dict[str, Row]]:
    """By method and number of GPUs."""
    answer: dict[str, dict[str, Row]] = json.loads(STORED.read_text(encoding="utf-8"))
    return answer


# ---- tables ----------------------------------------------------------------------------------------------------------
def counted() -> Rows:
    rows = [["method", "GPUs", "layouts", "refused by a rule", "do not fit", "unsure", "fit and timed", "Pareto set"]]
    for method, gpus, one in _each():
        counts = one["counts"]
        rows.append([method, gpus, f"{counts['candidates']:,}", f"{counts['refused']:,}",
                     f"{counts['at_rest'] + counts['oom']:,}", f"{counts['unsure']:,}", f"{counts['timed']:,}",
                     str(len(one["pareto"]))])
    return rows


def best() -> Rows:
    rows = [["method", "GPUs", "best layout that surely fits", "tokens/s a GPU", "step s", "peak GiB", "known runs"]]
    return rows + [[method, gpus, _name(one["best"][0]), *_numbers(one["best"][0]), one["best"][0]["evidence"]]
                   for method, gpus, one in _each() if one["best"]]


def by_ep() -> Rows:
    """The best of each ep on 8 GPUs and more."""
    rows = [["method", "GPUs", "ep", "best layout", "tokens/s a GPU", "step s", "peak GiB", "of the best"]]
    for method, gpus, one in _each():
        for ep, found in sorted(one["by_ep"].items(), key=lambda item: int(item[0])):
            share = found["tokens_per_s_per_gpu"] / one["best"][0]["tokens_per_s_per_gpu"]
            rows.append([method, gpus, ep, _name(found), *_numbers(found), f"{share:.0%}"])
    return rows


def frontier() -> Rows:
    rows = [["method", "GPUs", "layout", "tokens/s a GPU", "step s", "peak GiB", "known runs"]]
    return rows + [[method, gpus, _name(found), *_numbers(found), found["evidence"]]
                   for method, gpus, one in _each() if gpus == "8" for found in one["pareto"]]


def _each() -> Iterable[tuple[str, str, Row]]:
    return ((method, gpus, one) for method, numbers in stored().items() for gpus, one in numbers.items())


def _name(found: Row) -> str:
    """Framework, degrees, and the keys beside them."""
    keys = found["keys"]
    mbs, recompute = keys.get("training.micro_batch_size", 1), keys.get("training.recompute", "none")
    return f"{found['framework']} {found['layout']}, mbs {mbs}{', recompute' if recompute == 'full' else ''}"


def _numbers(found: Row) -> tuple[str, str, str]:
    return (f"{found['tokens_per_s_per_gpu']:,.0f}", f"{found['step_s']:.3g}", in_gib(found["peak_bytes"]))


TABLES = {"best": best, "ep": by_ep, "frontier": frontier, "counts": counted}


if __name__ == "__main__":
    write_answers()
