"""The card of a comparison of results: each number of all with differences to the first."""

from __future__ import annotations

from simcore.results.compare import Comparison
from viz.markup import element, join
from viz.notebook.fragment import fragment
from viz.pages.comparison import evidence_table, kept_table, marks, number_tables

__all__ = ["comparison_html"]


def comparison_html(both: Comparison) -> str:
    """Returns the HTML with which a notebook shows a comparison: evidence, then each number of all, with differences.

    If one of the results has no numbers, it says which.
    """
    rows = [*both.at_rest, *both.peak, *both.time]
    letters = marks(len(both.names))
    has_numbers = {letter: any(row.values[place] for row in rows) for place, letter in enumerate(letters)}
    missing = [side for side, has_any in has_numbers.items() if not has_any]
    names = (element("p", f"{side}  {name}", class_="headline", dir="auto") for side, name in zip(
        letters, both.names, strict=True))
    body = (element("p", f"{' and '.join(missing)} {'have' if len(missing) > 1 else 'has'} no numbers, so there is "
                    "nothing to compare: the layout was refused, or could not be answered.", class_="answer")
            if missing else element("div", evidence_table(both), *number_tables(both), kept_table(both),
                                    class_="numbers"))
    return fragment(join((*names, body)))
