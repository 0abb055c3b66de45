"""Page of all rules, each with its source and two examples.

    python -m simcore.lint.page > docs/lint.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from simcore.lint.examples import BASES
from simcore.lint.registry import RULES
from simcore.lint.rule import Rule
from simcore.lint.subject import SCENARIO
from simcore.lint.without_effect import IGNORED

__all__ = ["page"]

_HEAD: Final = """# What is wrong with a recipe before it runs

Made by `python -m simcore.lint.page` from the rules in `simcore/lint/`; edit those, not this page.

```bash
rankscope lint recipe.yaml --with run.sh --gpus 8
rankscope lint recipes --format github --fail-on error
```

`rankscope lint PATH...` reads [recipes](recipes.md) and scenarios, each file by itself (of a folder every `.yaml` and
`.yml`), and says what does not do what it says: nothing is run, and nothing is simulated. `--with` names the files that
belong to one recipe: its launch command, the launcher's YAML, DeepSpeed's JSON. What a recipe leaves open (`--gpus`,
`--seq-len`, `--topology`) is assumed, and rules about it are not asked; standard error says so, and names what is not
modelled. Recipes of families that are not known are judged by the rules that need no layers.

A finding has a code, a place, what is wrong, what to write instead, and the rule with its source.

| severity | meaning |
| --- | --- |
| error | it stops the run, or something else is trained than what stands there |
| warning | a setting does not do what it says |
| note | it is legal, and may surprise |

| exit code | meaning |
| --- | --- |
| 0 | nothing is found, or less than `--fail-on` (by default `warning`: notes do not fail) |
| 1 | a finding of `--fail-on` or worse |
| 2 | a file that cannot be read, or is no recipe and no scenario |

`--json` prints a list with an object for each file; `--format github` annotations of lines. [Gates](ci.md) have a step
for it.

Layouts that the framework refuses are found by the rules of `rankscope check`; whether a step fits is asked of `run`.
"""


def page() -> str:
    """Markdown text of `docs/lint.md`."""
    return "\n".join([_HEAD, "## Rules", "", "| code | severity | finding |", "| --- | --- | --- |",
                      *(f"| [{rule.code}](#{rule.code}) | {rule.severity} | {rule.title} |" for rule in RULES), "",
                      *(line for rule in RULES for line in _section(rule)), *_ignored(), ""])


def _section(rule: Rule) -> Iterator[str]:
    base = BASES[rule.example.base]
    language = {"json": "json", "toml": "toml"}.get(base.name.rpartition(".")[2], "yaml")
    launch = f", started by `{rule.example.launch[1].strip()}`" if rule.example.launch[0] else ""
    yield from (f"### {rule.code}", "", f"{rule.title} Source: {rule.source}.", "")
    form = rule.example.base.partition("-")[0]
    kind = "a scenario" if form == SCENARIO else f"a recipe of {form}"
    for word, lines in (("Found", rule.example.bad), ("Not found", rule.example.good)):
        yield from (f"{word} in {kind} with these lines{launch}:", "", f"```{language}", lines.rstrip("\n"), "```", "")


def _ignored() -> Iterator[str]:
    yield from ("## Settings without effect", "", "Rows of [option-without-effect](#option-without-effect).", "",
                "| format | keys | why | instead | severity | source |", "| --- | --- | --- | --- | --- | --- |")
    for row in IGNORED:
        keys = ", ".join(f"`{key}`" for key in row.keys)
        yield (f"| {', '.join(row.formats)} | {keys} | {row.message} | {row.instead} | {row.severity} | {row.source} |")


if __name__ == "__main__":
    sys.stdout.write(page())
