"""`docs/claims.md`: every claim with its published and its simulated figures, made from results.

    python tests/test_claims.py > docs/claims.md
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from claims import (
    contradictions,
    document_a_counts,
    document_a_layouts,
    document_b,
    document_c_checks,
    document_c_table,
    document_d,
    document_e,
)
from claims.asked import GB
from claims.claim import VERDICTS, Between, Claim, Figure, Value
from claims.hand import SYMBOLS
from simcore.units import GIB

__all__ = ["CLAIMS", "page"]

DOCUMENTS = (
    ("A", "LoRA sizes of Nemotron 3 Nano on H100 80 GB", document_a_layouts.CLAIMS + document_a_counts.CLAIMS),
    ("B", "the page of Megatron-Bridge on Nemotron 3 Nano", document_b.CLAIMS),
    ("C", "a dense Nemotron of 100 B, and a DGX Spark", document_c_table.CLAIMS + document_c_checks.CLAIMS),
    ("D", "several GPUs with Unsloth, TRL and accelerate, and vLLM", document_d.CLAIMS),
    ("E", "Llama-3.2-3B with DeepSpeed", document_e.CLAIMS),
    ("X", "what the documents say against each other", contradictions.CLAIMS),
)
CLAIMS: tuple[Claim, ...] = tuple(claim for _, _, claims in DOCUMENTS for claim in claims)
_HEAD = """# Claims

What public sizing documents say, beside what rankscope computes. A published size has its source's unit, mostly GB (1e9
bytes), and so have the values that are compared with it; GiB (2^30) is beside them. Where none is published, sizes are
in GiB. The page is made by `python tests/test_claims.py > docs/claims.md`. A claim and the reason for its verdict are
written by a person. Every figure in the column *simulated* comes from the engine. The column *by hand* is arithmetic of
counts, bytes and cited constants (below); a test fails where the engine leaves its range, 2 % unless said otherwise,
where a figure agrees or disagrees with the document and should not, or where the verdict does not follow from the
figures marked *decides*. `PYTHONPATH=tests python -m claims.mutate` multiplies all simulated numbers by 1.1, 3 and 0.1
and turns all words: the tests must fail.

- *reproduced*: what decides agrees, within the share that is shown; without a mark everything decides.
- *refuted*: what decides does not agree. Other figures of the claim may.
- *refuted, though its rule gives its figures*: the document's own arithmetic gives what it prints (*by its rule*), what
  a framework does gives something else.
- *undecided*: the band of the simulation crosses the limit of the memory (*unsure*).
- *an open question, answered*: the document asks, and publishes no value.
- *nothing to simulate*: a path, a credit, a command of another tool.
"""


def page(claims: Sequence[tuple[Claim, Sequence[Figure]]]) -> str:
    """The page in Markdown."""
    told = {claim.number: figures for claim, figures in claims}
    parts = [_HEAD, *_counted([claim for claim, _ in claims]), *_symbols()]
    for letter, title, document in DOCUMENTS:
        parts += [f"## {letter}: {title}", ""]
        for claim in document:
            parts += _section(claim, told[claim.number])
    return "\n".join(parts)


def _counted(claims: Sequence[Claim]) -> Iterator[str]:
    counts = Counter(claim.verdict for claim in claims)
    yield from ("| verdict | claims |", "| --- | --- |")
    yield from (f"| {verdict} | {counts[verdict]} |" for verdict in VERDICTS)
    yield ""


def _symbols() -> Iterator[str]:
    yield from ("| symbol | value | by hand |", "| --- | --- | --- |")
    yield from (f"| `{name}` | {_shown(value, '')} | {meaning} |" for name, (value, meaning) in SYMBOLS.items())
    yield ""


def _section(claim: Claim, figures: Sequence[Figure]) -> Iterator[str]:
    yield f"### {claim.number}: {claim.verdict}"
    yield from ("", f"*{claim.says}*", "", claim.because, "")
    if not figures:
        return
    with_rule = any(one.rule is not None for one in figures)
    yield "| figure | published |" + " by its rule |" * with_rule + " by hand | simulated | agrees |"
    yield "| --- | --- |" + " --- |" * with_rule + " --- | --- | --- |"
    for one in figures:
        rule = f" {_shown(one.by_rule(), one.unit)} |" if with_rule else ""
        yield (f"| {one.what} | {_shown(one.published, one.unit)} |{rule} {_by_hand(one)} | "
               f"{_simulated(one)} | {_agrees(one)} |")
    yield ""


def _by_hand(figure: Figure) -> str:
    if isinstance(figure.simulated, str):
        return figure.expected
    value = _beside_published(figure, figure.by_hand())
    share = f" ± {100 * figure.share:.3g} %" if figure.share != Figure.__dataclass_fields__["share"].default else ""
    return value + share if re.fullmatch(r"[\d.]+", figure.expected) else f"{value}{share} = `{figure.expected}`"


def _simulated(figure: Figure) -> str:
    shown, size = _beside_published(figure, figure.simulated), _in_gib(figure, figure.simulated)
    return shown if size in ("", shown) else f"{shown} ({size})"


def _beside_published(figure: Figure, value: Value) -> str:
    """A value in the unit of the published one; a size in GiB where none is published."""
    alone = _in_gib(figure, value) if figure.published is None else ""
    return alone or _shown(value, figure.unit)


def _in_gib(figure: Figure, value: Value) -> str:
    """A value of a figure in GB; nothing for other ones."""
    return "" if figure.unit != "GB" or isinstance(value, str) else _shown(value * GB / GIB, "GiB")


def _agrees(figure: Figure) -> str:
    found = figure.found(figure.simulated)
    numbers = not isinstance(figure.published, str | Between | None)
    word = {True: f"yes, within {100 * figure.within:.3g} %" if numbers else "yes", False: "no", None: ""}[found]
    if found is None and figure.published is not None:
        word = "undecided"
    return ", ".join(filter(None, (word, "decides" if figure.decides else "")))


def _shown(value: Value | Between | None, unit: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, Between):
        return f"{value.low:.4g} to {_shown(value.high, unit)}"
    digits = f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return f"{digits} {unit}".strip()
