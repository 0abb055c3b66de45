"""TransformerEngine's FusedAdam in a recipe: formats of its states, masters, remainders.

Read of Automodel's block `optimizer`, and of others that name a class of optimizer and its arguments.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.recipes.automodel.config_fields import DTYPES
from simcore.recipes.draft import Draft
from simcore.recipes.outline import Outline
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Row, Unmodelled, read_rows

__all__ = ["FUSED_ADAM", "names_fused_adam", "read_fused_adam", "write_fused_adam"]

FUSED_ADAM: Final = "transformer_engine.pytorch.optimizers.fused_adam.FusedAdam"
_NAMES: Final = (FUSED_ADAM, "transformer_engine.pytorch.optimizers.FusedAdam")
_FILE: Final = "TransformerEngine d0067d0d pytorch/optimizers/fused_adam.py"
_VALUES: Final = ("lr", "betas", "eps", "weight_decay", "bias_correction", "set_grad_none")
_MASTER, _MOMENTS = "training.optimizer.master", "training.optimizer.moments"
_REMAINDERS: Final = "framework_options.store_param_remainders"


def names_fused_adam(name: object) -> bool:
    """True for the path of TE's class."""
    return name in _NAMES


def read_fused_adam(reader: Reader, draft: Draft, target: str, at: str) -> None:
    """Reads the class at the key `target`, which is TE's, and its arguments, whose keys begin with `at`."""
    named, decoupled = reader.text(target), reader.flag(f"{at}adam_w_mode")
    draft.put("training.optimizer.implementation", named, "te")
    if decoupled is not None and not decoupled.value:
        draft.put("training.optimizer.name", decoupled, "adam")
    else:
        draft.idle(decoupled, "the default")
        draft.infer("training.optimizer.name", "adamw", "adam_w_mode is true by default", named, source=_FILE)
    _read_masters(reader, draft, at)
    _read_moments(reader, draft, at)
    rows: tuple[Row, ...] = (
        Idle(tuple(f"{at}{name}" for name in _VALUES), "values, not tensors"),
        Off(f"{at}amsgrad", "a third moment"),
        Off(f"{at}use_decoupled_grad", "gradients beside a parameter's own"),
        Off(f"{at}capturable", "a step in a CUDA graph"),
        Unmodelled((f"{at}param_group_overrides.*",), "parameters are updated as one group"))
    read_rows(reader, draft, rows)


def _read_masters(reader: Reader, draft: Draft, at: str) -> None:
    masters, halves = reader.flag(f"{at}master_weights"), reader.flag(f"{at}store_param_remainders")
    form = reader.text(f"{at}master_weight_dtype")
    if masters is None or not masters.value:
        draft.idle(masters, "the default")
        draft.idle([one for one in (halves, form) if one is not None], "there are no masters")
        return
    draft.put(_MASTER, masters, "fp32" if form is None else DTYPES.get(form.value, form.value))
    draft.use(form, why="the masters' format")
    if halves is not None and halves.value:
        draft.put(_REMAINDERS, halves, True)  # noqa: FBT003 - the option's value
    else:
        draft.idle(halves, "the default")


def _read_moments(reader: Reader, draft: Draft, at: str) -> None:
    """One format for both moments; a pair of two formats is refused."""
    found: list[Taken[str] | None] = [reader.text(f"{at}{name}_dtype") for name in ("exp_avg", "exp_avg_sq")]
    formats: list[Any] = ["fp32" if one is None else DTYPES.get(one.value) for one in found]
    said = next((one for one in found if one is not None), None)
    if said is None:
        return
    if formats[0] != formats[1] or formats[0] is None:
        draft.refuse(said, "moments of two formats, or of 8 bits")
        draft.idle([one for one in found if one is not None and one is not said], "it is refused with the other")
        return
    draft.put(_MOMENTS, said, formats[0])
    draft.use(*(one for one in found if one is not said), why="the same for both moments")


def write_fused_adam(outline: Outline, at: str) -> None:
    """Writes the arguments of TE's class, whose keys begin with `at`; its name is written."""
    outline.put(f"{at}adam_w_mode", outline.value("training.optimizer.name") == "adamw", "training.optimizer.name")
    if outline.given(_MASTER) not in (None, "none", "auto"):
        outline.put(f"{at}master_weights", True, _MASTER)  # noqa: FBT003 - the recipe's value
        outline.put(f"{at}master_weight_dtype", f"torch.{_TORCH[outline.given(_MASTER)]}", _MASTER)
    if outline.given(_REMAINDERS) is not None:
        outline.put(f"{at}store_param_remainders", outline.given(_REMAINDERS), _REMAINDERS)
    if outline.given(_MOMENTS) not in (None, "auto"):
        for name in ("exp_avg", "exp_avg_sq"):
            outline.put(f"{at}{name}_dtype", f"torch.{_TORCH[outline.given(_MOMENTS)]}", _MOMENTS)


_TORCH: Final = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
