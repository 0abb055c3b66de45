"""The answer of a search: the best layouts, the Pareto set, and why the others are in neither; JSON in and out."""

from __future__ import annotations

import json
import re
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from simcore.results.evidence import EvidenceKind
from simcore.results.limit import Quantity, Value
from simcore.results.verdict import Verdict

__all__ = ["FoundLayout", "FreeLimit", "RefusedBy", "SearchCounts", "SearchResult", "setting"]

_PLAIN: Final = re.compile(r"(?!(?:true|false|null|yes|no|on|off|y|n)$)[a-z][a-z0-9_./-]*", re.IGNORECASE)
"""Texts that YAML reads as text without quotes."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def setting(key: str, value: Any) -> str:
    """Text `key=value` that `--set` reads back as this value: JSON, plain words without quotes."""
    is_plain = isinstance(value, str) and _PLAIN.fullmatch(value)
    return f"{key}={value if is_plain else json.dumps(value)}"


class FoundLayout(_Frozen):
    """One layout of the answer.

    `keys`: what makes it out of the scenario, as `--set` takes it; `layout`: its degrees as text. Memory is of the
    fullest rank, in bytes. `num_gpus`: GPUs that train; `engine_gpus`: further ones, of engines beside them.
    `is_pareto`: no other layout is at least as good in every objective and better in one.
    """

    keys: dict[str, Any]
    framework: str
    topology: str
    layout: str
    num_gpus: int
    verdict: Verdict
    peak_bytes: int
    headroom_bytes: int
    step_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    usd_per_million_tokens: float | None
    evidence: EvidenceKind
    is_pareto: bool = False
    engine_gpus: int = 0


class RefusedBy(_Frozen):
    """Candidates refused by one rule: their number, and the message of the first."""

    status: Literal["illegal", "wrong", "not yet", "bug"]
    rule: str
    message: str
    count: int


class SearchCounts(_Frozen):
    """Number of candidates by what became of them; all but `candidates`, `simulated` and `timed` add up to it.

    `refused`: by a rule; `at_rest`: what rests is more than fits, not simulated; `oom`, `unsure`: by their simulated
    memory, the latter unless they count as fitting; `excluded`: by a condition on results; `slower`: fit, but the
    a proven bound of their step is longer than the answer needs; `ranked`: fit and have a time; `alike`: the same
    degrees and numbers as one that is ranked, because a key has no effect there. `simulated`: memory was simulated;
    `timed`: time was.
    """

    candidates: int
    refused: int
    at_rest: int
    oom: int
    unsure: int
    excluded: int
    slower: int
    ranked: int
    alike: int
    simulated: int
    timed: int


class SearchResult(_Frozen):
    """Answer of a search over the layouts of scenario `name`.

    `path`: file of the scenario, "" for one made in Python; `settings`: dotted keys with the values that it has beside
    that file, by `--set` or a sweep. `objectives`: that of the ranking first, then those of the Pareto set. `ranked`:
    every layout that fits and was timed, in order of the first; `best`: the first places of it; `pareto`: those of it
    in the Pareto set. `refused`: rules by the number of their candidates.
    """

    name: str
    path: str
    settings: dict[str, Any]
    objectives: tuple[str, ...]
    best: tuple[FoundLayout, ...]
    pareto: tuple[FoundLayout, ...]
    ranked: tuple[FoundLayout, ...]
    counts: SearchCounts
    refused: tuple[RefusedBy, ...]

    def arguments(self, layout: FoundLayout) -> tuple[str, ...]:
        """Arguments of a command after its name, such as `run`, that make this layout out of the scenario's file."""
        texts = [setting(key, value) for key, value in (self.settings | layout.keys).items()]
        return self.path, *(part for text in texts for part in ("--set", text))

    def _repr_html_(self) -> str:
        from viz.notebook.search import search_html  # see `Report`

        return search_html(self)


class FreeLimit(_Frozen):
    """Limit of a quantity over all layouts of scenario `name`.

    `value`: None if no value holds; `best`: search of the layouts there, ranked. `beyond`: the nearest value that does
    not hold, None if none was tried; `nearest_bytes`: lowest simulated peak of a layout there, None without one; `why`:
    what decides in that layout, or refuses all. `exceptions`: values on the good side of `value` that were tried and do
    not hold. `untried`: how many numbers of GPUs below `value` were left out because too many layouts have them; they
    are larger than half a power of two that does not hold. `unserved`: layouts with fewer GPUs that are not simulated
    yet, which may fit: how many, by what they have.
    """

    name: str
    quantity: Quantity
    value: Value | None
    best: SearchResult | None
    beyond: Value | None
    nearest_bytes: int | None
    why: str = ""
    exceptions: tuple[Value, ...] = ()
    untried: int = 0
    unserved: dict[str, int] = {}
