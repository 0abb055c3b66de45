"""`docs/claims.md`: every claim with its published and its simulated figures, made from results.

    python tests/test_claims.py > docs/claims.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from claims import contradictions, document_a, document_b, document_c, document_d, document_e
from claims.claim import VERDICTS, Claim, Figure, Value

__all__ = ["CLAIMS", "page"]

DOCUMENTS = (
    ("A", "LoRA sizes of Nemotron 3 Nano on H100 80 GB", document_a.CLAIMS),
    ("B", "the page of Megatron-Bridge on Nemotron 3 Nano", document_b.CLAIMS),
    ("C", "a dense Nemotron of 100 B, and a DGX Spark", document_c.CLAIMS),
    ("D", "several GPUs with Unsloth, TRL and accelerate, and vLLM", document_d.CLAIMS),
    ("E", "Llama-3.2-3B with DeepSpeed", document_e.CLAIMS),
    ("X", "what the documents say against each other", contradictions.CLAIMS),
)
CLAIMS: tuple[Claim, ...] = tuple(claim for _, _, claims in DOCUMENTS for claim in claims)
_HEAD = """# Claims

What public sizing documents say, beside what rankscope computes; GB is 1e9 bytes. The page is made by
`python tests/test_claims.py > docs/claims.md`. A claim and the reason for its verdict are written by a person, every
figure in the column *simulated* comes from the engine, and a test fails where figures do not bear a verdict out.

- *reproduced*: every figure agrees, within the share that is shown.
- *refuted*: at least one figure does not.
- *nothing to simulate*: a path, a credit, a command of another tool.
- *refuted, though its rule gives its figures*: the document's own arithmetic gives what it prints (*by its rule*), what
  a framework does gives something else.
"""


def page(claims: Sequence[tuple[Claim, Sequence[Figure]]]) -> str:
    """The page in Markdown."""
    told = {claim.number: figures for claim, figures in claims}
    parts = [_HEAD, *_counted([claim for claim, _ in claims])]
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


def _section(claim: Claim, figures: Sequence[Figure]) -> Iterator[str]:
    yield f"### {claim.number}: {claim.verdict}"
    yield from ("", f"*{claim.says}*", "", claim.because, "")
    if not figures:
        return
    with_rule = any(one.rule is not None for one in figures)
    yield "| figure | published |" + " by its rule |" * with_rule + " simulated | agrees |"
    yield "| --- | --- |" + " --- |" * with_rule + " --- | --- |"
    for one in figures:
        rule = f" {_shown(one.rule, one.unit)} |" if with_rule else ""
        agrees = f"yes, within {one.within:.0%}" if not isinstance(one.published, str) else "yes"
        yield (f"| {one.what} | {_shown(one.published, one.unit)} |{rule} {_shown(one.simulated, one.unit)} | "
               f"{agrees if one.agrees(one.simulated) else 'no'} |")
    yield ""


def _shown(value: Value | None, unit: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    digits = f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return f"{digits} {unit}".strip()

