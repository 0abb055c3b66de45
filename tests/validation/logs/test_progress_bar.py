"""Time of a step by a progress bar: which bar, and from where to where."""

from __future__ import annotations

import pytest

from simcore.validation.logs.lines import plain_lines
from simcore.validation.logs.progress_bar import step_time
from training_logs import BARS, bar


def times(text: str) -> list[float]:
    return [reading.value for reading in step_time(list(plain_lines(text)))]


def test_the_longest_bar_without_a_description_after_its_first_step() -> None:
    (reading,) = step_time(list(plain_lines(BARS)))
    assert reading.value == pytest.approx((63 * 60 + 18) / 99)
    assert (reading.num_lines, reading.note.startswith("of steps 2 to 100 ")) == (99, True)


def test_a_bar_that_is_drawn_again_when_the_run_ends_does_not_count() -> None:
    assert times(bar(1, "00:01") + bar(60, "01:00") + bar(60, "09:00")) == [1.0]


def test_a_prefix_of_a_launcher_is_no_description() -> None:
    text = "\n".join("3: [default0]:" + bar(at, elapsed)[1:] for at, elapsed in ((1, "00:10"), (11, "00:40")))
    assert times(text) == [3.0]


@pytest.mark.parametrize("text", [
    "", bar(1, "00:10"), bar(1, "00:10") + bar(3, "09:10"), bar(1, "00:10") + bar(90, "00:12"),
    bar(1, "00:10", about="Map: ") + bar(90, "09:12", about="Map: ")])
def test_too_few_steps_or_seconds_say_nothing(text: str) -> None:
    assert times(text) == []
