"""Fields of the model's configuration that an Automodel recipe changes, and the format of the model's parameters.

[Note: overrides] Automodel 0.7.0 takes fields beside the model's name (`model.num_hidden_layers`), and in a mapping
`model.config`. A mapping without `_target_` reaches its own layers and a packed base; stock layers of transformers are
read by the name alone, for it is taken out before (`_transformers/model_init.py` __init_model, `get_hf_config`).

[Note: the format of parameters] `model.dtype` goes before `model.torch_dtype`. Without either, from_config makes bf16,
from_pretrained what the configuration says, to which a field `dtype` of it belongs; but stock layers get the
checkpoint's format again (`_restore_loaded_model_dtype`).
"""

from __future__ import annotations

from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.config_fields import is_listed, known_fields, without_sizes
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Says

__all__ = ["DTYPES", "FORMAT_ROW", "INNER_DEPTHS", "NAMES", "changed_fields", "drop_fields", "read_format"]

_FORMATS: Final = {"bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32", "float32": "fp32", "fp16": "fp16",
                   "float16": "fp16", "half": "fp16"}
DTYPES: Final = _FORMATS | {f"torch.{word}": value for word, value in _FORMATS.items()}
"""Formats by the words of `torch_dtype` and of `mp_policy` (`shared/utils.py`, dtype_from_str)."""
FORMAT_ROW: Final = Says("model.torch_dtype", "training.precision.params", "text", DTYPES,
                         {"auto": "the checkpoint's format, as by default"}, "parameters in")
_OF_CONFIGS: Final = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16", "half": "fp16", "float": "fp32"}
"""Formats by the words of a configuration's `dtype`: names of torch (transformers 5.23 configuration_utils.py)."""
NAMES: Final = ("pretrained_model_name_or_path", "name_or_path")
_FIELDS: Final = ("dtype", "torch_dtype")
_AT: Final = "model.config."
_INNER: Final = "text_config"
INNER_DEPTHS: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
"""Fields of a text's configuration with the number of further tokens, the first before the second."""
_INTO: Final = "0.7.0 _transformers/model_init.py:1256"
_DROPPED: Final = ("without _target_ it reaches Automodel's own layers and packed bases: transformers' from_pretrained "
                   "gets the name alone (0.7.0 _transformers/model_init.py __init_model)")
_BALANCED: Final = "the balancing loss is counted as in the published models"


def changed_fields(reader: Reader, draft: Draft, reference: str, *, beside_alone: bool = False) -> list[Taken[Any]]:
    """Fields that change the model `reference`; those on which no size depends are listed, see [Note: overrides].

    `beside_alone`: those of a mapping are told already.
    """
    known = known_fields(reference) - {"num_nextn_predict_layers", "mtp_use_repeated_layer", _INNER, *_FIELDS}
    inside = [name for name in (() if beside_alone else reader.names("model.config"))
              if name not in (*NAMES, "_target_", *_FIELDS)]
    beside = [name for name in reader.names("model") if name in known or without_sizes(name)]
    keys = [*(f"{_AT}{name}" for name in inside), *(f"model.{name}" for name in beside)]
    found = [one for key in keys if (one := reader.take(key)) is not None]
    _list_inner_fields(reader, draft)
    return [one for one in found if not is_listed(draft, one, _BALANCED, counted=True)]


def _list_inner_fields(reader: Reader, draft: Draft) -> None:
    """Lists fields of the text's configuration beside the model's name, or refuses them.

    Those of multi-token prediction are read with the others (`predictions.py`).
    """
    for name in reader.names(f"model.{_INNER}"):
        if name in INNER_DEPTHS or (one := reader.take(f"model.{_INNER}.{name}")) is None:
            continue
        if not is_listed(draft, one, _BALANCED, counted=True):
            draft.refuse(one, "fields of the text's configuration inside a model with a vision tower")


def drop_fields(reader: Reader, draft: Draft, *, stock: bool) -> bool:
    """True if `model.config` is a mapping that no layer gets, whose fields are then listed.

    `stock`: the layers are transformers', and the base is not packed.
    """
    builder = str(reader.look("model._target_"))
    if not stock or not reader.is_mapping("model.config") or reader.has(f"{_AT}_target_"):
        return False
    if not builder.endswith("from_pretrained"):
        return False
    draft.idle(reader.matching(*(f"{_AT}{name}" for name in reader.names("model.config") if name not in NAMES)),
               _DROPPED)
    return True


def read_format(reader: Reader, draft: Draft, *, own: bool) -> None:
    """Writes the format of parameters, see [Note: the format of parameters].

    `own`: the layers are Automodel's, or the base is packed.
    """
    said, older = reader.text("model.dtype"), reader.text(FORMAT_ROW.key)
    if said is not None:
        draft.idle(older, f"{said.key} goes before it (0.7.0 _transformers/auto_model.py:752)")
    said = said or older
    fields = [one for name in _FIELDS if (one := reader.text(f"{_AT}{name}")) is not None]
    for one in fields:
        if one.value not in _OF_CONFIGS:
            draft.fail(one.where, f"{one.key}: expected a format of torch ({', '.join(_OF_CONFIGS)}), got {one.value}")
    if said is not None and said.value != "auto":
        draft.idle(fields, f"{said.key} goes before it, and the configuration is set to it ({_INTO})")
        if said.value in DTYPES:
            draft.put(FORMAT_ROW.scenario, said, DTYPES[said.value])
        else:
            draft.refuse(said, f"parameters in {said.value}")
        return
    made = str(reader.look("model._target_")).endswith("from_config")
    draft.idle(said, "bf16 in from_config, as by default" if made else "the checkpoint's format, as by default")
    if made:
        draft.idle(fields, f"from_config sets it to model.torch_dtype, bf16 without one (0.7.0 _transformers/"
                           f"auto_model.py:892, {_INTO})")
    elif not own:
        draft.idle(fields, "transformers' layers get the checkpoint's format again (0.7.0 _transformers/model_init.py "
                           "_restore_loaded_model_dtype)")
    else:
        for one in fields[:1]:
            draft.put(FORMAT_ROW.scenario, one, _OF_CONFIGS.get(one.value))
        draft.idle(fields[1:], f"{_AT}{_FIELDS[0]} is the same field")
