"""Facts of one report."""

from __future__ import annotations

from reports import GIB, a_report, parsed
from simcore.results.evidence import Evidence, Recipe
from simcore.results.quantiles import Drawn, DrawnPeak, Quantiles
from simcore.results.report import (
    Host,
    HostPhase,
)
from viz.pages.page import render


def test_hosts_and_the_highest_draw_are_facts() -> None:
    sizes = Quantiles(p50=13 * GIB, p90=14 * GIB, p99=15 * GIB, max=16 * GIB)
    drawn = Drawn(seed=0, draws=10, concentration=None, num_groups=1, num_microbatches=1, balanced_rows=1, received=(),
                  hottest=DrawnPeak(allocated_bytes=sizes, device_bytes=sizes), oom_probability=0.0, exact=True)
    phase = HostPhase(phase="first_step", host_bytes=3 * GIB, device_bytes=0, host_verdict="oom",
                      device_verdict="fits", by_owner={})
    page = render([a_report(drawn=drawn, host=Host(capacity_bytes=2 * GIB, ranks_per_host=8, phases=(phase,)))])
    facts = {term.text: value.text for row in parsed(page).iter("div") for term, value in zip(
        row.findall("dt"), row.findall("dd"), strict=True)}
    assert facts["in the highest draw"] == "16.00 GiB"
    assert (facts["capacity"], facts["first step"]) == ("2.00 GiB", "3.00 GiB, does not fit")
    assert "in the highest draw" not in render([a_report()])


def test_what_is_known_of_the_layout_stands_above_the_facts() -> None:
    recipe = Recipe(repository="a/b", file="<c>.yaml", release="1.0")
    known = Evidence(kind="recipe", recipes=(recipe,), layout_class="gathered, moe, full", class_runs=0)
    page = render([a_report("x").model_copy(update={"evidence": known})])
    assert "Evidence: " in page
    assert "&lt;c&gt;.yaml of a/b, 1.0; no measured runs of its class" in page
    assert "Evidence: " not in render([a_report("x")])
