"""Searches over drawn spaces, and what must hold of their answers; hostile words and blocks of search and solve.

Of a space with few layouts everything is simulated, so that the pruned answer has something to be compared with.
"""

from __future__ import annotations

from itertools import islice, pairwise
from random import Random
from typing import Any, Final

from fuzz import seeds
from fuzz.case import Findings, Input, Tree
from fuzz.commands import LINES
from fuzz.drawing import FILE, drawn_layout, parsed
from fuzz.mutations import mutated_tree
from simcore.cli.search import asked_space, chosen_objectives
from simcore.errors import InputError, RankscopeError
from simcore.inputs.document import parse_document
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.results.found import FoundLayout, SearchResult
from simcore.search.objective import OBJECTIVES
from simcore.search.scenarios import files_of
from simcore.search.search import Search, search
from simcore.search.space import Space, candidates
from simcore.simulate import simulate

__all__ = ["draw", "judge", "question"]

_MOST: Final = 16
"""Layouts of a space, each of which is simulated several times."""
_ABOVE: Final = 1 + 1e-12
"""Factor above which numbers differ by more than rounding of a quotient."""
_FRAMEWORKS: Final = ("fsdp2", "automodel", "megatron", "zero3", "zero2", "ddp", "fsdp1", "megatron_fsdp")
_AXES: Final = ("mesh.tp", "mesh.ep", "mesh.pp", "mesh.dp_shard", "mesh.cp", "options")
_CONDITIONS: Final = ("mesh.tp <= 2", "peak_gib < 40", "mesh.pp == 1 or mesh.tp == 1", "verdict == 'fits'", "mfu >= 0",
                      "step_s < 100", "not mesh.cp > 1", "num_gpus in (1, 2, 4)", "headroom_gib > 1 and mesh.ep >= 1",
                      "training.micro_batch_size * mesh.dp_shard < 9", "tokens_per_s_per_gpu > 10")


# ---- drawn spaces ---------------------------------------------------------------------------------------------------
def draw(random: Random) -> Input:
    """A layout with a block `search` of at most `_MOST` layouts, as far as leaving keys out can do it."""
    tree = _roomy(drawn_layout(random), random)
    own = tree.get("framework", "fsdp2")
    block: Tree = {"gpus": random.choice(([1], [2], [1, 2], [3], [2, 3], [4], [6])),
                   "framework": random.choice(([own], [own], [own, random.choice(_FRAMEWORKS)])), "free": {"mesh": []}}
    for key in random.sample(_AXES, random.choice((0, 1, 2))):
        block["free"][key] = []
    if random.random() < 0.5:
        block["free"]["training.micro_batch_size"] = random.sample((1, 2, 3, 4), 2)
    if random.random() < 0.5:
        block["free"]["training.recompute"] = random.choice(([], ["full"], ["none", "full"]))
    if random.random() < 0.4:
        block["where"] = random.sample(_CONDITIONS, random.choice((1, 2)))
    if random.random() < 0.2:
        block["allow"] = [random.choice(("bf16-params", "bf16-grads", "bf16-moments"))]
    block["objective"], *block["pareto"] = random.sample(sorted(OBJECTIVES), random.choice((2, 2, 3)))
    return Input({FILE: {**tree, "search": _small(tree, block)}})


def _roomy(tree: Tree, random: Random) -> Tree:
    """The layout without its mesh, with a batch that many meshes divide, and mostly without its limits."""
    training = {**tree.get("training", {}), "global_batch_size": random.choice((12, 24, 48))}
    left_out = ("mesh", *(("limits",) if random.random() < 0.7 else ()))
    return {**{key: value for key, value in tree.items() if key not in left_out}, "training": training}


def _small(tree: Tree, block: Tree) -> Tree:
    """The block, without keys that make too many layouts."""
    for less in ((), ("options",), ("training.recompute",), ("training.micro_batch_size",)):
        block = {**block, "free": {key: values for key, values in block["free"].items() if key not in less}}
        block["free"] = block["free"] or {"mesh.tp": []}
        try:
            if _count(parsed({**tree, "search": block})) <= _MOST:
                return block
        except RankscopeError:
            return block
    return {**block, "gpus": block["gpus"][:1], "framework": block["framework"][:1],
            "free": {"mesh.dp_shard": [], "mesh.tp": [], "mesh.ep": [1, 2]}}


def _count(scenario: Scenario) -> int:
    return sum(1 for _ in islice(candidates(asked_space(scenario, "", (), (), None)), 10 * _MOST))


def judge(given: Input, found: Findings) -> None:
    """One search, pruned and of all layouts, and what must hold of it; of what is refused only how."""
    tree = given.files[FILE]
    assert isinstance(tree, dict)
    try:
        scenario = parsed(tree)
        space = asked_space(scenario, "", (), (), None)
        if _count(scenario) > _MOST:
            found.count("spaces too large")
            return
        assert scenario.search
        objectives = chosen_objectives(scenario.search.objective, scenario.search.pareto)
        whole = search(Search(space, objectives, top=5, prunes=False))
    except InputError as error:
        found.count("spaces refused")
        found.expect("a refusal of a search is a line", len(str(error.problems[0]).splitlines()) == 1, str(error))
        return
    found.count("spaces with an answer" if whole.best else "spaces without a layout that fits")
    pruned = search(Search(space, objectives, top=5))
    found.expect("pruned is exhaustive", (pruned.best, pruned.pareto) == (whole.best, whole.pareto),
                 lambda: f"{pruned.best[:2]} {len(pruned.pareto)}, all: {whole.best[:2]} {len(whole.pareto)}")
    fewer = search(Search(space, objectives, top=2))
    found.expect("fewer places are the first ones", fewer.best == pruned.best[:2], lambda: str(fewer.best))
    for result in (pruned, whole):
        _hold(result, space, found)
    _expect_files(scenario, pruned, found)


def _hold(result: SearchResult, space: Space, found: Findings) -> None:
    """Counts, order and Pareto set of an answer."""
    counts = result.counts
    parts = (counts.refused, counts.at_rest, counts.oom, counts.unsure, counts.excluded, counts.slower, counts.alike,
             counts.ranked)
    found.expect("counts of a search add up", sum(parts) == counts.candidates == sum(1 for _ in candidates(space)),
                 lambda: str(counts))
    found.expect("simulated are those that are legal and not too large at rest",
                 counts.simulated == counts.candidates - counts.refused - counts.at_rest, lambda: str(counts))
    found.expect("refusals are counted by rule", sum(rule.count for rule in result.refused) == counts.refused,
                 lambda: str(result.refused))
    bugs = [rule.message for rule in result.refused if rule.status == "bug"]
    found.expect("no layout of a search is a bug", not bugs, lambda: str(bugs))
    values = [_values(one, result) for one in result.ranked]
    found.expect("a ranking is in order", all(a[0] <= b[0] * _ABOVE for a, b in pairwise(values)),
                 lambda: str([value[0] for value in values]))
    front = [_values(one, result) for one in result.pareto]
    found.expect("no layout of the Pareto set is dominated",
                 not any(_dominates(other, value) for value in front for other in values), lambda: str(front))
    found.expect("a layout beside the Pareto set has one of it that is nowhere worse",
                 all(any(_is_no_worse(other, value) for other in front) for value in values), lambda: str(values))
    found.expect("what is ranked fits", all(one.verdict == "fits" for one in result.ranked), lambda: str(result.ranked))


def _is_no_worse(other: tuple[float, ...], value: tuple[float, ...]) -> bool:
    return all(a <= b * _ABOVE for a, b in zip(other, value, strict=True))


def _dominates(other: tuple[float, ...], value: tuple[float, ...]) -> bool:
    """True if the other is nowhere worse, and better by more than rounding somewhere."""
    return all(a <= b for a, b in zip(other, value, strict=True)) and any(
        a * _ABOVE < b for a, b in zip(other, value, strict=True))


def _values(one: FoundLayout, result: SearchResult) -> tuple[float, ...]:
    """Values of the objectives, smaller first."""
    dollars = one.usd_per_million_tokens
    known = {"tokens": 1 / one.tokens_per_s_per_gpu, "step": one.step_s, "peak": float(one.peak_bytes),
             "gpus": float(one.num_gpus), "cost": float("inf") if dollars is None else dollars}
    return tuple(known[name] for name in result.objectives)


def _expect_files(scenario: Scenario, result: SearchResult, found: Findings) -> None:
    """The written scenario of each place is read again, and gives its numbers."""
    for one, (name, text) in zip(result.best, files_of([scenario], [result], scenario.folder), strict=True):
        again = parse_scenario(parse_document(text, name))
        report = simulate(again)
        found.expect("a written scenario has the peak of its place", report.highest_bytes == one.peak_bytes,
                     f"{name}: {report.highest_bytes}, place {one.peak_bytes} {one.keys}")
        found.expect("a written scenario has the step of its place", report.time and report.time.step_s == one.step_s,
                     f"{name}: {report.time and report.time.step_s}, place {one.step_s} {one.keys}")
        asked = changed(scenario, {**one.keys, "name": again.name})
        found.expect("the keys of a place make the written scenario", asked == again, name)


# ---- hostile words --------------------------------------------------------------------------------------------------
_BASE: Final[Tree] = {"name": "s", "model": "llama-tiny", "framework": "fsdp2", "topology": "dgx-h100",
                      "training": {"seq_len": 64, "global_batch_size": 8}}
_BLOCK: Final[Tree] = {"gpus": [1, 2], "framework": ["fsdp2"], "where": ["mesh.tp <= 2"], "objective": "tokens",
                       "free": {"mesh.tp": [], "training.micro_batch_size": [1, 2]}, "pareto": ["peak"]}
_TEXTS: Final = (
    "", " ", ",", "x", "1", "0", "-1", "1-2", "2-1", "1,1", "1e9", "9" * 30, "mesh", "mesh.tp", "mesh.tp=1,2",
    "mesh.tp=", "mesh.tp=[1", "mesh.tp={a: 1}", "mesh.zz=1", "training.seq_len=64,x", "options", "=1", "a.b.c=1",
    "name=a,b", "mesh.tp=1,1", "model=llama-tiny,nothing", "topology=moon", "framework=fsdp2,jax", "mesh.tp <",
    "mesh.tp == 'x'", "mesh.tp < 'x'", "peak_gib", "1 < 2", "a.b == 1", "mesh == 1", "1/0 > mesh.tp",
    "mesh.tp ** 9 > 1", "(mesh.tp", "mesh.tp in (1, 2)", "mesh.tp in 1", "x" * 2000, "(" * 300 + "mesh.tp",
    "not " * 200 + "mesh.tp", "mesh.tp == 1" + " or mesh.tp == 1" * 50, "step_s > 0 / 0", "verdict > 1", "mfu",
    "fsdp2,megatron", "jax", "dgx-h100,moon", "bf16-params", "fp2", "tokens", "cost,peak", "beauty", "gpus", "cost",
    "seq_len", "micro_batch_size", "\x00", "y\x1b[31m", "training.lora.rank=1", "mesh.tp=true", "mesh.tp=1.5",
    "mesh.tp=null", "training={}", "sweep={}", "search={}", "search.gpus=[1]")
_OF_SEARCH: Final = ("--gpus", "--framework", "--topology", "--free", "--where", "--allow", "--objective", "--pareto",
                     "--top", "--unsure", "--write", "-o", "--shard", "--from", "--html", "--set")
_OF_SOLVE: Final = ("--for", "--max", "--min", "--gpu-of", "--gpus", "--framework", "--topology", "--free", "--where",
                    "--allow", "--set")


def question(random: Random) -> Input:
    """A call of search or solve with odd words, or a block `search` in which something is not what is expected."""
    command = random.choice(("search", "search", "solve"))
    options = [word for _ in range(random.choice((0, 1, 1, 2, 3)))
               for word in (random.choice(_OF_SEARCH if command == "search" else _OF_SOLVE), random.choice(_TEXTS))]
    block: Any = _BLOCK if random.random() < 0.5 else mutated_tree(_BLOCK, random, random.choice((1, 1, 2)))
    if random.random() < 0.1:
        block = {**_BLOCK, random.choice(("where", "allow", "framework", "pareto")): [random.choice(_TEXTS)]}
    words = (*(("-j", "1") if command == "search" else ()), *(("--json",) if random.random() < 0.3 else ()))
    base = _BASE if random.random() < 0.9 else seeds.PLAIN
    return Input({FILE: {**base, "search": block}}, (command, FILE, *words, *options), () if options else (LINES,))
