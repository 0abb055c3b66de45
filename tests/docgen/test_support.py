"""The support matrix is what the frameworks' own tables answer."""

from __future__ import annotations

import re

from checkout import ROOT
from simcore.docgen.asking import PLACED
from simcore.docgen.support import support

PAGE = ROOT / "docs" / "support.md"


def cells(part: int) -> dict[tuple[str, str, str], str]:
    """(framework, layers, feature) -> answer, of one of the page's tables."""
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")]
            for line in PAGE.read_text(encoding="utf-8").split("## ")[part].splitlines() if line.startswith("|")]
    head, _, *body = rows
    return {(row[0], row[1], feature): answer for row in body for feature,
            answer in zip(head[2:], row[2:], strict=True)}


def test_the_page_is_what_the_tables_answer() -> None:
    assert PAGE.read_text(encoding="utf-8") == support(), "run: python -m simcore.docgen.support > docs/support.md"


def test_what_upstream_says_is_there() -> None:
    """DDP replicates; Megatron packs no base; parameters on the host are for ZeRO-3, zero bubble for torchtitan."""
    axes, features = cells(1), cells(2)
    assert axes["ddp", "hf", "tp"] == "refused"
    assert {axes["megatron", "megatron", name] for name in ("tp", "cp", "pp", "ep", "HSDP")} == {"yes"}
    assert features["megatron", "megatron", "qlora"] == "refused"
    assert features["zero3", "hf", "params on host"] == "yes"
    assert features["zero1", "hf", "params on host"] == "refused"
    assert features["fsdp2", "torchtitan", "zero bubble"] == "yes"


def test_every_cell_is_a_word() -> None:
    assert {*cells(1).values(), *cells(2).values()} <= {"yes", PLACED, "refused", "not yet"}
    assert not re.search(r"\| - \|", PAGE.read_text(encoding="utf-8"))
