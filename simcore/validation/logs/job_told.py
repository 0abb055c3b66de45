"""Numbers that a training log says of its job: GPUs, degrees, batch, lengths, layers, parameters.

[Note: lines about a job]
Megatron-LM d98e8a64 `training/arguments.py`: `_print_args` prints `  seq_length ........ 4096` for each argument,
`validate_args` `using world size: 8, data-parallel size: 4, context-parallel size: 1, ..`. DeepSpeed edaa7221
`runtime/config.py` prints its own fields in the same way. torchtitan b5bcd76c `distributed/parallel_dims.py`: `Building
device mesh with parallelism: pp=1, dp_replicate=1, ..`, until 2025 `Building 2-D device mesh with ['dp_shard', 'tp'],
[4, 2]`; `trainer.py`: `size: 8,030,261,248 total parameters`, `maximum context length 8192`, before that `local batch
size 1, global batch size 8, sequence length 8192`. transformers 5.23 `trainer.py`: `Instantaneous batch size per device
= 1`, `Total train batch size (..) = 64`, `Gradient Accumulation steps = 8`, `Number of trainable parameters = 1,024`.
peft 0.21.2 `peft_model.py`: `trainable params: 1,024 || all params: 2,048 || ..`. Automodel 36044ad3
`recipes/base_recipe.py` and `components/utils/model_utils.py`: `World size: 8`, `Trainable parameters: 1,024`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

from simcore.validation.logs.lines import lines_with
from simcore.validation.logs.reading import COUNT

__all__ = ["BATCH", "TRAINABLE", "job_told"]

BATCH: Final = "global batch"
TRAINABLE: Final = "trainable parameters"
_ALL: Final = "parameters"
_MANY: Final = COUNT.replace("[0-9]", "[0-9,]").replace("15", "24")
_ARGUMENT: Final = re.compile(rf"(?:^|\s)(\w{{4,40}}) \.{{0,48}} {COUNT}\s*$")
_ARGUMENTS: Final = {
    "world_size": "GPUs", "micro_batch_size": "micro batch", "train_micro_batch_size_per_gpu": "micro batch",
    "global_batch_size": BATCH, "train_batch_size": BATCH, "seq_length": "sequence length",
    "tensor_model_parallel_size": "tp", "pipeline_model_parallel_size": "pp", "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep", "num_layers": "layers", "hidden_size": "hidden size"}
_LINES: Final = tuple((word, re.compile(pattern), names) for word, pattern, names in (
    ("using world size", rf"using world size: {COUNT}, .{{0,200}}?\bcontext-parallel size: {COUNT}, "
     rf".{{0,200}}?\btensor-model-parallel size: {COUNT}, .{{0,100}}?pipeline-model-parallel size: {COUNT}",
     ("GPUs", "cp", "tp", "pp")),
    ("total parameters", rf"\bsize: {_MANY} total parameters", (_ALL,)),
    ("maximum context length", rf"\bmaximum context length {COUNT}\b", ("sequence length",)),
    ("local batch size", rf"\blocal batch size {COUNT}, global batch size {COUNT}, .{{0,60}}?sequence length {COUNT}\b",
     ("micro batch", BATCH, "sequence length")),
    ("Instantaneous batch size", rf"Instantaneous batch size per device = {_MANY}", ("micro batch",)),
    ("Total train batch size", rf"Total train batch size \([^)]{{0,80}}\) = {_MANY}", (BATCH,)),
    ("Gradient Accumulation steps", rf"Gradient Accumulation steps = {_MANY}", ("passes",)),
    ("trainable parameters", rf"Number of trainable parameters = {_MANY}", (TRAINABLE,)),
    ("trainable params:", rf"\btrainable params: {_MANY} \|\| all params: {_MANY}", (TRAINABLE, _ALL)),
    ("World size:", rf"\bWorld size: {COUNT}\s*$", ("GPUs",)),
    ("Trainable parameters:", rf"\bTrainable parameters: {_MANY}\s*$", (TRAINABLE,)),
    ("Total parameters:", rf"\bTotal parameters: {_MANY}\s*$", (_ALL,))))
"""A word of each line, its pattern, and the names of its numbers."""
_DEGREES: Final = re.compile(r"device mesh with parallelism: (pp=.{1,200})")
_DEGREE: Final = re.compile(rf"\b(pp|dp_replicate|dp_shard|cp|tp|ep)={COUNT}\b")
_SIZES: Final = re.compile(r"-D device mesh with \[[^\]]{0,200}\], \[([0-9, ]{1,100})\]")
_CUT: Final = ("pp", "cp", "tp", "ep")


def job_told(text: str) -> Mapping[str, int]:
    """Numbers that a log says of its job, by name; one of which it says two values is left out.

    `text`: of the log, without escape sequences.
    """
    told: dict[str, set[int]] = {}
    for name, value in _numbers(text):
        told.setdefault(name, set()).add(value)
    found = {name: values.pop() for name, values in told.items() if len(values) == 1}
    passes, micro, batch = found.pop("passes", None), found.get("micro batch"), found.get(BATCH)
    if passes and micro and batch and batch % (passes * micro) == 0:
        found["data-parallel ranks"] = batch // (passes * micro)
    return found


def _numbers(text: str) -> Iterator[tuple[str, int]]:
    for line in lines_with(text, (*_ARGUMENTS, "device mesh with", *(word for word, _, _ in _LINES))):
        if (match := _ARGUMENT.search(line)) and match[1] in _ARGUMENTS:
            yield _ARGUMENTS[match[1]], int(match[2])
        for word, pattern, names in _LINES:
            if word in line and (match := pattern.search(line)):
                yield from zip(names, (int(one.replace(",", "")) for one in match.groups()), strict=True)
        if match := _DEGREES.search(line):
            degrees = {name: int(value) for name, value in _DEGREE.findall(match[1])}
            yield "GPUs", math.prod(value for name, value in degrees.items() if name != "ep")
            yield from ((name, value) for name, value in degrees.items() if name in _CUT)
        elif match := _SIZES.search(line):
            yield "GPUs", math.prod(map(int, match[1].replace(",", " ").split()))
