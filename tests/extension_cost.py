"""Count of the files that each family and option took, out of the history of git, as a page.

    PYTHONPATH=tests python -m extension_cost > docs/extending/cost.md

Some landings are one commit of many: a family is counted in the commit that enters it in `models/registry.py`, which
may enter others, in those after it whose subject names it, and by the files that carry its name when counted.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Final

from checkout import ROOT
from simcore.docgen.glossary import table as table_of

__all__ = ["BASE", "has", "page"]

BASE: Final = "d501dec9"
"""The last commit before what is counted began."""
_REGISTRY: Final = "simcore/models/registry.py"
_OPTIONS: Final = "simcore/frameworks/options.toml"
_ROW: Final = re.compile(r'"([a-z][a-z0-9_-]*)": "[\w.]+"')
_MADE: Final = ("simcore/models/served.json", "CHANGELOG.md", *(f"docs/{name}.md" for name in (
    "options", "models", "support", "glossary", "columns", "lint", "claims", "extending/cost")))
"""Pages that a command makes, and the changelog: no work of a family's."""
_CALLED: Final = {"phi": "phi-?[12]", "nemotron": "nemotron-?mini", "nemotron_h_omni": "omni",
                  "nemotron_h_vl": "nano 2 vl", "glm": "glm-?4(?!\\.)", "glm4": "glm-?4(?!\\.)",
                  "cohere2": "command r7b", "arcee": "arcee|afm", "mistral3": "ministral 3|mistral 3"}
"""Families that subjects of commits call by other words than the configuration does."""
_HEAD: Final = """# What extensions cost

Made by `PYTHONPATH=tests python -m extension_cost`, from `git log` between {base} and {to}: families and options
(`framework_options`) added since then. Some landings are one commit of many, so files are counted in two ways: by
commits (the one that enters a family in `models/registry.py`, beside others that it enters, and those whose subject
names the family), and by files that carry the name. Left out are generated pages, presets and the changelog; `engine`
is `simcore` and `viz` without `recipes`.

The guide of a [model family](model-family.md) promises one file added and one edited, for a family of known blocks
that one framework runs. {kept} of {all} families added one engine file at most; the median of edited ones is {edited},
of whole commits. A family's own name is in {named} engine files (median; the promise is 2), {least} at least and
{most} at most. The rest are rows that say where a family was held against the real thing:

- `operators/hf`: what its layers have beside Llama's (`families.py`), names and order of its tensors (`tensors.py`),
  its head of values (`head.py`): fields of blocks would say the same of layers that nothing was measured of;
- `frameworks/automodel/families.py`: Automodel runs transformers' layers of it, which was measured family by family;
- `frameworks/*/lora.py`, `recipes/*/model.py`: names of a tower's modules, and of what recipes call the model.

Mended since the first count: `operators/megatron/tensors.py` named the families that Megatron does not build, where 19
new ones had to be entered, or were built as Llama; it names those that are built. A list of names of linear layers in
`recipes/huggingface/modules.py` had 12 of the new families; names are read off the layers. FSDP2 and DeepSpeed each
named the families with transformers' plain plan of tensor parallelism: one had four that the other did not know, and
named one that is refused; both read `operators/shared/splits/plans.py`. The families that cost most bring new blocks
(gated delta nets: `qwen3_next`; indexers: `deepseek_v32`, `glm_moe_dsa`; towers: `gemma3`, `qwen2_5_vl`, `qwen3_vl`,
`gemma4`, `nemotron_h_omni`, `llava`, `internvl`, `qwen2_vl`) and several frameworks each, or are counted with commits
of their relatives (`qwen3_5`).

An option has no guide: a line in `frameworks/options.toml`, a row of the framework's own table and where it acts are
three files, as the median. Those of Megatron are read by four formats of recipes, each with its own spelling.
"""


@dataclass(frozen=True)
class Cost:
    """Paths that some commits added and edited, without generated ones."""

    added: frozenset[str]
    edited: frozenset[str]

    def of(self, *starts: str) -> tuple[int, int]:
        """(number added, number edited) of the paths that start so."""
        return sum(path.startswith(starts) for path in self.added), sum(path.startswith(starts) for path in self.edited)


def table(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Markdown table of cells as text."""
    return table_of(head, [[str(cell) for cell in row] for row in rows])


@lru_cache(maxsize=1024)
def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def has(*commits: str) -> bool:
    """True where the history of this checkout has all of the commits."""
    asked = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor"]
    return shutil.which("git") is not None and not any(
        subprocess.run([*asked, commit, "HEAD"], capture_output=True, check=False).returncode for commit in commits)


def _families(commit: str) -> set[str]:
    return set(_ROW.findall(_git("show", f"{commit}:{_REGISTRY}")))


def _entered(to: str) -> dict[str, list[str]]:
    """Commit -> the families that it entered, in order."""
    found, known = dict[str, list[str]](), _families(BASE)
    for commit in _git("log", "--reverse", "--no-merges", "--format=%h", f"{BASE}..{to}", "--", _REGISTRY).split():
        new = sorted(_families(commit) - known)
        if new:
            found[commit] = new
            known |= {*new}
    return found


def _naming(family: str, to: str) -> list[str]:
    """Commits whose subject names a family."""
    word = _CALLED.get(family) or r"[-_. ]?".join(re.findall(r"[a-z]+|\d+", family.removesuffix("_text")))
    lines = (line.split(" ", 1) for line in _git("log", "--no-merges", "--format=%h %s", f"{BASE}..{to}").splitlines())
    return [commit for commit, subject in lines if re.search(rf"\b(?:{word})(?![\w])", subject, re.IGNORECASE)]


def _cost(commits: Iterable[str]) -> Cost:
    kinds = defaultdict[str, set[str]](set)
    for commit in dict.fromkeys(commits):
        for line in _git("show", "--no-renames", "--format=", "--name-status", commit).splitlines():
            kind, _, path = line.partition("\t")
            if path not in _MADE and "/presets/" not in path and kind in "AM":
                kinds[kind].add(path)
    return Cost(frozenset(kinds["A"]), frozenset(kinds["M"] - kinds["A"]))


@lru_cache(maxsize=4)
def _carrying(names: tuple[str, ...], to: str) -> dict[str, list[str]]:
    """Name -> the files that carry it; families and words with capitals count as texts, in quotes."""
    asked = [word for name in names for word in ("-e", name)]
    found = {name: dict[str, None]() for name in names}
    for line in _git("grep", "-owF", *asked, to).splitlines():
        _, path, name = line.split(":", 2)
        if path not in _MADE:
            found[name][path] = None
    return {name: list(paths) for name, paths in found.items()}


def _is_engine(path: str) -> bool:
    return path.startswith(("simcore/", "viz/")) and not any(part in path for part in ("/recipes/", "/presets/"))


def _two(pair: tuple[int, int]) -> str:
    return f"{pair[0]} + {pair[1]}"


def _engine(cost: Cost) -> tuple[int, int]:
    return sum(map(_is_engine, cost.added)), sum(map(_is_engine, cost.edited))


def _family_rows(to: str) -> list[tuple[str, int, Cost, int, list[str]]]:
    """(family, families entered with it, cost, number of commits, paths that carry its name)."""
    entered = _entered(to)
    carrying = _carrying(tuple(f'"{family}"' for families in entered.values() for family in families), to)
    return [(family, len(families) - 1, _cost(commits := [entry, *_naming(family, to)]), len(dict.fromkeys(commits)),
             carrying[f'"{family}"'])
            for entry, families in entered.items() for family in families]


def _told_families(to: str) -> tuple[str, str]:
    """The table of families with its medians, and the head with what it promises."""
    rows = _family_rows(to)
    engine = [_engine(cost) for _, _, cost, _, _ in rows]
    lines = [(f"`{family}`", besides, commits, _two(_engine(cost)), _two(cost.of("simcore/recipes/")),
              _two(cost.of("tests/")), _two(cost.of("docs/", "scenarios/")), sum(map(_is_engine, paths)),
              sum(path.startswith("simcore/recipes/") for path in paths))
             for family, besides, cost, commits, paths in rows]
    middle = ("median", f"{median(row[1] for row in lines):g}", f"{median(row[2] for row in lines):g}",
              f"{median(a for a, _ in engine):g} + {median(b for _, b in engine):g}", "", "", "",
              f"{median(row[7] for row in lines):g}", f"{median(row[8] for row in lines):g}")
    told = table(("family", "others with it", "commits", "engine, added + edited", "recipes", "tests and truth", "docs",
                  "engine files with its name", "recipe files with it"), [*lines, middle])
    where = defaultdict[str, int](int)
    for *_, paths in rows:
        for path in paths:
            where[path] += path.startswith("simcore/")
    often = sorted(where.items(), key=lambda one: (-one[1], one[0]))[:9]
    named = [row[7] for row in lines]
    head = _HEAD.format(base=BASE, to=to, all=len(rows), kept=sum(a <= 1 for a, _ in engine), least=min(named),
                        edited=f"{median(b for _, b in engine):g}", named=f"{median(named):g}", most=max(named))
    return head, (f"{told}\n\nFiles that name most of these {len(rows)} families: "
                  f"{', '.join(f'`{path}` ({count})' for path, count in often)}.")


def _told_options(to: str) -> str:
    """The table of options, with medians."""
    before, after = (tomllib.loads(_git("show", f"{commit}:{_OPTIONS}")) for commit in (BASE, to))
    lines: list[Sequence[object]] = []
    written = {name: name if name.islower() else f'"{name}"' for name in sorted(after.keys() - before.keys())}
    carrying = _carrying(tuple(written.values()), to)
    for name, word in written.items():
        paths = carrying[word]
        others = (sum(path.startswith(start) for path in paths) for start in ("simcore/recipes/", "tests/", "docs/"))
        lines.append((f"`{name}`", sum(map(_is_engine, paths)), *others))
    numbers = [[int(str(row[column])) for row in lines] for column in range(1, 5)]
    lines.append(("median", *(f"{median(column):g}" for column in numbers)))
    return table(("option", "engine files with its name", "recipe files", "tests and truth", "docs"), lines)


def page(to: str) -> str:
    """Markdown text of `docs/extending/cost.md`, counted up to a commit."""
    head, families = _told_families(to)
    return f"{head}\n## Families\n\n{families}\n\n## Options\n\n{_told_options(to)}\n"


if __name__ == "__main__":
    sys.stdout.write(page(sys.argv[1] if sys.argv[1:] else _git("rev-parse", "--short=8", "HEAD").strip()))
