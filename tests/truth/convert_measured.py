"""Published measurements, restated as our own rows: what was measured, in bytes, and the scenario that was run.

    python tests/truth/convert_measured.py MEASURED.json MEGATRON_GOLDENS.json MLPERF.json

Comes in: the collections of published measurements (a list of runs; one golden file of Megatron-LM a line; a list of
MLPerf results).
Goes out: `measured/GROUP.jsonl`, one row a line. A scenario is derived from the row's published configuration alone,
by one rule for each group; no rule looks at what was measured. What a scenario cannot say gets `not_modelled`, with the
reason; so does a run that another row restates, or whose source prints neither memory nor a step: no run of the two
collections is left out. `README.md` beside this file tells how readings are to be read.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import measured_arctic
import measured_automodel
import measured_bridge
import measured_cards
import measured_golden
import measured_megatron
import measured_mlperf
import measured_nemo_rl
import measured_peft
import measured_primus
import measured_reports
import measured_torch
import measured_tuners
from measured_runs import converted
from source_row import Unheard

HERE = Path(__file__).resolve().parent / "measured"
RULES = {
    "simumax-b200": (measured_megatron.simumax, measured_megatron.SIMUMAX),
    "korthikanti": (measured_megatron.korthikanti, measured_megatron.KORTHIKANTI),
    "mbridge-skill": (measured_megatron.bridge_skill, measured_megatron.SKILL),
    "mbridge-est": (measured_megatron.estimator, measured_megatron.ESTIMATOR),
    "mbridge-card": (measured_cards.card, measured_cards.VOCABULARY),
    "automodel-blog": (measured_automodel.blog, measured_automodel.BLOG),
    "automodel-perf": (measured_automodel.perf, measured_automodel.PERF),
    "automodel-docs": (measured_automodel.docs, measured_automodel.DOCS),
    "fms-fsdp": (measured_torch.fms, measured_torch.FMS),
    "llm-foundry": (measured_torch.foundry, measured_torch.FOUNDRY),
    "torchtitan": (measured_torch.torchtitan, measured_torch.TITAN),
    "torchtitan-log": (measured_torch.torchtitan, measured_torch.TITAN),
    "kempnerforge": (measured_torch.kempner, measured_torch.KEMPNER),
    "torchtune": (measured_torch.torchtune, measured_torch.TORCHTUNE),
    "unsloth": (measured_tuners.unsloth, measured_tuners.UNSLOTH),
    "ms-swift": (measured_tuners.swift, measured_tuners.SWIFT),
    "axolotl": (measured_tuners.axolotl, measured_tuners.AXOLOTL),
    "issues": (measured_tuners.issue, measured_tuners.ISSUES),
    "arctic-training": (measured_arctic.arctic, measured_arctic.VOCABULARY),
    "peft": (measured_peft.peft, measured_peft.VOCABULARY),
    "primus": (measured_primus.primus, measured_primus.VOCABULARY),
    "llamafactory": (measured_reports.factory, measured_reports.FACTORY),
    "soup": (measured_reports.soup, measured_reports.SOUP),
    "verl": (measured_reports.verl, measured_reports.VERL),
    "nemo-rl-perf": (measured_nemo_rl.nemo_rl, measured_nemo_rl.VOCABULARY),
    "nemo-rl-article": (measured_nemo_rl.article, measured_nemo_rl.BY_ARTICLE),
}
"""By group: the rule, and the vocabulary of its rows."""
SINCE_FIT = (
    ("params_total", 15816584704, {"model": {"config": "deepseek-v2-lite", "overrides": {"vocab_size": 129280}}}),
    ("recipe", "nemotron_3_5_lightning_pretrain_8k_fsdp_config", {"training": {"precision": {"main_grads": "fp32"}}}))
"""Corrections that came after the fit of times: key and value of a run's `config`, and what changes in its scenario.

torchtitan b109f7d71 prints a vocabulary of 129,280 tokens, and that many more parameters. Bridge 067f987d
`recipes/nemotronh/gb200/nemotron_3_nano.py`:200 accumulates in fp32 (megatron_fsdp_main_grads_dtype). Memory is
compared by the corrected scenario; the time keeps the one that was fitted, until times are fitted anew: then these
become rules.
"""
APART = ("mcore-golden-norms",)
"""Groups that are in no collection: their files are left as they are."""
NOT_READ = ("nemo-longseq",)
"""Groups whose rows have no reading of memory and no time of a step: TFLOP/s alone, by a count that is not stated."""


def rows(measured, goldens, results):
    """Every run, in the order of the sources."""
    known = {_long(golden["source"]) for golden in goldens}
    for golden in goldens:
        copy = measured_golden.copied_from(golden)
        yield from [aside(golden, f"the same run as {copy}, stored twice")] if copy else measured_golden.rows(golden)
    for run in measured:
        if run["group"] == "mcore-golden":
            restated = run["source"].removeprefix("github:") in known
            yield aside(run, "a golden value that the other collection restates") if restated else \
                measured_golden.unfiled(run)
        else:
            yield from corrected(run, row(run) or aside(run, _lacking(run)))
    yield from map(measured_mlperf.row, results)


def added(measured):
    """Runs that came after the collection: those of `source_rows.jsonl` that name their layout, and all later rows."""
    known = {run["id"] for run in measured}
    lines = [line for name in ("source_rows", "later_rows")
             for line in HERE.with_name(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    later = (run for run in map(json.loads, lines) if "group" in run and "config_group" in run)
    return [run for run in later if run["id"] not in known]


def row(run):
    """Our row of a run; None for one that carries no memory reading, no verdict and no time."""
    group = run["group"]
    if group in NOT_READ:
        return None
    if group == "mbridge-perf-summary":
        return measured_bridge.row(run)
    if group not in RULES:
        known = ", ".join((*RULES, "mbridge-perf-summary", "mcore-golden", *NOT_READ))
        raise Unheard(f"row {run['id']}: group: unknown word {group!r}; known: {known}")
    return converted(run, *RULES[group])


def corrected(run, made):
    """The row of a run, or with a correction in `SINCE_FIT` two: of its time, and of its memory (`...:memory`)."""
    config = run["config"] or {}
    changes = next((then for key, value, then in SINCE_FIT if config.get(key) == value), None)
    if changes is None or "scenario" not in made:
        return [made]
    read = {name: made.pop(name) for name in ("readings", "verdict")}
    memory = {name: made[name] for name in ("id", "group", "source")} | {"id": f"{made['id']}:memory"}
    return [made, memory | {"scenario": _merged(made["scenario"], changes)} | read]


def _merged(block, changes):
    return {**block, **{key: _merged(block[key], value) if isinstance(value, dict) and isinstance(block[key], dict)
                        else value for key, value in changes.items()}}


def aside(run, reason):
    """A run of which nothing is compared."""
    group = run.get("group") or measured_golden.group_of(run["model"], resumed=run["second_run"])
    return {"id": run["id"], "group": group, "source": run["source"], "not_modelled": reason}


def _lacking(run):
    """Why neither memory nor the time of a step can be read off a run."""
    printed = ", ".join(sorted(name for name, value in run["measured"].items() if value is not None))
    return f"neither memory nor the time of a step is printed: {printed}"


def _long(source):
    """One collection shortens the commit to 8 digits, the other to 12."""
    return source.replace("@d98e8a64:", "@d98e8a64ddf3:")


def main(measured_file, goldens_file, results_file):
    """Write one file a group."""
    measured = json.loads(Path(measured_file).read_text(encoding="utf-8"))
    goldens = [json.loads(line) for line in Path(goldens_file).read_text(encoding="utf-8").splitlines()]
    results = json.loads(Path(results_file).read_text(encoding="utf-8"))
    measured += added(measured)
    groups = defaultdict(list)
    for row in rows(measured, goldens, results):
        groups[row["group"]].append(json.dumps(row, ensure_ascii=False))
    HERE.mkdir(exist_ok=True)
    for old in HERE.glob("*.jsonl"):
        if old.stem not in APART:
            old.unlink()
    for group, lines in sorted(groups.items()):
        (HERE / f"{group}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
        print(f"{group}: {len(lines)} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
