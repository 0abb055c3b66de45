"""Model, attention and loss of a TRL recipe."""

from __future__ import annotations

from typing import Any, Final

from simcore.operators.hf.chunked import LM_HEAD
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.accelerate import Launch
from simcore.recipes.huggingface.attention import read_attention
from simcore.recipes.huggingface.config_fields import BALANCED
from simcore.recipes.huggingface.modules import BALANCING, family_of, is_dense
from simcore.recipes.huggingface.named_model import read_named_model, read_remote_code
from simcore.recipes.huggingface.trainer import SWITCHES
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Row, Says, read_rows
from simcore.recipes.trl.grpo.defaults import Release

__all__ = ["read_kernels", "read_loss", "read_model"]

_FILES: Final = ("revision", "code_revision", "cache_dir", "token", "local_files_only", "subfolder", "force_download",
                 "use_safetensors", "variant", "low_cpu_mem_usage", "weights_only")
_OWN: Final = ("dtype", "torch_dtype", "attn_implementation", "trust_remote_code", "use_cache", "use_kernels",
               "experts_implementation", "device_map", "quantization_config", *_FILES)
"""Arguments of from_pretrained; others are fields of the configuration."""
_LOSS: Final = "trainer/sft_trainer.py:1144: add_fused_lm_head scores the tokens whose labels count, by tiles"
_SFT: Final = "trl sft, as no command, argument or name of the recipe says another training"
_WHOLE: Final = "trainer/sft_trainer.py compute_loss: the model's own, of whole logits"
_ACCURACY: Final = ("whole logits are copied at the end of forward to count right tokens (v0.19.1 trainer/"
                    "sft_trainer.py:844), which is not part of the answer")
_ROWS: Final[tuple[Row, ...]] = (
    *SWITCHES,
    Off("activation_offloading", "activations that wait on the host under TRL"),
    Says("model_init_kwargs.use_kernels", "framework_options.use_kernels", "flag", {True: True},
         {False: "the default"}),
    Says("model_init_kwargs.experts_implementation", "", "text", {None: None},
         {"grouped_mm": "grouped products, as they are counted"}, "experts by"),
    Idle(("use_cache", "model_init_kwargs.use_cache"), "SFTTrainer asks for none in each forward pass (TRL 1.16.0 "
         "trainer/sft_trainer.py compute_loss)"),
    Idle(("model_init_kwargs.device_map", "model_init_kwargs.device_map.*"), "a rank has one GPU, which it reads to"),
    Idle(("model_init_kwargs.torch_dtype",), "dtype goes before it (transformers 5.23.0 modeling_utils.py:1406)"),
    Idle(("model_revision", *(f"model_init_kwargs.{name}" for name in _FILES)), "which files are read"),
)


def read_model(reader: Reader, draft: Draft) -> None:
    """Writes the model and its attention; refuses what changes its layers otherwise."""
    read_named_model(reader, draft, "model_name_or_path", "model_init_kwargs", but=_OWN)
    read_remote_code(reader, draft, "trust_remote_code", "model_init_kwargs.trust_remote_code")
    asked, other = reader.text("model_init_kwargs.attn_implementation"), reader.text("attn_implementation")
    if asked is not None:
        draft.idle(other, f"{asked.key} goes before it (TRL 1.16.0 scripts/sft.py)")
    asked = asked or other
    read_attention(draft, asked, asked.value if asked else "")
    draft.refuse(reader.take("model_init_kwargs.quantization_config"), "a packed base by an argument of the model")
    read_rows(reader, draft, _ROWS)


def read_loss(reader: Reader, draft: Draft, launch: Launch, release: Release) -> None:
    """Writes the loss of `trl sft`."""
    kind, smooth = reader.text("loss_type"), reader.look("label_smoothing_factor")
    if launch.attention is not None and ((kind is not None and kind.value == "dft") or smooth):
        draft.fail(draft.path, "`loss_type='dft'`, `compute_loss_func` and `label_smoothing_factor` are not supported "
                               "with DeepSpeed sequence parallelism (Ulysses/ALST): the loss is the model's own "
                               "negative log-likelihood (TRL 1.16.0 trainer/sft_trainer.py:1184)")
    if kind is not None and kind.value not in ("nll", "chunked_nll", "dft" if launch.attention else ""):
        draft.refuse(kind, f"the loss {kind.value}")
    elif kind is not None and release.cuts_logits:
        draft.put("training.loss", kind, LM_HEAD, _LOSS)
    elif release.cuts_logits:
        draft.default("training.loss", LM_HEAD, release.name, f"{_LOSS}; {_SFT}")
    else:
        draft.use(kind, why="the model's own loss")
        draft.default("training.loss", "hf", release.name, _WHOLE)
        draft.unmodelled_default("mean_token_accuracy", "on", _ACCURACY)


def read_kernels(reader: Reader, draft: Draft) -> None:
    """Writes Liger's layers, which under TRL come without its own loss, and lists the loss that balances experts."""
    _read_balancing(reader, draft)
    liger = reader.flag("use_liger_kernel")
    kernels = reader.matching("liger_kernel_config", "liger_kernel_config.*")
    if liger is not None and liger.value:
        draft.put("framework_options.use_liger_kernel", liger)
        for one in kernels:
            _read_kernel(draft, one)
    else:
        if liger is None:
            draft.release_default("use_liger_kernel", "false", "transformers 5.23.0", "training_args.py")
        draft.idle(liger, "the default")
        draft.idle(kernels, "Liger's kernels are not asked for")


_KERNELS: Final = {"rope": "liger_rope", "rms_norm": "liger_rms_norm", "swiglu": "liger_glu_activation",
                   "geglu": "liger_glu_activation"}


def _read_kernel(draft: Draft, one: Taken[Any]) -> None:
    """Writes a kernel of Liger's by its name in `liger_kernel_config`, whose other kernels are on.

    transformers 5.23.0 `integrations/liger.py`, apply_liger_kernel: keywords of _apply_liger_kernel_to_instance.
    """
    name = one.key.rpartition(".")[2]
    family = family_of(draft.answers.settings.get("model") or draft.values.get("model"))
    if name == ("swiglu" if family.startswith("gemma") else "geglu"):
        draft.idle(one, f"{family} has no such MLP, and Liger leaves the keyword out")
    elif name in _KERNELS and isinstance(one.value, bool):
        draft.put(f"framework_options.{_KERNELS[name]}", one)
    else:
        draft.refuse(one, f"some of Liger's kernels, by name ({name})")


def _read_balancing(reader: Reader, draft: Draft) -> None:
    """Lists the loss that balances experts: on with the model's own weight unless `router_aux_loss_coef` is 0.

    TRL 1.16.0 `trainer/sft_trainer.py` aux_loss_enabled, which stops at a weight beside a model without such a loss.
    """
    weight = reader.number("router_aux_loss_coef")
    model = draft.answers.settings.get("model") or draft.values.get("model")
    if weight is not None and weight.value and is_dense(model):
        draft.use(weight)
        draft.fail(weight.where, f"{weight.key} {weight.value:g}: the model has no experts, at which TRL 1.16.0 stops "
                                 "(trainer/sft_trainer.py)")
    elif family_of(model) in BALANCING and weight is None:
        draft.unmodelled_default("router_aux_loss_coef", "the model's own", BALANCED)
    elif weight is not None and weight.value:
        draft.unmodelled(weight, BALANCED)
    else:
        draft.idle(weight, "off")
