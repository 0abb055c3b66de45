"""Model, attention and loss of a TRL recipe."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.config_fields import BALANCED
from simcore.recipes.huggingface.named_model import read_named_model, read_remote_code
from simcore.recipes.huggingface.trainer import SWITCHES
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, Row, read_rows

__all__ = ["read_loss", "read_model"]

_SERVED: Final = ("eager", "sdpa", "flash_attention_2", "kernels-community/vllm-flash-attn3")
_ALIKE: Final = {"kernels-community/flash-attn2": "flash_attention_2"}
_CHOICE: Final = "modeling_utils.py: SDPA where the model has it"
_LOSS: Final = "trainer/sft_trainer.py: nll makes no whole logits; the engine's cut stands for it"
_ROWS: Final[tuple[Row, ...]] = (
    *SWITCHES,
    Off("activation_offloading", "activations that wait on the host under TRL"),
    Idle(("model_revision", "use_cache", "model_init_kwargs.use_cache",
          "model_init_kwargs.revision"), "which files are read"),
)


def read_model(reader: Reader, draft: Draft) -> None:
    """Writes the model and its attention; refuses what changes its layers otherwise."""
    read_named_model(reader, draft, "model_name_or_path")
    read_remote_code(reader, draft, "trust_remote_code", "model_init_kwargs.trust_remote_code")
    asked = reader.text("attn_implementation") or reader.text("model_init_kwargs.attn_implementation")
    name = _ALIKE.get(asked.value, asked.value) if asked else ""
    if asked is not None and name not in _SERVED:
        draft.refuse(asked, f"attention by {asked.value}")
    elif asked is None:
        draft.release_default("attn_implementation", "sdpa", "transformers 5.23.0", _CHOICE)
    else:
        draft.put("framework_options.attn_implementation", asked, name)
    read_rows(reader, draft, _ROWS)


def read_loss(reader: Reader, draft: Draft) -> None:
    """Writes the loss, and Liger's layers: under TRL they come without Liger's own loss."""
    kind = reader.text("loss_type")
    if kind is not None and kind.value not in ("nll", "chunked_nll"):
        draft.refuse(kind, f"the loss {kind.value}")
    elif kind is not None:
        draft.put("training.loss", kind, "cut", _LOSS)
    else:
        draft.default("training.loss", "cut", "TRL 1.16.0", _LOSS)
    draft.unmodelled(reader.take("router_aux_loss_coef"), BALANCED)
    liger = reader.flag("use_liger_kernel")
    kernels = reader.matching("liger_kernel_config", "liger_kernel_config.*")
    if liger is not None and liger.value:
        draft.put("framework_options.use_liger_kernel", liger)
        for one in kernels:
            draft.refuse(one, "some of Liger's kernels, by name")
    else:
        if liger is None:
            draft.release_default("use_liger_kernel", "false", "transformers 5.23.0", "training_args.py")
        draft.idle(liger, "the default")
        draft.idle(kernels, "Liger's kernels are not asked for")
