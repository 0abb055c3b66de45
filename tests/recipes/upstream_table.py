"""The table of upstream's recipes on `docs/recipes.md`: stored counts, and the text that is made of them.

    PYTHONPATH=tests python -m recipes.upstream_table --store CLONES             # counts again, every row
    PYTHONPATH=tests python -m recipes.upstream_table --store CLONES NeMo Bridge # rows with one of these words
    PYTHONPATH=tests python -m recipes.upstream_table --page                     # fills the page with what is stored

CLONES: a folder with git directories `OWNER+NAME/repo`, or `NAME`. `upstream.json` has a row for each kind of recipe:
repositories with commit and patterns of files, the formats that count (`every`: files of no format count too), and for
each outcome of `upstream.py` the number of files; `jobs`: of each kind of `jobs.py` how many are answered, and all;
`why`: reasons with the number of recipes that meet them, numbers in them as N; `older`: a release that is not counted
together with the others. Files are laid into a temporary folder and never kept. Recipes of Megatron-Bridge are asked
for by their names, which the package knows.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from recipes.jobs import IMAGES, OTHER, TEXT, job_of
from recipes.upstream import outcome
from simcore.recipes.bridge.named import is_benchmark, present_name, recipes

ROOT: Final = Path(__file__).resolve().parents[2]
STORED: Final = Path(__file__).with_suffix("").with_name("upstream.json")
PAGE: Final = ROOT / "docs" / "recipes.md"
_KEPT: Final = (".yaml", ".yml", ".json", ".toml", ".sh")
_LARGEST: Final = 2**18
_ANSWERED: Final = ("answered", "answered after one question")
_REFUSED: Final = ("refused", "wrong", "no recipe")
_FOLLOWS: Final = "model: expected text or a mapping"
"""Message about a scenario without a model, whose recipe says why there is none."""
UPSTREAMS_OWN: Final = {
    "world_size (": "Megatron-LM d98e8a64 `core/parallel_state.py:883`; Bridge 067f987d "
                    "`scripts/common/benchmark_parallelism.py:107`",
    "training.global_batch_size: expected a multiple of": "Megatron-LM `core/num_microbatches_calculator.py:381`",
    "fp8 by mxfp8: device compute capability": "TransformerEngine `pytorch/quantization.py`, _compute_mxfp8_support",
    "compute: NVIDIA H100 80GB HBM3 does not compute in fp4": "TransformerEngine `pytorch/quantization.py`, "
                                                              "_compute_nvfp4_support",
    "virtual_pipeline_model_parallel_size conflicts with": "Megatron-LM `core/transformer/transformer_config.py:2280`",
    "MoE with tensor parallelism trains only with sequence": "Megatron-LM `core/transformer/moe/moe_layer.py:636`",
    "Packed sequence is not supported by DotProductAttention": "Bridge `models/gemma/gemma2_provider.py:379`",
    "num_layers (": "Megatron-LM `core/transformer/transformer_block.py:158`",
    "number of layers on a pipeline rank (": "Megatron-LM `core/transformer/transformer_block.py:178`",
    "Mismatch: ": "Megatron-LM `core/transformer/transformer_config.py:2343`",
    "Qwen3VLModel has no build_schedule_plan": "Bridge 067f987d `models/qwen_vl/qwen3_vl_step.py:352`",
    "the deepstack_visual_embeds should be": "Bridge `models/qwen_vl/modelling_qwen3_vl/model.py:405`",
    "Experimental attention variant is not supported": "Bridge 067f987d `models/gpt_provider.py:364`; Megatron-LM "
                                                       "d98e8a64 `core/models/gpt/gpt_layer_specs.py:572`",
    "Invalid experimental attention variant: dsv4_hybrid": "Megatron-LM d98e8a64 `core/models/gpt/"
                                                           "experimental_attention_variant_module_specs.py:162`",
    "the recipe has no sizes of its own": "Megatron-LM `core/transformer/transformer_config.py:1456`",
}
"""Rules of upstream's own by the beginning of the message: a recipe with the GPUs of its name cannot run there."""
_HEAD: Final = ("| recipes | all | answered | with `--loose` | of texts | with images | refused by name | "
                "unknown key | model not known |", "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")


def stored() -> list[dict[str, Any]]:
    """Rows of the table."""
    rows: list[dict[str, Any]] = json.loads(STORED.read_text(encoding="utf-8"))
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown of all rows, and of their sum."""
    return "\n".join([*_HEAD, *map(_line, rows), _together(rows)])


def _together(rows: list[dict[str, Any]]) -> str:
    """Line of all rows: each recipe counts in the newest release alone (`older`: rows that do not)."""
    newest = [row for row in rows if not row.get("older")]
    kinds = (_share([sum(row["jobs"][kind][place] for row in newest) for place in (0, 1)]) for kind in (TEXT, IMAGES))
    numbers = (sum(sum(row["counts"].values()) for row in newest),
               sum(_sum(row["counts"], _ANSWERED) for row in newest), "", *kinds, "", "", "")
    return f"| together | {' | '.join(map(str, numbers))} |"


def _share(found: Sequence[int]) -> str:
    answered, every = found
    return f"{answered} of {every} ({answered / every:.0%})" if every else ""


def _line(row: Mapping[str, Any]) -> str:
    counts, loose = row["counts"], row.get("loose")
    numbers = (sum(counts.values()), _sum(counts, _ANSWERED), "" if loose is None else _sum(loose, _ANSWERED),
               _share(row["jobs"][TEXT]), _share(row["jobs"][IMAGES]), _sum(counts, _REFUSED),
               counts.get("unknown key", 0), counts.get("family", 0))
    return f"| {row['name']} | {' | '.join(map(str, numbers))} |"


def _sum(counts: Mapping[str, int], outcomes: tuple[str, ...]) -> int:
    return sum(counts.get(outcome, 0) for outcome in outcomes)


def reasons(rows: list[dict[str, Any]], word: str, *, theirs: bool) -> str:
    """Markdown of what recipes of the rows whose name has a word are refused for, most frequent first.

    `theirs`: only upstream's own refusals, each with its rule; otherwise only those of rankscope.
    """
    met: Counter[str] = Counter()
    for row in rows:
        if word in row["name"]:
            met.update({reason: count for reason, count in row["why"].items() if bool(rule_of(reason)) == theirs})
    found = sorted(met.items(), key=lambda one: (-one[1], one[0]))
    head = ("| refused | recipes | rule |", "| --- | --- | --- |") if theirs else ("| refused | recipes |",
                                                                                 "| --- | --- |")
    lines = (f"| {reason} | {count} |" + f" {rule_of(reason)} |" * theirs for reason, count in found)
    return "\n".join([*head, *lines])


def rule_of(reason: str) -> str:
    """Upstream's rule that a reason tells; "" for one that is rankscope's own."""
    return next((rule for start, rule in UPSTREAMS_OWN.items() if reason.startswith(start)), "")


def filled(page: str, rows: list[dict[str, Any]]) -> str:
    """The page with all tables as they are stored."""
    for name, text in (("upstream", table(rows)), ("bridge-own", reasons(rows, "Bridge", theirs=True)),
                       ("bridge", reasons(rows, "Bridge", theirs=False))):
        head, begin, rest = page.partition(f"<!-- begin: {name} -->\n")
        _, end, tail = rest.partition(f"<!-- end: {name} -->")
        page = f"{head}{begin}{text}\n{end}{tail}"
    return page


def _git(clones: Path, repository: str) -> Path:
    owner, _, name = repository.partition("/")
    return next(path for path in (clones / f"{owner}+{name}" / "repo", clones / name) if path.exists())


def _asked(git: Path, *words: str, given: str = "") -> bytes:
    """Output of a command of git, which reads `given`."""
    return subprocess.run(["git", "-C", str(git), *words], input=given.encode(), capture_output=True,  # noqa: S607 - git
                          check=True).stdout


def _lay_out(git: Path, commit: str, folder: Path) -> None:
    """Writes all small files of a commit that may be recipes, or that recipes name, into a folder."""
    listed = (line.split(maxsplit=4) for line in _asked(git, "ls-tree", "-r", "-l", commit).decode().splitlines())
    found = [(name, blob) for _, _, blob, size, name in listed if Path(name).suffix in _KEPT and size.isdigit()
             and int(size) <= _LARGEST]
    batch = _asked(git, "cat-file", "--batch", given="".join(f"{blob}\n" for _, blob in found))
    start = 0
    for name, _ in found:
        end = batch.index(b"\n", start)
        size = int(batch[start:end].split()[-1])
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(batch[end + 1:end + 1 + size])
        start = end + 2 + size


def _recipes_of(row: Mapping[str, Any], clones: Path, folder: Path) -> Iterator[Path]:
    for number, part in enumerate(row["of"]):
        git, place = _git(clones, part["repository"]), folder / str(number)
        if "defined" in part:
            yield from _by_name(git, part, place)
            continue
        _lay_out(git, part["commit"], place)
        paths = sorted(path for path in place.rglob("*") if path.is_file())
        yield from (path for path in paths
                    if any(fnmatchcase(path.relative_to(place).as_posix(), one) for one in part["files"]))


def _by_name(git: Path, part: Mapping[str, Any], folder: Path) -> Iterator[Path]:
    """A launch of each recipe that a folder of Bridge defines and the package's table has.

    Benchmarks are those of `perf_recipes`; a recipe of the library whose name is a benchmark's goes by its older name.
    """
    def names(place: str) -> set[str]:
        found = _asked(git, "grep", "-h", "-o", "-E", r"^def [a-z0-9_]+_config\(", part["commit"], "--", place)
        return {line.removeprefix("def ").removesuffix("(") for line in found.decode().splitlines()}

    defined, benchmarks = names(part["defined"]), "perf_recipes" in part["defined"]
    folder.mkdir()
    for name in recipes():
        is_own = present_name(name) == name or recipes()[name] != recipes()[present_name(name)]
        if present_name(name) in defined and is_own and is_benchmark(name) == benchmarks:
            path = folder / f"{name}.sh"
            path.write_text(f"python scripts/training/run_recipe.py --recipe {name}\n", encoding="utf-8")
            yield path


def counted(row: Mapping[str, Any], clones: Path) -> dict[str, Any]:
    """A row with its counts again."""
    made = {key: value for key, value in row.items() if key not in ("counts", "loose", "jobs", "why")}
    counts: Counter[str] = Counter()
    jobs: dict[str, list[int]] = {TEXT: [0, 0], IMAGES: [0, 0]}
    loosely: Counter[str] = Counter()
    why: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for path in _recipes_of(row, clones, Path(folder)):
            name, what, messages = outcome(path, row.get("gpus", 8))
            if name not in row["formats"] and what != "traceback" and not row.get("every"):
                continue
            counts[what] += 1
            job = job_of(str(path).removeprefix(folder), path.read_text(encoding="utf-8", errors="replace"), messages)
            if job != OTHER:
                jobs[job][0] += what in _ANSWERED
                jobs[job][1] += 1
            if "loose" in row:
                loosely[outcome(path, row.get("gpus", 8), loose=True)[1]] += 1
            if what != "family":
                why.update({_short(message, folder) for message in messages if not message.startswith(_FOLLOWS)})
    made |= {"counts": dict(sorted(counts.items())), "jobs": jobs}
    if "loose" in row:
        made["loose"] = dict(sorted(loosely.items()))
    return made | {"why": {reason: count for reason, count in sorted(why.items()) if count >= row.get("least", 5)}}


def _short(message: str, folder: str) -> str:
    """A reason without numbers, places and names of its own."""
    text = re.sub(r"(?<![-\w.])\d{2,}(?![-\w.])", "N", message.replace(folder, "")).removeprefix("not yet: ")
    return text.split(" (did you mean")[0].replace("|", "/")[:110]


def main() -> int:
    """Stores counts, or fills the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--store", type=Path, default=None, metavar="CLONES")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args()
    rows = stored()
    if asked.store is not None:
        for number, row in enumerate(rows):
            if not asked.words or any(word in row["name"] for word in asked.words):
                rows[number] = counted(row, asked.store)
                sys.stderr.write(f"{_line(rows[number])}\n")
                lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in rows)
                STORED.write_text(f"[\n{lines}\n]\n", encoding="utf-8", newline="\n")
    if asked.page:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8", newline="\n")
    return int(any(row["counts"].get("traceback") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
