"""What the fit of step times found, as a page: each factor, the rows it rests on, and errors on rows left out.

    python tests/truth/fit_page.py > docs/calibration.md

Comes in: `measured/fitted.json` and `measured/left_out.json`, which `fit_time.py --write --left-out` made.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fit_priors import FACTORS, NUMBERS

MEASURED = Path(__file__).resolve().parent / "measured"
HEAD = """# Calibration

Made by `python tests/truth/fit_page.py`; `python tests/truth/fit_time.py --write --left-out` fits anew.

Every calibrated number of `topologies/efficiency/` is a value known before (its source stands beside it, in
`tests/truth/fit_priors.py`) times the factors below. A factor belongs to a kind of kernel, GPU or host, never to a row.
`spread` is that of a factor's logarithm: what was thought before, and what is left. `rests on` gives the groups of
measured rows that say most about it, with their shares; where there is none, the value is as it was before."""
LEFT_OUT = """## Errors on rows that the fit did not see

Median and 90th percentile of the error of a step's time, by configuration. `fitted` is with the rows, the others
without any row of that group, or of that machine: solved with the slopes of the whole fit, then run in full. Priors and
the model's form were chosen by people who knew the rows, so all of these flatter it."""
ROW = "| {} |"


def page() -> str:
    """The whole page."""
    fitted, left = (json.loads((MEASURED / f"{name}.json").read_text()) for name in ("fitted", "left_out"))
    factors = table(("factor", "value", "spread before", "spread", "rests on", "numbers"),
                    [factor(name, fitted[name]) for name in FACTORS])
    out = [table((what, "configurations", "fitted, median", "left out, median", "left out, 90 %", "bias"),
                 [error(name, found) for name, found in left[key].items()])
           for what, key in (("group", "group"), ("machine", "gpu"))]
    return "\n\n".join((HEAD, factors, LEFT_OUT, *out)) + "\n"


def factor(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    rests = ", ".join(f"{group} {share:.0%}" for group, share in found["rows_of"].items())
    places = {".".join(number.keys) for number in NUMBERS if name in number.factors}
    numbers = (f"{found[key]:.2f}" for key in ("factor", "prior_spread", "spread"))
    return (name, *numbers, rests or "nothing", ", ".join(sorted(places)))


def error(name: str, found: dict[str, float]) -> tuple[str, ...]:
    return (name, str(found["configurations"]), *(f"{found[key]:.1%}" for key in (
        "fitted_median", "median", "percentile_90")), f"{found['bias']:+.1%}")


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(ROW.format(" | ".join(cells)) for cells in (heads, ("---",) * len(heads), *rows))


if __name__ == "__main__":
    sys.stdout.write(page())
