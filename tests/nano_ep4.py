"""Tables of `scenarios/nano-ep4/README.md`: memory beside time, how sure each verdict is, known runs of a layout.

Batches of a step are those of the files: times of two layouts compare where their batches are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import shipped_reports
from checkout import ROOT
from simcore.inputs.loading import load
from simcore.results.evidence import Evidence
from simcore.results.report import Report
from simcore.simulate import simulate
from simcore.units import in_gib

FOLDER = ROOT / "scenarios" / "nano-ep4"
ROUTING = (*(f"{{seed: 0, draws: 200, concentration: {c}}}" for c in (10, 1, 0.1)), "{imbalance: 2}")
"""The smaller the concentration, the fewer experts receive most tokens; imbalance: the busiest rank over the mean."""
ALIKE = ("automodel-8gpu-cp2-kept", "automodel-8gpu-replicate2", "automodel-8gpu-reshard")
"""Layouts whose experts receive what those of another file do."""
AGAINST = ("automodel-8gpu-against-ep8", "megatron-8gpu-against-ep8")

Rows = list[list[str]]


def reports(file: str) -> tuple[Report, ...]:
    return shipped_reports.reports(FOLDER / f"{file}.yaml")


@cache
def routed(file: str, routing: str) -> tuple[Report, ...]:
    """Reports of a file with uneven routing."""
    asked = [f"training.routing={routing}"]
    return tuple(simulate(scenario, timed=False) for scenario in load(FOLDER / f"{file}.yaml", asked))


def files() -> Iterator[str]:
    """Names of the files that have one layout each, as the folder has them."""
    for path in sorted(FOLDER.glob("*.yaml")):
        if path.stem not in AGAINST and reports(path.stem)[0].status == "ok":
            yield path.stem


def layouts() -> Rows:
    rows = [["layout", "method", "sequences a step", "peak GiB", "by measured runs GiB", "of GiB", "verdict", "step s",
             "tokens/s a GPU", "known runs"]]
    for file in files():
        for report in reports(file):
            assert report.time is not None
            assert report.evidence is not None
            sequences = str(report.scenario["training"]["global_batch_size"])
            rows.append([_name(file, report), _method(report), sequences, _size(report.highest_bytes), _band(report),
                         _size(report.capacity_bytes), str(report.verdict), _three(report.time.step_s),
                         f"{report.time.tokens_per_s_per_gpu:,.0f}", known(report.evidence)])
    return rows


def known(evidence: Evidence) -> str:
    """Words for a cell: the recipes that ship the layout, and the measured runs of its class."""
    of_class = f"{evidence.class_runs or 'none'} of its class"
    if evidence.kind == "measured":
        return "measured: " + ", ".join(run.id for run in evidence.runs)
    shipped = [f"`{recipe.file.rpartition('/')[2]}`" + "".join(f", there {key.partition('.')[2]} {value}"
               for key, value in recipe.differs.items()) + f" ({recipe.note.partition(';')[0]})" * bool(recipe.note)
               for recipe in evidence.recipes]
    return f"recipe {', '.join(shipped)}; {of_class}" if shipped else f"no run or recipe; {of_class}"


def against_ep8() -> Rows:
    rows = [["framework", "method", "micro-batch", "tokens/s a GPU: ep 4", "ep 8", "ep 4 is", "peak GiB: ep 4", "ep 8",
             "ep 4 needs", "verdict: ep 4", "ep 8"]]
    for file in AGAINST:
        found = {(_method(r), r.scenario["training"]["micro_batch_size"], r.scenario["mesh"]["ep"]): r
                 for r in reports(file)}
        for method, batch in dict.fromkeys((method, batch) for method, batch, _ in found):
            four, eight = found[method, batch, 4], found[method, batch, 8]
            more = (four.highest_bytes or 0) - (eight.highest_bytes or 0)
            rows.append([file.partition("-")[0], method, str(batch), f"{rate(four):,.0f}", f"{rate(eight):,.0f}",
                         f"{rate(four) / rate(eight) - 1:+.0%}", _size(four.highest_bytes), _size(eight.highest_bytes),
                         in_gib(more, 1, signed=True), str(four.verdict), str(eight.verdict)])
    return rows


def uneven_routing() -> Rows:
    rows = [["layout", "method", "balanced GiB", "concentration 10", "1", "0.1", "verdict at 0.1", "imbalance 2",
             "verdict"]]
    for file in (name for name in files() if name not in ALIKE and reports(name)[0].scenario["workload"] == "train"):
        for number, report in enumerate(reports(file)):
            steps = [routed(file, routing)[number] for routing in ROUTING]
            more = [in_gib((step.highest_bytes or 0) - (report.highest_bytes or 0), signed=True) for step in steps]
            rows.append([_name(file, report), _method(report), _size(report.highest_bytes), *more[:-1],
                         str(steps[-2].verdict), more[-1], str(steps[-1].verdict)])
    return rows


def rate(report: Report) -> float:
    """Tokens a second and GPU."""
    assert report.time is not None
    return report.time.tokens_per_s_per_gpu


TABLES: dict[str, Callable[[], Rows]] = {
    "layouts": layouts, "ep 4 and ep 8": against_ep8, "uneven routing": uneven_routing}


def _name(file: str, report: Report) -> str:
    """File, with the value of its sweep where that is no method."""
    _, _, swept = report.name.partition("[")
    key, _, value = swept.rstrip("]").partition("=")
    return f"`{file}`" if key in ("", "training.method") else f"`{file}`, {key.rpartition('.')[2]} {value}"


def _method(report: Report) -> str:
    return str(report.scenario["training"]["method"])


def _band(report: Report) -> str:
    low, high = report.band_bytes or (0, 0)
    return f"{_size(low)} to {_size(high)}"


def _size(size: int | None) -> str:
    return "" if size is None else in_gib(size, 1)


def _three(value: float) -> str:
    return f"{value:#.3g}"
