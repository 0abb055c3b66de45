"""The configuration that OpenRLHF makes for DeepSpeed, from arguments, with the place of each.

[Note: auto] OpenRLHF 0.11.0 `utils/deepspeed/deepspeed_utils.py` get_train_ds_config leaves sizes at "auto", which
DeepSpeed drops, so that its own defaults count (0.19.6 `runtime/config_utils.py`; transformers fills in none here:
`tests/truth/probe_openrlhf.py`). Up to 0.9 the optimizer is handed over, DeepSpeed's FusedAdam or its Adam for CPUs,
which are those that it makes of "AdamW" itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from simcore.inputs.document import Document
from simcore.inputs.yaml_parser import KeyPath
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken

__all__ = ["RELEASE", "STRATEGY", "configured"]

RELEASE: Final = "OpenRLHF 0.11.0"
STRATEGY: Final = "utils/deepspeed/deepspeed_utils.py get_train_ds_config"
_ZERO: Final = "zero_optimization"
_Value = tuple[KeyPath, Any, str]
_STAGE: Final = 2
"""Stage of ZeRO that the trainers take by default."""
_SIZES: Final = (("ds.zpg", (_ZERO, "zero_hpz_partition_size")),
                 ("ds.tensor_parallel_size", ("tensor_parallel", "autotp_size")))
"""Numbers of ranks by arguments, whose default is one."""


def configured(reader: Reader, draft: Draft, compute: Taken[Any] | None, clips: str = "max_norm") -> Document:
    """Configuration of DeepSpeed for a model that is trained; takes the arguments that it is made of.

    `compute`: argument that says the format of products, None for bf16; `clips`: name of the one that clips gradients.
    What is switched off is left out, as it is DeepSpeed's default.
    """
    path = reader.document.path
    numbers = {name: reader.integer(name) for name in ("ds.zero_stage", *(name for name, _ in _SIZES))}
    switches = {name: reader.flag(name) for name in ("ds.adam_offload", "ds.overlap_comm")}
    clipped, summed = reader.number(clips), reader.take("ds.grad_accum_dtype")
    taken = (*numbers.values(), *switches.values(), clipped, summed, compute)
    draft.use(*taken, why=f"DeepSpeed's configuration is made of it ({RELEASE} {STRATEGY})")
    return Document(path, {}).with_values([*_of_zero(numbers, switches, path),
                                           *_of_the_rest(compute, clipped, summed, path)])


def _of_zero(numbers: Mapping[str, Taken[int] | None], switches: Mapping[str, Taken[bool] | None],
             path: str) -> Iterator[_Value]:
    stage, offload, overlap = numbers["ds.zero_stage"], switches["ds.adam_offload"], switches["ds.overlap_comm"]
    yield (_ZERO, "stage"), stage.value if stage else _STAGE, _place(stage, path)
    for name, key in _SIZES:
        size = numbers[name]
        if size is not None and size.value != 1:
            yield key, size.value, size.where
    if offload is not None and offload.value:
        yield (_ZERO, "offload_optimizer", "device"), "cpu", offload.where
        yield (_ZERO, "offload_optimizer", "pin_memory"), True, offload.where
    if overlap is not None and overlap.value:
        yield (_ZERO, "overlap_comm"), True, overlap.where
        yield (_ZERO, "contiguous_gradients"), True, overlap.where


def _of_the_rest(compute: Taken[Any] | None, clipped: Taken[float] | None, summed: Taken[Any] | None,
                 path: str) -> Iterator[_Value]:
    named = compute.value if compute is not None and isinstance(compute.value, str) else "bf16"
    yield (named, "enabled"), True, _place(compute, path)
    yield ("gradient_clipping",), clipped.value if clipped else 1.0, _place(clipped, path)
    if summed is not None and summed.value is not None:
        yield ("data_types", "grad_accum_dtype"), summed.value, summed.where
    yield ("optimizer", "type"), "AdamW", path


def _place(taken: Taken[Any] | None, path: str) -> str:
    return taken.where if taken else f"{path} ({RELEASE}: the default)"
