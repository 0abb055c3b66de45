"""The model of an Automodel recipe: which one, in which format, by whose layers, with which kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from simcore.errors import InputError
from simcore.frameworks.automodel.families import implementation_of
from simcore.frameworks.automodel.norms import NORM_NAME
from simcore.frameworks.registry import framework_adapter
from simcore.models.graph import model_config
from simcore.models.names import find
from simcore.models.registry import code_type
from simcore.recipes.automodel.config_fields import NAMES, changed_fields, drop_fields, read_format
from simcore.recipes.automodel.predictions import (
    Predictions,
    read_predictions,
    read_qwen_predictions,
    refuse_predictions,
    write_predictions,
)
from simcore.recipes.automodel.te_fp8 import read_te_fp8
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.experts import experts_of
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Says, Unmodelled, read_rows

__all__ = ["ATTENTION_ROW", "BACKEND_ROWS", "BY_BACKEND", "REST_ROWS", "read_model"]

_BUILDERS: Final = ("NeMoAutoModelForCausalLM.from_pretrained", "NeMoAutoModelForCausalLM.from_config",
                    "NeMoAutoModelForImageTextToText.from_pretrained")
_QWEN3_5: Final = ("qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text")
BY_BACKEND: Final = ("nemotron_h", "nemotron_h_omni", "qwen3_moe", "qwen3_next", "deepseek_v3", "gpt_oss", "kimi_vl",
                     "mistral4", *_QWEN3_5)
"""Families whose layers take `backend.attn` and never read attn_implementation (`frameworks/automodel/attention`)."""
ATTENTION_ROW: Final = Says("model.backend.attn", "framework_options.attn", "text",
                            {name: name for name in ("te", "sdpa", "flex", "torch", "tilelang")}, what="attention by")
_OF_FILES: Final = ("revision", "code_revision", "cache_dir", "token", "use_auth_token", "local_files_only",
                    "subfolder", "force_download")
_FILES: Final = "which files are read, and by which code: not part of a step"
_ALIKE: Final = "kernels are not told apart: memory is counted as torch's"
_COUNTED: Final = "torch's kernels are those that are counted"
_DISPATCHER: Final = "model.backend.dispatcher"
_DISPATCHER_ROW: Final = Says(_DISPATCHER, "framework_options.dispatcher", "text",
                              {name: name for name in ("deepep", "hybridep", "torch")}, what="exchange of tokens by")
_NORM_ROW: Final = Says(f"model.{NORM_NAME}", f"framework_options.{NORM_NAME}", "text",
                        {name: name for name in ("te", "torch", "quack")}, {"torch_fp32": "the default"}, "rms_norm by")
_OTHER_ROWS: Final = (
    Says("model.backend.fake_balanced_gate", "framework_options.fake_balanced_gate", "flag", {True: True},
         {False: "the default"}),
    Says("model.backend.enable_fsdp_optimizations", "framework_options.enable_fsdp_optimizations", "flag"),
    Says("model.backend.rope", "framework_options.backend.rope", "text", {"quack": "quack"}, {"torch": "the default"},
         "rope by"),
    Off("model.backend.cuda_graph", "layers in CUDA graphs"),
    Idle(("model.backend.enable_deepep",), "0.7.0 ignores it with a warning: dispatcher and experts say it"),
    Unmodelled(("model.backend.fake_gate_noise",), "noise of a gate that is balanced: tokens are spread evenly", (0,)),
    Idle(("model.backend.rope_fusion",), "BackendConfig switches it off for all models (0.7.0 components/models/common/"
         "utils.py:603)"),
    Unmodelled(("model.backend.gate_precision",), "the router's products in a format of their own: they are counted in "
               "that of the layer"),
    Unmodelled(("model.backend.dispatcher_num_sms",), "multiprocessors that an exchange of tokens takes from other "
               "kernels: both run at their rates"),
    Unmodelled(("model.backend.dispatcher_share_token_dispatcher",), "buffers of exchanges that layers share, or have "
               "each: they are counted once"),
    Unmodelled(("model.backend.dispatcher_async_dispatch",), "exchanges of tokens on a stream of their own: products "
               "wait for them"),
    Idle(("model.backend.enable_hf_state_dict_adapter",), _FILES),
    Idle(("model.backend.mok.*",), "settings of the dispatcher mok alone"),
)
BACKEND_ROWS: Final = (_DISPATCHER_ROW, _NORM_ROW, *_OTHER_ROWS)
REST_ROWS: Final = (
    Says("model.use_liger_kernel", "framework_options.use_liger_kernel", "flag"),
    Idle(("model.trust_remote_code", "model.load_base_model", *(f"model.{name}" for name in _OF_FILES)), _FILES),
    Idle(("model.use_cache",), "no layer of training depends on it"),
    Idle(("model.output_hidden_states",), "the loss reads the last of them, which is there in any case"),
    Idle(("model.mtp_loss_scaling_factor",), "a factor of a loss"),
)


_UNPATCHED: Final = ("gemma4", "qwen3_vl")
"""Families whose class is Automodel's, although its layers are transformers'."""
_SIZES: Final = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                 "num_experts", "num_experts_per_tok", "moe_intermediate_size")


def read_model(reader: Reader, draft: Draft) -> str:
    """Reads the block `model`, and returns the model's family; "" if it is not known."""
    builder = reader.text("model._target_")
    if builder is not None and not builder.value.endswith(_BUILDERS):
        draft.refuse(builder, f"models are read that {' or '.join(_BUILDERS)} makes", always=True)
        draft.idle(reader.matching("model.*"), "of a model that is refused")
        return ""
    draft.use(builder, why="makes the model that is named")
    forced = reader.flag("model.force_hf")
    own = forced is None or not forced.value
    family = _read_name(reader, draft, own=own)
    if own:
        draft.idle(forced, "the default")
    else:
        of_hub = family == "nemotron_h" and reader.look("model.trust_remote_code") is True
        draft.put("implementation", forced, "hub" if of_hub else "hf", source="the repository's own code, which "
                  "trust_remote_code loads" if of_hub else "")
    _read_attention(reader, draft, by_backend=own and family in BY_BACKEND)
    if own and family == "gpt_oss" and reader.is_mapping("model.backend") and reader.take(ATTENTION_ROW.key) is None:
        draft.default("framework_options.attn", "te", "0.7.0", "models/common/utils.py BackendConfig; without a "
                      "model.backend GPT-OSS takes flex")
    _read_backend(reader, draft, family, own=own)
    _read_compiled(reader, draft, family if own else "")
    _read_kernels(reader, draft)
    registered = family in _UNPATCHED
    draft.idle(reader.flag("model.use_liger_kernel") if registered else None, "Liger patches no class that Automodel "
               "has itself (0.7.0 _transformers/auto_model.py:593)")
    read_rows(reader, draft, REST_ROWS[registered:])
    return family


def _read_name(reader: Reader, draft: Draft, *, own: bool) -> str:
    """Writes `model` and the format of its parameters, and returns its family; "" if it is not known.

    `own`: Automodel's own layers are run where it has the family's.
    """
    if (given := draft.answers.settings.get("model")) is not None:
        draft.idle(reader.matching("model.config", "model.config.*", *(f"model.{name}" for name in NAMES)),
                   "the model is given")
        family = _family(str(given))
        read_format(reader, draft, own=not _is_stock(reader, draft, family, own=own))
        refuse_predictions(reader, draft)
        return family
    written_out = reader.is_mapping("model.config")
    keys = [f"{within}.{name}" for within in ("model", *(["model.config"] if written_out else [])) for name in NAMES]
    found = [one for key in (*keys, *([] if written_out else ["model.config"])) if (one := reader.text(key))]
    for other in found[1:]:
        if other.value != found[0].value:
            draft.fail(other.where, f"{other.key} is {other.value}, {found[0].key} is {found[0].value}")
    loader = reader.text("model.config._target_")
    if not found and (loader is not None and (family := _read_class(reader, draft, loader))):
        read_format(reader, draft, own=own)
        refuse_predictions(reader, draft)
        return family
    if not found:
        read_format(reader, draft, own=own)
        refuse_predictions(reader, draft)
        draft.ask("model", "--set model=NAME or PATH of its config.json", "model", loader)
        draft.idle(reader.matching("model.config.*"), "the model is asked for")
        return ""
    draft.use(loader, *found, why="names the model, or reads its configuration")
    name = _in_16_bits(draft, found[0])
    family = _family(name.value)
    stock = _is_stock(reader, draft, family, own=own)
    dropped = drop_fields(reader, draft, stock=stock)
    read_format(reader, draft, own=not stock)
    fields = changed_fields(reader, draft, name.value, beside_alone=dropped)
    _write_named(draft, name, fields, _read_further(reader, draft, name, family if own and not stock else ""))
    return family


def _in_16_bits(draft: Draft, name: Taken[str]) -> Taken[str]:
    """The name of the same weights in 16 bits, for a Mistral 3 whose makers publish 8 bits beside them."""
    whole = f"{name.value}-BF16"
    if find(name.value) is not None or find(whole) is None or _family(whole) != "mistral3":
        return name
    draft.use(name, why=f"weights in 8 bits are loaded as bf16, as those of {whole} (0.7.0 components/models/mistral3/"
              "state_dict_adapter.py _dequantize_from_fp8)")
    return replace(name, value=whole)


def _read_further(reader: Reader, draft: Draft, name: Taken[str], family: str) -> Predictions:
    """Modules for further tokens of the model `name`; `family`: that of Automodel's own layers, "" for others."""
    if family in _QWEN3_5:
        return read_qwen_predictions(reader, draft, name)
    if family == "nemotron_h":
        return read_predictions(reader, draft, name)
    return refuse_predictions(reader, draft)


def _write_named(draft: Draft, name: Taken[str], fields: list[Taken[Any]], further: Predictions) -> None:
    """Writes the model of that name with the fields that change it, and with its modules for `further` tokens."""
    draft.put("model.config" if fields or further else "model", name)
    for field in fields:
        draft.put(f"model.overrides.{field.path[-1]}", field)
    write_predictions(draft, further)


def _is_stock(reader: Reader, draft: Draft, family: str, *, own: bool) -> bool:
    """True if layers of transformers are run, and no packed base is read piece by piece."""
    packed, framework = reader.look("quantization.load_in_4bit") is True, str(draft.values.get("framework"))
    return not own or (not packed and framework_adapter(framework).implementation_of(family, "full") == "hf")


def _read_kernels(reader: Reader, draft: Draft) -> None:
    """Reads which kernels SDPA may take: `sdpa_method` is one of them, or several of which torch takes its first."""
    patches, kernels = reader.flag("model.use_sdpa_patching"), reader.words("model.sdpa_method")
    if patches is not None and not patches.value:
        draft.unmodelled(patches, "torch then chooses SDPA's kernel among all: it is chosen as with the patch")
        draft.idle(kernels, "use_sdpa_patching is off")
        return
    draft.idle(patches, "the default")
    names = [_SDPA.get(name.lower(), "") for name in kernels.value] if kernels else []
    if kernels is not None and "" in names:
        draft.use(kernels)
        draft.fail(kernels.where, f"{kernels.key}: expected some of {', '.join(_SDPA)}, got {', '.join(kernels.value)}")
    elif len(names) == 1:
        draft.put("framework_options.sdpa_backend", kernels, names[0])
    else:
        draft.unmodelled(kernels, "kernels of which torch takes its first that fits: all of torch's are looked at")


_CLASSES: Final[dict[str, tuple[str, tuple[str, ...], dict[str, Any]]]] = {"Qwen3MoeConfig": ("qwen3-30b-a3b", (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "num_experts", "num_experts_per_tok", "moe_intermediate_size"), {"norm_topk_prob": False})}
"""By class of transformers: a built-in model of the family, the sizes that a recipe must say, and the class's defaults
where those of the model differ (5.23 `models/qwen3_moe/configuration_qwen3_moe.py`); `head_dim` it leaves to the
model."""


def _read_class(reader: Reader, draft: Draft, loader: Taken[str]) -> str:
    """Writes a model whose fields the recipe gives itself, and returns its family; "" if it does not give them all."""
    base, needed, defaults = _CLASSES.get(loader.value.rpartition(".")[2], ("", (), {}))
    if not base or not set(needed) <= set(reader.names("model.config")):
        return ""
    draft.infer("model.config", base, "a model of the class's family, all sizes of which the recipe gives", loader)
    fields = {field.path[-1]: field for field in changed_fields(reader, draft, base)}
    if "head_dim" not in fields:
        hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
        draft.infer("model.overrides.head_dim", hidden.value // heads.value, "the hidden size over the heads", hidden,
                    heads, source="models/qwen3_moe/layers.py")
    for absent in sorted(defaults.keys() - fields):
        draft.default(f"model.overrides.{absent}", defaults[absent], "transformers 5.23",
                      loader.value.rpartition(".")[2])
    for name, field in fields.items():
        draft.put(f"model.overrides.{name}", field)
    return _family(base)


def _family(reference: str) -> str:
    try:
        return code_type(model_config(reference, None, ""))
    except InputError:
        return ""


def _read_attention(reader: Reader, draft: Draft, *, by_backend: bool) -> None:
    """`by_backend`: the layers take `backend.attn` alone."""
    asked = reader.text("model.attn_implementation")
    if by_backend:
        draft.idle(asked, "the layers of this family take model.backend.attn alone")
        read_rows(reader, draft, [ATTENTION_ROW])
        return
    if asked is not None and asked.value in _OTHER_ATTENTION:
        draft.refuse(asked, f"attention by {asked.value} (0.7.0 {_OTHER_ATTENTION[asked.value]})")
    else:
        draft.put("framework_options.attn_implementation", asked)
    if asked is None:
        read_rows(reader, draft, [ATTENTION_ROW])
    else:
        draft.idle(reader.take(ATTENTION_ROW.key), f"{asked.key} decides")


_OTHER_ATTENTION: Final = {"ffpa": "components/attention/ffpa_attention.py", "te": "_transformers/te_attention.py"}
"""Values of attn_implementation that Automodel adds to those of transformers, and where."""
_SDPA: Final = {"flash_attention": "flash", "efficient_attention": "efficient", "math": "math",
                "cudnn_attention": "cudnn"}
"""Option of the scenario by the names of torch's kernels (`_transformers/model_init.py` resolve_sdpa_method)."""
_EXPERTS: Final = {
    "torch_mm": "", "gmm": "", "te": "products of experts are counted as those of torch._grouped_mm",
    "torch": "products of experts are counted as grouped, not as a loop over experts",
}


def _read_backend(reader: Reader, draft: Draft, family: str, *, own: bool) -> None:
    """Reads `BackendConfig`, which Automodel's own layers take; `own`: it is they that run."""
    if not own:
        draft.idle(reader.matching("model.backend.*"), "transformers' layers take no BackendConfig")
        return
    draft.use(reader.text("model.backend._target_"), why="the class of these settings")
    is_dense = experts_of(draft) == []
    if is_dense:
        draft.idle(reader.matching("model.backend.experts", _DISPATCHER), "the model has no experts")
    if not read_te_fp8(reader, draft):
        if not is_dense:
            _read_experts(reader, draft)
        kernel = reader.text("model.backend.linear")
        if kernel is not None and kernel.value not in ("te", "torch", "quack"):
            draft.refuse(kernel, f"linear by {kernel.value}")
        elif kernel is not None and kernel.value == "torch":
            draft.idle(kernel, _COUNTED)
        else:
            draft.unmodelled(kernel, _ALIKE)
    if family in ("qwen3", *_QWEN3_5) or implementation_of(family, "full") == "hf":
        draft.idle(reader.text(_NORM_ROW.key), "norms of this family are transformers', whatever is asked")
    else:
        read_rows(reader, draft, [_NORM_ROW])
    _read_dispatcher(reader, draft, is_dense=is_dense)


_COMPILED: Final = ("deepseek_v3", "glm4_moe_lite", "qwen3_moe")
"""Families whose attention BackendConfig.compile_attn compiles (0.7.0 models/{deepseek_v3,qwen3_moe}/layers.py)."""


def _read_compiled(reader: Reader, draft: Draft, family: str) -> None:
    """Reads whether attention is compiled, which is counted as eager where its layers are replayed.

    Compiled it keeps no more than eager (of latent attention 8 % less, by its own partitioner on a CPU), and under
    checkpoints what it keeps is there while one layer is replayed.
    """
    asked = reader.flag("model.backend.compile_attn")
    if asked is None or not asked.value:
        draft.idle(asked, "the default")
    elif family not in _COMPILED:
        draft.idle(asked, "the layers of this family do not read it")
    elif reader.look(ATTENTION_ROW.key) != "sdpa":
        draft.idle(asked, "0.7.0 ignores it with a warning: it requires attn: sdpa (models/deepseek_v3/layers.py:158)")
    elif reader.look("distributed.activation_checkpointing") is not True:
        draft.refuse(asked, "what attention by torch.compile keeps")
    else:
        draft.unmodelled(asked, "kernels of attention that torch.compile fuses: memory and time are counted as of "
                         "eager ones, of which it keeps and launches fewer")


def _read_dispatcher(reader: Reader, draft: Draft, *, is_dense: bool) -> None:
    """Writes the exchange of tokens, which a dense model has none of, and the settings that stand beside it."""
    dispatcher = None if is_dense else reader.text(_DISPATCHER)
    if dispatcher is not None and dispatcher.value == "uccl_ep":
        draft.infer("framework_options.dispatcher", "deepep", "UCCL-EP: DeepEP's manager, tensors, sizes of buffers; "
                    "its transport is not told apart", dispatcher, source="components/moe/megatron/token_dispatcher.py")
    elif not is_dense:
        read_rows(reader, draft, [_DISPATCHER_ROW])
    read_rows(reader, draft, _OTHER_ROWS)


def _read_experts(reader: Reader, draft: Draft) -> None:
    experts = reader.text("model.backend.experts")
    if experts is not None and experts.value == "te" and reader.look(_DISPATCHER) == "torch":
        draft.idle(experts, "with dispatcher torch experts are torch_mm (0.7.0 models/common/utils.py:658), as counted")
    elif experts is not None and experts.value not in _EXPERTS:
        draft.refuse(experts, f"products of experts by {experts.value}")
    elif experts is not None and _EXPERTS[experts.value]:
        draft.unmodelled(experts, _EXPERTS[experts.value])
    else:
        draft.idle(experts, "grouped products, as they are counted")
