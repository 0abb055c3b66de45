"""Log lines of the Trainer of transformers: dictionaries of metrics, batch size, progress bar.

[Note: metrics of the Trainer]
transformers 4.46.3 and 5.24.0, `trainer_callback.py` (ProgressCallback, PrinterCallback): a line is the text of a
dictionary, `{'loss': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1}`; since version 5 floats are quoted and have four
digits. `trainer_utils.py`, `speed_metrics`: at the end of training `train_runtime` in seconds, and
`train_samples_per_second`, `train_steps_per_second` of all GPUs over the whole run: with the first step, evaluations
and saving. `train_tokens_per_second` is of a device or of all GPUs, by the version and the options, so it is not
compared. `trainer_pt_utils.py`, `log_metrics`, prints the same as `  train_runtime  =  0:10:11.12`.
`trainer.py`: `Total train batch size (w. parallel, distributed & accumulation) = 64`.

[Note: memory of the Trainer]
With `--skip_memory_metrics False` (`trainer_utils.py`, TrainerMemoryTracker), of rank 0: `before_init_mem_gpu`,
`init_mem_gpu_alloc_delta`, `train_mem_gpu_alloc_delta`, `train_mem_gpu_peaked_delta`, in bytes in a dictionary, in MiB
(`>> 20`, printed as MB) in a table. Allocated when training begins is the sum of the first two, unless a model is moved
in between; the peak is that, and the other two on top. Without the first two the peak is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from simcore.validation.logs import progress_bar
from simcore.validation.logs.reading import COUNT, MIB, Log, Reading

__all__ = ["WORDS", "metrics", "of_trainer", "read"]

WORDS: Final = ("'loss':", "'train_runtime':", "train_runtime ", "train_samples_per_second",
                "train_steps_per_second", "_mem_gpu", "Total train batch size", *progress_bar.WORDS)
"""Words of which a line of this format has one."""
_PAIR: Final = re.compile(r"'([^']{1,80})': '?([-+]?[0-9][-+0-9.e]{0,30})'?(?=[,}])")
_ROW: Final = re.compile(r"\b((?:before_init|init|train)_[a-z_]{1,40}) *= *(-?[0-9][0-9.:]{0,20})(MB)?\s*$")
_BATCH: Final = re.compile(rf"Total train batch size \([^)]{{0,80}}\) = {COUNT}".replace("[0-9]", "[0-9,]"))
_WHOLE: Final = "mean of the whole run, with its first step, evaluations and saving"
_START: Final = ("before_init_mem_gpu", "init_mem_gpu_alloc_delta")
_DELTAS: Final = ("train_mem_gpu_alloc_delta", "train_mem_gpu_peaked_delta")


def read(lines: Sequence[str]) -> Log | None:
    """Numbers of a Trainer; None if no line is a dictionary with its loss or its end."""
    found = list(metrics(lines))
    return of_trainer("the Hugging Face Trainer", lines, found) if found else None


def metrics(lines: Sequence[str]) -> Iterator[dict[str, float]]:
    """Metrics of each line that is a dictionary with a loss or the run's end, and of tables as one."""
    table: dict[str, float] = {}
    for line in lines:
        if "{'" in line:
            pairs = {name: value for name, text in _PAIR.findall(line) if (value := _value(text)) is not None}
            if "loss" in pairs or "train_runtime" in pairs:
                yield pairs
        elif match := _ROW.search(line):
            value = _value(match[2])
            if value is not None:
                table[match[1]] = value * MIB if match[3] else value
    if "train_runtime" in table:
        yield table


def of_trainer(name: str, lines: Sequence[str], found: Sequence[dict[str, float]], more: Sequence[Reading] = ()) -> Log:
    """Log of a program built on the Trainer: its own readings `more`, and what every Trainer prints."""
    last = {key: value for one in found for key, value in one.items()}
    readings = [*more]
    if all(key in last for key in (*_START, *_DELTAS)):
        peak = sum(last[key] for key in (*_START, *_DELTAS))
        note = "before the Trainer began, and its changes; rank 0"
        readings.append(Reading("allocated_peak", peak, 0, note=note))
    steps = [reading for reading in more if reading.of == "step_s"] or progress_bar.step_time(lines)
    if not steps and last.get("train_steps_per_second"):
        steps = [Reading("step_s", 1 / last["train_steps_per_second"], note=_WHOLE)]
    readings += [reading for reading in steps if reading not in more]
    if last.get("train_samples_per_second"):
        readings.append(Reading("samples_per_s", last["train_samples_per_second"], note=_WHOLE))
    batches = {int(match[1].replace(",", "")) for line in lines if (match := _BATCH.search(line))}
    return Log(name, tuple(readings), batches.pop() if len(batches) == 1 else None)


def _value(text: str) -> float | None:
    """Value of a number, or seconds of a duration such as `1 day, 0:10:11.12` without its days; None for others."""
    try:
        hours, minutes, seconds = text.split(":") if text.count(":") == 2 else ("0", "0", text)
        return (int(hours) * 60 + int(minutes)) * 60 + float(seconds)
    except ValueError:
        return None
