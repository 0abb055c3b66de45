"""Fields of a model's configuration that a recipe changes: those on which no size of the model depends."""

from __future__ import annotations

from typing import Any, Final

from simcore.errors import InputError
from simcore.models.graph import model_config
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Taken
from simcore.recipes.rows import Unmodelled, leave_out

__all__ = ["BALANCED", "MESSAGES", "is_listed", "known_fields", "without_sizes"]

MESSAGES: Final = ("trust_remote_code", "use_cache", "architectures", "transformers_version",
                   "attn_implementation_new", "_attn_implementation", "bos_token_id", "eos_token_id",
                   "pad_token_id", "pretraining_tp", "auto_map")
_VALUES: Final = ("rope_theta", "rope_scaling", "rope_parameters", "rms_norm_eps", "layer_norm_eps",
                  "layer_norm_epsilon", "initializer_range", "routed_scaling_factor")
_DROPOUT: Final = ("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop")
BALANCED: Final = "the loss that balances experts: numbers of each token and expert in every layer"
_BALANCE: Final = ("router_aux_loss_coef", "output_router_logits", "aux_loss_alpha")


def without_sizes(name: str) -> bool:
    """True for a field that `is_listed` knows, but for messages."""
    return name in (*_VALUES, *_DROPOUT, *_BALANCE)


def is_listed(draft: Draft, field: Taken[Any], balanced: str = BALANCED, *, counted: bool = False) -> bool:
    """True for a field that no size depends on, which is then listed, or refused.

    `balanced`: what is told of the loss that balances experts, which is `counted` whatever the field says, or never.
    """
    name = field.path[-1]
    if name in MESSAGES:
        draft.idle(field, "no layer of training depends on it")
    elif name in _VALUES:
        draft.idle(field, "values, not sizes")
    elif name in _BALANCE:
        leave_out(draft, Unmodelled((), balanced, () if counted else (0, 0.0)), [field])
    elif name in _DROPOUT and field.value:
        draft.refuse(field, f"{'attention' if 'att' in name else 'layers'} with dropout")
    elif name in _DROPOUT:
        draft.idle(field, "off")
    else:
        return False
    return True


def known_fields(reference: str) -> frozenset[str]:
    """Fields of the configuration of a model; none for an unknown model."""
    try:
        return frozenset(model_config(reference, None, "")) - {"model_type", *MESSAGES}
    except InputError:
        return frozenset()
