"""Multi-token prediction of NeMo Automodel's own Nemotron-H and Qwen 3.5: how many further tokens a recipe trains.

0.7.0 `components/models/nemotron_v3/mtp.py` build_mtp_config_from_hf: `model.num_nextn_predict_layers`, or the number
in the model's configuration; 0 leaves it out. With `model.mtp_use_repeated_layer` one module is run for every token.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.models.graph import model_config
from simcore.models.names import find
from simcore.recipes.automodel.config_fields import INNER_DEPTHS
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken

__all__ = ["DEPTH", "REPEATS", "Predictions", "has_module", "read_predictions", "refuse_predictions",
           "read_qwen_predictions", "write_predictions"]

DEPTH: Final = "model.num_nextn_predict_layers"
REPEATS: Final = "model.mtp_use_repeated_layer"
_PATTERN: Final = "mtp_hybrid_override_pattern"
_OWN: Final = {"nemotron-3-super-120b-a12b": 1}
"""Further tokens of a published configuration, by built-in model: num_nextn_predict_layers of copies of the
repository's config.json in public repositories."""


Predictions = tuple[Taken[Any] | None, ...]
"""The model's name, the number of further tokens and whether one module is run for all; () without any."""


def read_predictions(reader: Reader, draft: Draft, name: Taken[str]) -> Predictions:
    """Returns the settings that ask for further tokens; () without any, and where the model named has none.

    `name`: the model's. Refuses several modules, and a model whose number is not known.
    """
    depth, repeats = reader.integer(DEPTH), reader.flag(REPEATS)
    if depth is None:
        draft.idle(repeats, "one token further at most: the module runs once")
        known = find(name.value)
        own = _OWN.get(known.preset if known else name.value, 0)
        if not own and has_module(name.value):
            draft.refused.append(Problem(name.where, f"not yet: {DEPTH}: multi-token prediction under automodel, of "
                                         f"which {name.value} has modules, without their number (0 trains without)"))
        return (name, None, None) if own else ()
    if not depth.value:
        draft.idle((depth, *([repeats] if repeats else [])), "no layers of multi-token prediction")
        return ()
    if (repeats is not None and repeats.value) != (depth.value > 1):
        draft.refuse(depth, "one token by a module that may be repeated" if depth.value == 1 else
                     "multi-token prediction by several modules under automodel")
        draft.idle((depth, *([repeats] if repeats else [])), "it is refused")
        return ()
    return name, depth, repeats


def has_module(reference: str) -> bool:
    """True for a model whose configuration has layers of multi-token prediction: a pattern, or their number."""
    try:
        return _PATTERN in model_config(reference, None, "") or _predicts(reference)
    except InputError:
        return False


def write_predictions(draft: Draft, found: Predictions) -> None:
    """Writes what `read_predictions` returned, as overrides of the model."""
    if not found:
        return
    name, depth, repeats = found
    assert name is not None
    if depth is None:
        known = find(name.value)
        draft.infer("model.overrides.mtp_num_layers", _OWN.get(known.preset if known else name.value, 1),
                    "modules of the model's own configuration", name,
                    source="models/{nemotron_v3,qwen3_5}: num_nextn_predict_layers or mtp_num_hidden_layers")
        return
    draft.put("model.overrides.mtp_num_layers", depth)
    if not has_module(name.value):
        draft.infer(f"model.overrides.{_PATTERN}", "*E", "attention, then experts: the class's default", name, depth,
                    source="transformers 5.23 models/nemotron_h/configuration_nemotron_h.py: mtp_layers_block_type")
    if repeats is not None and repeats.value:
        draft.put("model.overrides.mtp_use_repeated_layer", repeats)
    else:
        draft.idle(repeats, "the default")


def read_qwen_predictions(reader: Reader, draft: Draft, name: Taken[str]) -> Predictions:
    """Returns the settings of a Qwen 3.5's further tokens, as `read_predictions` does; () without any.

    0.7.0 `models/qwen3_5/model.py`, _resolve_mtp_num_layers: the model's argument, then num_nextn_predict_layers of the
    text's configuration, then its mtp_num_hidden_layers, which a recipe may have changed.
    """
    depths = [reader.integer(key) for key in (DEPTH, *(f"model.text_config.{field}" for field in INNER_DEPTHS))]
    said = next((one for one in depths if one is not None), None)
    draft.idle([one for one in depths if one is not None and one is not said], "another key goes before it")
    draft.idle(reader.flag(REPEATS), "the layers of this family do not read it")
    if said is None:
        return (name, None, None) if _predicts(name.value) else ()
    if said.value > 1:
        draft.refuse(said, "multi-token prediction by several modules under automodel")
        return ()
    if not said.value:
        draft.idle(said, "no layers of multi-token prediction")
        return ()
    return name, said, None


def refuse_predictions(reader: Reader, draft: Draft) -> Predictions:
    """Leaves aside a number of further tokens that layers without such modules are given, and refuses any but 0.

    Returns (), as `read_predictions` does without any.
    """
    depths = [reader.integer(key) for key in (DEPTH, *(f"model.text_config.{name}" for name in INNER_DEPTHS))]
    said = next((one for one in depths if one is not None), None)
    if said is not None and said.value:
        draft.refuse(said, "multi-token prediction under automodel of other layers than its own Nemotron-H and Qwen "
                     "3.5")
    for one in (*depths, reader.flag(REPEATS)):
        draft.idle(one, "no layers of multi-token prediction")
    return ()


def _predicts(reference: str) -> bool:
    try:
        fields = model_config(reference, None, "")
    except InputError:
        return False
    return bool(fields.get("text_config", fields).get("mtp_num_hidden_layers"))
