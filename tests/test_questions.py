"""The figures of `docs/questions.md` are what the engine gives today; only what others published stands there as text.

`python tests/test_questions.py --write` makes its tables again.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import pytest

import nano_ep4
from checkout import ROOT
from published import in_gib_too
from simcore.batch.advice import advise
from simcore.cli.sheets.tables import setting
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.inputs.loading import load
from simcore.pipeline.schedule import actions
from simcore.placement.plan import place as place_rank
from simcore.program.lower import lower
from simcore.program.outline import Phase
from simcore.program.record_layers import Workload
from simcore.program.tile import AMOUNT, LAYER, OP, SLOT
from simcore.recording.tape import Op
from simcore.results.report import AtRest, Peak, RankReport, Report
from simcore.simulate import place, simulate
from simcore.units import format_bytes, in_gib
from simcore.validation.runs import Measured, read_measured

SCENARIOS = ROOT / "scenarios"
PAGE = ROOT / "docs" / "questions.md"
LONGEST = 262_144
"""Tokens that the model was made for (max_position_embeddings of Nemotron 3 Nano)."""

Rows = list[list[str]]


# ---- what is asked of the engine -------------------------------------------------------------------------------------
@cache
def reports(file: str, *overrides: str) -> tuple[Report, ...]:
    return tuple(simulate(scenario, timed=False) for scenario in load(SCENARIOS / f"{file}.yaml", overrides))


def one(file: str, *overrides: str) -> Report:
    (report,) = reports(file, "sweep=null", *overrides)
    assert report.status == "ok", report.problems
    return report


def named(name: str) -> Report:
    """Report of the sizing tables, by its name in `published.csv`."""
    file = name.partition("[")[0]
    paths = [SCENARIOS / "nano-published" / f"{stem}.yaml" for stem in (file, f"{file}-by-gpus")]
    found = [report for path in paths if path.exists() for report in reports(f"nano-published/{path.stem}")]
    return next(report for report in found if report.name == name)


def fullest(report: Report) -> tuple[RankReport, Peak]:
    rank = report.peak_rank
    assert rank is not None
    assert rank.peak is not None
    return rank, rank.peak


def longest(file: str, *overrides: str, step: int = 1024) -> int:
    """The longest sequence that fits, in steps."""
    low, high = 0, LONGEST // step + 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = one(file, *overrides, f"training.seq_len={middle * step}").verdict == "fits"
        low, high = (middle, high) if fits else (low, middle)
    return low * step


def gib(size: float) -> str:
    return in_gib(size, 1)


def peak_size(report: Report) -> str:
    return gib(fullest(report)[1].device_bytes)


def held(peak: Peak, *categories: str) -> int:
    return sum(peak.by_category.get(name, 0) for name in categories)


def at_rest(rank: RankReport, part: Callable[[AtRest], int]) -> int:
    return sum(part(component) for component in rank.at_rest.values())


# ---- expert parallelism on four GPUs ---------------------------------------------------------------------------------
def four_gpus() -> Rows:
    rows = [["framework", "method", "at rest GiB", "peak GiB", "by measured runs GiB", "of GiB", "verdict",
             "smallest change that makes it fit", "known runs"]]
    for framework in ("automodel", "megatron"):
        for method in ("lora", "full"):
            file, asked = f"nano-ep4/{framework}-4gpu", f"training.method={method}"
            report = one(file, asked)
            assert report.evidence is not None
            low, high = report.band_bytes or (0, 0)
            rows.append([framework, method, gib(fullest(report)[0].at_rest_bytes()), peak_size(report),
                         f"{gib(low)} to {gib(high)}", gib(report.capacity_bytes or 0), str(report.verdict),
                         _advice(file, asked, report), nano_ep4.known(report.evidence)])
    return rows


def _advice(file: str, asked: str, report: Report) -> str:
    if report.verdict == "fits":
        return ""
    first = advise(load(SCENARIOS / f"{file}.yaml", ["sweep=null", asked])[0])[0]
    told = " ".join(setting(key, value) for key, value in first.changes.items())
    return f"`{told}`: {format_bytes(first.peak_bytes)}" if first.verdict == "fits" else "none of one or two changes"


# ---- the longest sequence --------------------------------------------------------------------------------------------
NODE = "nano-megatron-vs-fsdp2"
LADDERS = (
    ("automodel", "full", f"{NODE}/sft-8-automodel", ("none", "full")),
    ("megatron", "full", f"{NODE}/sft-8-megatron", ("none", "[moe]", "full")),
    ("fsdp2", "full", f"{NODE}/sft-8-fsdp2-recompute", ("none", "full")),
    ("automodel", "lora", f"{NODE}/lora-8-automodel", ("none", "full")),
    ("megatron", "lora", f"{NODE}/lora-8-megatron", ("none", "[moe]", "full")),
    ("fsdp2", "lora", f"{NODE}/lora-8-fsdp2", ("none", "full")),
)
SPLIT = (
    ("automodel", "full", f"{NODE}/sft-8-automodel", "cp"),
    ("megatron", "full", f"{NODE}/sft-8-megatron", "tp"),
    ("automodel", "lora", f"{NODE}/lora-8-automodel", "cp"),
    ("megatron", "lora", f"{NODE}/lora-8-megatron", "cp"),
)


def longest_sequence() -> Rows:
    rows = [["framework", "method", "layout", "recompute", "longest sequence that fits"]]
    for framework, method, file, recomputes in LADDERS:
        for recompute in recomputes:
            tokens = longest(file, "training.global_batch_size=8", f"training.recompute={recompute}")
            layout = "dp 8" if framework == "fsdp2" else "dp 8, ep 8"
            rows.append([framework, method, layout, recompute.strip("[]"), _tokens(tokens)])
    for framework, method, file, axis in SPLIT:
        tokens = longest(file, "training.global_batch_size=1", "training.recompute=full", "mesh.dp_shard=1",
                         f"mesh.{axis}=8")
        rows.append([framework, method, f"{axis} 8, ep 8", "full", _tokens(tokens)])
    return rows


def _tokens(tokens: int) -> str:
    return "none fits" if tokens == 0 else f"{tokens:,} (the model's own limit)" if tokens == LONGEST else f"{tokens:,}"


# ---- what is kept for backward ---------------------------------------------------------------------------------------
def kept(file: str, *overrides: str) -> Counter[str]:
    """Activation bytes that one microbatch leaves at the end of forward, by kind of layer; keys and values apart."""
    (scenario,) = load(SCENARIOS / f"{file}.yaml", ["sweep=null", *overrides])
    job, framework = prepare(scenario)
    plan = place_rank(job.graph, job.mesh, framework, 0)
    training = scenario.training
    workload = Workload(training.micro_batch_size, training.seq_len // job.mesh.cp, TOP_K << 16)
    program = lower(plan, workload, actions(framework.schedule, 0, 1), hooks_of(framework))
    owners = {number: owner for owner, number in program.tables.slots.items()}
    found: Counter[str] = Counter()
    for row, phase in zip(program.columns.tolist(), program.phase.tolist(), strict=True):
        name, category = owners.get(row[SLOT], ("", ""))
        if phase not in (Phase.FORWARD, Phase.LOSS) or row[OP] not in (Op.ALLOC, Op.FREE) or category != "activation":
            continue
        kind = job.graph.kinds[job.graph.layers[row[LAYER]].kind].name
        found[kind] += row[AMOUNT]
        found["all layers"] += row[AMOUNT] * (kind not in ("loss", "head"))
        found["keys and values"] += row[AMOUNT] * (re.search(r"^(key|value)|\b[kv]_proj", name) is not None)
    return found


TOP_K = 6
"""Experts of Nemotron 3 Nano that a token visits; balanced, a rank receives as many rows as it sends."""
EIGHT_K = ("training.seq_len=8192", "training.global_batch_size=8")
KEEPERS = (("megatron", "lora-8-megatron", ()), ("automodel", "lora-8-automodel", ()), ("fsdp2", "lora-8-fsdp2", ()))


def keys_and_values() -> Rows:
    rows = [["framework", "kept for backward GiB", "attention GiB", "keys and values GiB", "their share"]]
    for framework, file, overrides in KEEPERS:
        found = kept(f"{NODE}/{file}", *EIGHT_K, *overrides)
        whole, pair = found["all layers"] + found["loss"], found["keys and values"]
        rows.append([framework, gib(whole), gib(found["attention"]), in_gib(pair), f"{pair / whole:.2%}"])
    return rows


# ---- published sizes -------------------------------------------------------------------------------------------------
@cache
def published() -> dict[str, dict[str, str]]:
    with (SCENARIOS / "nano-published" / "published.csv").open(encoding="utf-8", newline="") as stream:
        return {row["scenario"]: row for row in csv.DictReader(stream)}


def sizes(file: str, unpublished: str = "") -> Rows:
    """Published totals of a table beside ours, a row each; then layouts that the table leaves out."""
    rows = [["layout", "published weights GiB", "ours", "published peak GiB", "ours", "published verdict", "ours"]]
    told = {name: row for name, row in published().items() if name.partition("[")[0] == file and row["total_gb"]}
    others = reports(f"nano-published/{unpublished}") if unpublished else ()
    for report in (*map(named, told), *others):
        row = told.get(report.name, {})
        weights = gib(at_rest(fullest(report)[0], lambda part: part.params_bytes))
        told_weights, told_peak = (in_gib_too(row.get(key, "")) for key in ("weights_gb", "total_gb"))
        rows.append([_layout(report), told_weights, weights, told_peak, peak_size(report),
                     row.get("verdict", ""), str(report.verdict)])
    return rows


def _layout(report: Report) -> str:
    mesh, training = report.scenario["mesh"], report.scenario["training"]
    count = mesh["pp"] * mesh["dp_shard"] * mesh["cp"] * mesh["tp"]
    axes = ", ".join(f"{axis} {mesh[axis]}" for axis in ("tp", "cp", "ep") if mesh[axis] > 1)
    return f"{count} GPU{'s' * (count > 1)}{', ' if axes else ''}{axes}, {training['seq_len']:,} tokens"


def adapters() -> Rows:
    rows = [["rank", "published", "recipe", "adapters that are made", "on a rank"]]
    recipes = (("8", "220 M", "Automodel", "nano-published/automodel-recommended-lora", 8, ()),
               ("32", "883 M", "Megatron-Bridge", "nano-published/bridge-min-lora", 8, ()),
               ("128", "3.5 B", "NeMo RL GRPO", "nemo-rl-sft/nano-lora", 1, ()),
               ("256", "7.1 B", "NeMo RL SFT", "nemo-rl-sft/nano-lora", 1, ()))
    for rank, told, recipe, file, ep, overrides in recipes:
        (scenario,) = load(SCENARIOS / f"{file}.yaml", ["sweep=null", f"training.lora.rank={rank}", *overrides])
        made, own = _trainable(place(scenario), ep)
        rows.append([rank, told, recipe, f"{made / 1e6:.2f} M", f"{own / 1e6:.2f} M"])
    return rows


def _trainable(report: Report, ep: int) -> tuple[int, int]:
    """(in all, on rank 0). Sharded adapters are parts of one; whole ones are copies, but of experts one an ep rank."""
    rank = report.ranks[0]
    own = at_rest(rank, lambda part: part.num_trainable_params)
    if not rank.grads_persist:
        return sum(r.num_ranks * at_rest(r, lambda part: part.num_trainable_params) for r in report.ranks), own
    experts = rank.at_rest["expert_adapters"].num_trainable_params
    return own + (ep - 1) * experts, own


COLUMNS = (
    ("full, 16 GPUs", "11.8", "23.6", "11.8", "6.1", "56", "bridge-min-sft[training.micro_batch_size=1]"),
    ("LoRA, rank 32, 8 GPUs", "11.8", "1.1", "0.3", "6.1", "22", "bridge-lora[mesh.dp_shard=8,mesh.ep=8]"),
    ("LoRA, rank 256, 16 GPUs, adapters as this Bridge makes them", "11.8", "8.9", "1.8", "6.1", "31",
     "bridge-lora-rank256[training.lora.expert_adapters=shared]"),
    ("LoRA, rank 256, 16 GPUs, one for each expert", "11.8", "8.9", "1.8", "6.1", "31",
     "bridge-lora-rank256[training.lora.expert_adapters=per_expert]"),
)


def components() -> Rows:
    rows = [["layout", "", "weights GiB", "optimizer GiB", "gradients GiB", "activations and the rest GiB",
             "peak GiB"]]
    for layout, *told, total, name in COLUMNS:
        _, peak = fullest(named(name))
        parts = [held(peak, "sharded_param"), held(peak, "opt_state", "main_param"), held(peak, "main_grad")]
        rows.append([layout, "published", *map(in_gib_too, (*told, total))])
        rows.append(["", "ours", *map(gib, (*parts, peak.device_bytes - sum(parts))), gib(peak.device_bytes)])
    return rows


def by_kind() -> Rows:
    found = kept(f"{NODE}/lora-8-megatron", *EIGHT_K)
    told = {"moe": "16.2", "mamba": "7.1", "attention": "1.1", "embedding": "0.1", "loss": "left out"}
    words = {"embedding": "embeddings and other", "loss": "logits, in the loss"}
    rest = found["embedding"] + found["final_norm"] + found["head"]
    sums = {kind: rest if kind == "embedding" else found[kind] for kind in told}
    rows = [["kept at 8,192 tokens", "published GiB", "ours GiB", "share"]]
    for kind, size in sums.items():
        quoted = in_gib_too(told[kind]) if kind != "loss" else told[kind]
        rows.append([words.get(kind, kind), quoted, gib(size), f"{size / sum(sums.values()):.0%}"])
    return [*rows, ["together", in_gib_too("24.5"), gib(sum(sums.values())), "100%"]]


# ---- recompute ladder ------------------------------------------------------------------------------------------------
def rungs() -> list[Measured]:
    found, problems = read_measured([str(ROOT / "tests/truth/measured/mbridge-skill.jsonl")])
    assert problems == []
    return [measured for measured in found if "nemotron3nano" in measured.row.id]


def ladder() -> Rows:
    rows = [["recompute", "measured", "measured peak GiB", "ours", "ours GiB", "error", "device full to"]]
    for rung in rungs():
        assert rung.entry is not None
        assert rung.entry.scenario is not None
        report = simulate(rung.entry.scenario, timed=False)
        peak = fullest(report)[1]
        told = [reading.bytes for reading in rung.row.readings]
        modules = ", ".join(report.scenario["training"]["recompute"])
        error = f"{peak.allocated_bytes / told[0] - 1:+.1%}" if told else ""
        rows.append([modules, str(rung.row.verdict), gib(told[0]) if told else "", str(report.verdict),
                     gib(peak.allocated_bytes), error, f"{peak.device_bytes / (report.capacity_bytes or 1):.0%}"])
    return rows


# ---- gradient accumulation -------------------------------------------------------------------------------------------
DENSE, EXPERTS, RANKS, EP = 2.203132e9, 29.374808e9, 8, 4
"""Parameters of Nemotron 3 Nano outside and inside routed experts, and the layout."""
BY_HAND = {
    "weights at rest": 2 * (DENSE + EXPERTS) / RANKS,
    "weights kept gathered": 2 * (DENSE + EXPERTS / EP),
    "gradients of the first microbatch, whole, fp32": 4 * (DENSE + EXPERTS / EP),
    "Adam's moments": 4 * (DENSE + EXPERTS) / RANKS,
}
HELD = {
    "weights at rest": ("sharded_param",),
    "weights kept gathered": ("unsharded_param", "all_gather_output"),
    "gradients of the first microbatch, whole, fp32": ("unsharded_grad",),
    "Adam's moments": ("opt_state",),
}
NANO = "gradient-accumulation/automodel-nano-cp2"
DEFER, RESHARD = "framework_options.defer_fsdp_grad_sync", "framework_options.moe.reshard_after_forward"
VARIANTS = (("defaults", "true", "false"), ("reshard", "true", "true"), ("sync each", "false", "false"),
            ("both", "false", "true"))


def variant(defer: str, reshard: str) -> tuple[str, ...]:
    return (f"{DEFER}={defer}", f"{RESHARD}={reshard}")


def accounting() -> Rows:
    found = {word: one(NANO, *variant(*options)) for word, *options in VARIANTS}
    peaks = {word: fullest(report)[1] for word, report in found.items()}
    rows = [["at the peak, GiB", "by hand", *found]]
    rows += [[what, gib(size), *(gib(held(peak, *HELD[what])) for peak in peaks.values())]
             for what, size in BY_HAND.items()]
    named_bytes = [held(peak, *(name for names in HELD.values() for name in names)) for peak in peaks.values()]
    rest = [peak.device_bytes - sum_ for peak, sum_ in zip(peaks.values(), named_bytes, strict=True)]
    rows.append(["activations, reduced gradients, temporaries, libraries, context", "", *map(gib, rest)])
    rows.append(["together", gib(sum(BY_HAND.values())), *(gib(peak.device_bytes) for peak in peaks.values())])
    rows.append(["verdict", "", *(str(report.verdict) for report in found.values())])
    rows.append(["longest sequence that fits", "", *(_tokens(longest(NANO, *variant(*options), step=256))
                                                     for _, *options in VARIANTS)])
    return rows


def syncing() -> Rows:
    rows = [["sync_gradients", "microbatches", "whole gradients GiB", "gradient shards GiB", "peak GiB",
             "reduce-scatter sent, GiB a step"]]
    for report in reports("gradient-accumulation/fsdp2-llama"):
        rank, peak = fullest(report)
        sent = sum(row.wire_bytes for row in rank.traffic if row.collective == "reduce_scatter")
        rows.append([report.scenario["framework_options"]["sync_gradients"],
                     str(report.scenario["training"]["global_batch_size"] // 8), gib(held(peak, "unsharded_grad")),
                     gib(held(peak, "sharded_grad")), gib(peak.device_bytes), gib(sent)])
    return rows


# ---- the page --------------------------------------------------------------------------------------------------------
TABLES: dict[str, Callable[[], Rows]] = {
    "four GPUs": four_gpus,
    "longest sequence": longest_sequence,
    "keys and values": keys_and_values,
    "by length": lambda: sizes("bridge-lora-by-length"),
    "longer sequences": lambda: sizes("bridge-lora-longer", "bridge-lora-fewer-gpus"),
    "by GPUs, Megatron": lambda: sizes("bridge-lora"),
    "by GPUs, Automodel": lambda: sizes("automodel-lora"),
    "adapters": adapters,
    "components": components,
    "activations": by_kind,
    "ladder": ladder,
    "accounting": accounting,
    "syncing": syncing,
}
MARKED = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))


def text() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", TABLES)
def test_the_page_says_what_the_engine_says(name: str) -> None:
    stored = {found[2]: found[0] for found in MARKED.finditer(text())}
    assert stored[name] == f"<!-- table: {name} -->\n{markdown(TABLES[name]())}<!-- end -->", (
        "if this is meant, python tests/test_questions.py --write")


def test_every_table_of_the_page_is_made() -> None:
    assert [found[2] for found in MARKED.finditer(text())] == list(TABLES)


def test_no_figure_of_ours_stands_in_the_prose() -> None:
    """Numbers that are not generated become outdated."""
    assert re.findall(r"\d[\d.,]* (?:GB|GiB)", MARKED.sub("", text()).replace("80 GB", "")) == []


def test_the_accounting_by_hand_is_the_engine_s() -> None:
    peak = fullest(one(NANO, *variant("true", "false")))[1]
    for what, size in BY_HAND.items():
        assert held(peak, *HELD[what]) == pytest.approx(size, rel=0.002), what


def test_only_the_last_microbatch_is_reduced_where_the_loop_takes_care() -> None:
    """Llama-3.1-8B on 8 ranks: fp32 gradients whole are eight times their shards; and are sent once, not each time."""
    whole = {(row[0], row[1]): row for row in syncing()[1:]}
    assert float(whole["last", "8"][2]) == pytest.approx(8 * float(whole["every", "8"][3]), rel=0.02)
    assert float(whole["every", "8"][5]) == pytest.approx(8 * float(whole["last", "8"][5]), rel=0.01)
    assert whole["last", "1"][2:] == whole["every", "1"][2:]


# ---- sentences -------------------------------------------------------------------------------------------------------
@cache
def made(name: str) -> tuple[tuple[str, ...], ...]:
    """Rows of a table, without its heads."""
    return tuple(map(tuple, TABLES[name]()[1:]))


def number(cell: str) -> float:
    """First number of a cell."""
    return float(re.findall(r"[\d.]+", cell.replace(",", ""))[0])


def ratios(name: str, ours: int, published: int) -> list[float]:
    """Ours over what is published, of each row that has a published value."""
    return [number(row[ours]) / number(row[published]) for row in made(name)
            if re.search(r"\d", row[published])]


def share_at_rest(file: str) -> float:
    report = one(file)
    return fullest(report)[0].at_rest_bytes() / (report.capacity_bytes or 1)


def is_open(report: Report, phase: str = "") -> bool:
    """True if the band crosses the capacity, with the peak in a phase."""
    return report.verdict == "unsure" and fullest(report)[1].phase.startswith(phase)


def offloaded() -> float:
    """Time of a step with the optimizer on the host, over that without."""
    steps = []
    for overrides in ((), ("training.offload.optimizer=host",)):
        (asked,) = load(SCENARIOS / "nano-ep4/megatron-4gpu.yaml", ["sweep=null", "training.method=full", *overrides])
        time = simulate(asked).time
        assert time is not None
        steps.append(time.step_s)
    return steps[1] / steps[0]


def middle_below() -> bool:
    report = one("nano-ep4/automodel-4gpu", "training.method=full", f"{DEFER}=false")
    return is_open(report) and fullest(report)[1].device_bytes < (report.capacity_bytes or 0)


def of_experts() -> bool:
    megatron, automodel, hf = (kept(f"{NODE}/{file}", *EIGHT_K)["moe"] for _, file, _ in KEEPERS)
    return automodel < min(megatron, hf) / 2


def without_what_lies_beside() -> bool:
    """The shortest sequence, with the defaults: tensors and the context alone would fit."""
    report = one(NANO, "training.seq_len=256")
    peak = fullest(report)[1]
    return is_open(report) and peak.allocated_bytes + peak.outside["context"] < (report.capacity_bytes or 0)


def account(row: int, variant_: int) -> float:
    return number(made("accounting")[row][variant_])


SHORT = ("training.global_batch_size=8", "training.seq_len=1024")
SAID: dict[str, Callable[[], bool]] = {
    "Automodel is over by little": lambda: 1 < number(made("four GPUs")[1][3]) / number(made("four GPUs")[1][5]) < 1.1,
    "brings its middle below the limit, but not the whole range": middle_below,
    "Megatron needs twice what there is":
        lambda: 1.9 < number(made("four GPUs")[3][3]) / number(made("four GPUs")[3][5]) < 2.1,
    "make the step seven tenths longer": lambda: 1.65 < offloaded() < 1.75,
    "One of the four is a recipe": lambda: ["recipe" in row[8].partition(" ")[0] for row in made("four GPUs")] == [
        True, False, False, False],
    "Megatron's full fine-tuning does not fit on this layout at any length": lambda: {
        row[4] for row in made("longest sequence") if row[:3] == ("megatron", "full", "dp 8, ep 8")} == {"none fits"},
    "what rests on a rank is nearly all of its memory": lambda: share_at_rest(f"{NODE}/sft-8-megatron") > 0.95,
    "so it does fit then": lambda: made("longest sequence")[15][4] not in ("", "none fits"),
    "its highest moment is the step of the optimizer": lambda: is_open(
        one(f"{NODE}/sft-8-fsdp2-recompute", *SHORT), "optimizer"),
    "keep less than half of what those of Megatron and of the Hugging Face code keep": of_experts,
    "would be lost in the rounding": lambda: all(number(row[4]) < 0.5 for row in made("keys and values")),
    "nearly right at 1024 tokens": lambda: ratios("by length", 4, 3)[0] < 1.05,
    "an eighth more is needed at 2048": lambda: 1.11 < ratios("by length", 4, 3)[1] < 1.14,
    "more than half as much again from 16,384 on": lambda: min(ratios("by length", 4, 3)[4:]) > 1.5,
    "three of five rows that it calls safe": lambda: [
        row[6] for row in made("longer sequences") if row[5] == "fits"].count("oom") == 3,
    "the peak is nearly the same": lambda: all(
        number(few[4]) == pytest.approx(number(many[4]), rel=0.01)
        for few, many in zip(made("longer sequences")[5:], made("longer sequences")[1:4], strict=True)),
    "The weights agree": lambda: all(abs(one - 1) < 0.01 for one in ratios("by GPUs, Megatron", 2, 1)),
    "at rest half of what is published, at the peak more": lambda: abs(
        ratios("by GPUs, Automodel", 2, 1)[1] - 0.52) < 0.02 and ratios("by GPUs, Automodel", 4, 3)[1] > 1.5,
    "so its rows are right": lambda: all(number(row[3]) / 1000 == pytest.approx(number(row[1]), rel=0.02)
                                              for row in made("adapters")[2:]),
    "Even so 8 GPUs hold rank 256": lambda: one("nemo-rl-sft/nano-lora", "mesh.dp_shard=8").verdict == "fits",
    "twice what the note says": lambda: number(made("components")[1][4]) / number(made("components")[0][4])
    == pytest.approx(2, rel=0.02),
    "shared adapters need far less": lambda: number(made("components")[5][3]) < number(made("components")[4][3]) / 10,
    "Every kind of layer with weights of its own keeps more than published": lambda: min(
        ratios("activations", 2, 1)[i] for i in (0, 1, 2)) > 1.1,
    "at a third of that": lambda: number(made("by length")[0][2]) / number(made("activations")[5][2])
    == pytest.approx(1 / 3, rel=0.05),
    "twice the size of the first": lambda: account(2, 2) == pytest.approx(2 * account(1, 2), rel=0.01),
    "Either option alone is enough": lambda: made("accounting")[6][2:] == ("oom", "fits", "fits", "fits"),
    "A single microbatch a step needs neither": lambda: one("gradient-accumulation/automodel-nano-cp2-one").verdict
    == "fits",
    "the first one gets by without them": lambda: account(5, 2) - account(3, 2) < 79.11,
    "without them, short batches stay below the capacity even with the defaults": without_what_lies_beside,
    "and more GPUs never help": lambda: number(made("syncing")[1][2]) == pytest.approx(4 * 8.03 / 1.0737, rel=0.01),
}
"""Sentences of the page about its tables, and what they say."""


@pytest.mark.parametrize("sentence", SAID)
def test_a_sentence_says_what_the_engine_says(sentence: str) -> None:
    assert " ".join(sentence.split()) in " ".join(text().split())
    assert SAID[sentence](), sentence


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/test_questions.py --write")
    anew = MARKED.sub(lambda found: f"{found[1]}{markdown(TABLES[found[2]]())}{found[3]}", text())
    PAGE.write_text(anew, encoding="utf-8", newline="\n")
