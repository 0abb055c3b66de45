"""What the README says of the tree and of the command is so."""

from __future__ import annotations

from checkout import ROOT
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_scenario_shown_is_one() -> None:
    start = README.index("    name: nano-automodel-ep4-4gpu")
    text = README[start : README.index("## The way of the data")]
    scenario = parse_scenario(parse_document("\n".join(line[4:] for line in text.splitlines()), "README.md"))
    assert scenario.num_microbatches == 2
