"""Reports in which all bytes and parameters are multiplied, and verdicts follow: an engine that is wrong throughout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from claims.asked import forget
from simcore.results.report import Report
from simcore.simulate import place, simulate

__all__ = ["wrong_engine"]

_KEPT: Final = frozenset({"scenario", "capacity_bytes", "headroom_bytes", "time", "assumptions", "host", "problems"})
_MAPS: Final = frozenset({"by_category", "by_phase", "outside"})


@contextmanager
def wrong_engine(factor: float) -> Iterator[None]:
    """Questions of claims are answered with `factor` times the bytes and parameters."""
    forget()
    with patch("claims.asked.simulate", _wrong(simulate, factor)), patch("claims.asked.place", _wrong(place, factor)):
        yield
    forget()


def _wrong(answer: Callable[..., Report], factor: float) -> Callable[..., Report]:
    def wrong(*args: Any, **kwargs: Any) -> Report:
        report = answer(*args, **kwargs)
        made = Report.model_validate(_times(report.model_dump(mode="json"), factor, scaled=False))
        if report.highest_bytes is None or report.headroom_bytes is None or made.highest_bytes is None:
            return made
        headroom = report.highest_bytes + report.headroom_bytes - made.highest_bytes
        return made.model_copy(update={"headroom_bytes": headroom, "verdict": "fits" if headroom >= 0 else "oom"})

    return wrong


def _times(value: Any, factor: float, *, scaled: bool) -> Any:
    if isinstance(value, dict):
        return {key: inner if key in _KEPT else _times(inner, factor, scaled=scaled or _is_amount(key))
                for key, inner in value.items()}
    if isinstance(value, list):
        return [_times(inner, factor, scaled=scaled) for inner in value]
    return round(value * factor) if scaled and isinstance(value, int) and not isinstance(value, bool) else value


def _is_amount(key: str) -> bool:
    return key in _MAPS or key == "bytes" or "_bytes" in key or key.endswith("_params")
