"""Time of a step by the progress bar of a Trainer.

[Note: tqdm's bar]
tqdm 4.67 `tqdm/std.py`, `format_meter`: `{description: }{percent}%|{bar}| {n}/{total} [{elapsed}<{remaining}, {rate}]`,
elapsed as MM:SS or H:MM:SS in whole seconds. The Trainer's bar has no description (transformers 5.24
`trainer_callback.py`, ProgressCallback), unlike those that load checkpoints and tokenise; that of evaluations neither,
but another total. Of several bars without a description the one with most time is taken. Its rate is smoothed, so steps
and elapsed time are used: from the end of the first step to the last one, by the first line of each, because a bar is
drawn again when it is closed. Evaluations and saving in between are in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from simcore.validation.logs.lines import without_prefix
from simcore.validation.logs.reading import COUNT, Reading

__all__ = ["WORDS", "step_time"]

WORDS: Final = ("s/it", "it/s")
"""Words of which a line with a bar has one."""
_BAR: Final = re.compile(rf"^\s*\d{{1,3}}%\|[^|]{{0,200}}\| *{COUNT}/{COUNT} \[(?:(\d{{1,4}}):)?(\d\d):(\d\d)<")
_FEWEST: Final = 3
"""Steps and seconds below which a time in whole seconds says nothing."""


def step_time(lines: Sequence[str]) -> list[Reading]:
    """The mean time of a step in seconds after the first one; [] if no bar shows at least three more."""
    bars: dict[int, dict[int, int]] = {}
    for line in lines:
        match = _BAR.match(line) or _BAR.match(without_prefix(line)[2])
        if match and int(match[1]) > 0:
            elapsed = (int(match[3] or 0) * 60 + int(match[4])) * 60 + int(match[5])
            bars.setdefault(int(match[2]), {}).setdefault(int(match[1]), elapsed)
    if not bars:
        return []
    states = max(bars.values(), key=lambda bar: max(bar.values()))
    first, last = min(states), max(states)
    began, ended = states[first], states[last]
    if last - first < _FEWEST or ended - began < _FEWEST:
        return []
    note = f"of steps {first + 1} to {last} by the progress bar, evaluations and saving included"
    return [Reading("step_s", (ended - began) / (last - first), num_lines=last - first, note=note)]
