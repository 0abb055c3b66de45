"""Batches: what filters offer, how rows open, pages of a thousand scenarios."""

from __future__ import annotations

import json
import re

import pytest

from reports import EVIL, a_report, parsed, swept_report
from viz.pages.batch import batch
from viz.pages.page import render


def test_the_verdicts_of_a_batch_are_sentences() -> None:
    fit, refused = swept_report(1), swept_report(2, status="illegal", verdict=None)
    assert "2 fit, 1 is illegal." in batch([fit, fit, refused], linked=False)
    assert "1 fits, 2 are illegal." in batch([fit, refused, refused], linked=False)


def test_what_a_row_opens_to_is_harmless_text() -> None:
    reports = [a_report(EVIL), a_report("\u2028</script>"), a_report("c")]
    page = render(reports * 4)
    data = re.findall(r'<script type="application/json" class="opened-rows">(.*?)</script>', page, flags=re.DOTALL)
    assert len(data) == 1
    assert not set("<>&\u2028\x00\x1b") & set(data[0])
    shown = json.loads(data[0])
    assert shown[1]["name"] == "\u2028</script>"
    assert len(shown) == 12
    assert parsed(page) is not None


def test_a_sweeps_rows_have_short_names_where_columns_say_the_rest() -> None:
    text = str(batch([swept_report(n) for n in range(4)], linked=False))
    assert 'title="s[mesh.tp=1]"' in text
    assert ">s 2</button>" in text
    other = str(batch([swept_report(n).model_copy(update={"name": f"s[x.y={n}]"}) for n in range(4)], linked=False))
    assert ">s[x.y=1]</button>" in other


@pytest.mark.parametrize("verdict", ["fits", "oom"])
def test_a_bar_says_its_verdict_in_words_too(verdict: str) -> None:
    text = str(batch([swept_report(n, verdict=verdict) for n in range(3)], linked=False))
    assert text.count("Fits" if verdict == "fits" else "Out of memory") == 3


def test_scenarios_without_an_answer_have_rows() -> None:
    refused = a_report("r", status="illegal", verdict=None, ranks=(), time=None, capacity_bytes=None)
    root = parsed(render([refused, swept_report(1), swept_report(2)] * 4))
    rows = [e for e in root.iter("tr") if e.get("data-n")]
    assert len(rows) == 12
    assert "Illegal layout" in "".join(rows[0].itertext())


def test_a_page_of_a_thousand_is_below_six_megabytes() -> None:
    page = render([swept_report(n) for n in range(1000)])
    assert len(page.encode()) < 6e6
