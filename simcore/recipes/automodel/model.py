"""The model of an Automodel recipe: which one, in which format, by whose layers, with which kernels."""

from __future__ import annotations

from typing import Any, Final

from simcore.errors import InputError
from simcore.models.graph import model_config
from simcore.recipes.automodel.te_fp8 import read_te_fp8
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Says, Unmodelled, read_rows

__all__ = ["ATTENTION_ROW", "BACKEND_ROWS", "BY_BACKEND", "DTYPES", "REST_ROWS", "read_model"]

_BUILDERS: Final = ("NeMoAutoModelForCausalLM.from_pretrained", "NeMoAutoModelForCausalLM.from_config",
                    "NeMoAutoModelForImageTextToText.from_pretrained")
_FORMATS: Final = {"bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32", "float32": "fp32", "fp16": "fp16",
                   "float16": "fp16", "half": "fp16"}
DTYPES: Final = _FORMATS | {f"torch.{word}": value for word, value in _FORMATS.items()}
"""Formats by the words of `torch_dtype` and of `mp_policy` (`shared/utils.py`, dtype_from_str)."""
_NAMES: Final = ("pretrained_model_name_or_path", "name_or_path")
_NO_FIELDS: Final = ("trust_remote_code", "use_cache", "_attn_implementation", "attn_implementation_new", "dtype",
                     "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id", "architectures")
BY_BACKEND: Final = ("nemotron_h", "qwen3_moe", "deepseek_v3", "gpt_oss")
"""Families whose layers take `backend.attn` and never read attn_implementation (`frameworks/automodel/attention`)."""
ATTENTION_ROW: Final = Says("model.backend.attn", "framework_options.attn", "text",
                            {name: name for name in ("te", "sdpa", "flex")}, what="attention by")
_FILES: Final = "which files are read, and by which code: not part of a step"
_ALIKE: Final = "kernels are not told apart: memory is counted as torch's"
_DISPATCHER: Final = "model.backend.dispatcher"
BACKEND_ROWS: Final = (
    Says(_DISPATCHER, "framework_options.dispatcher", "text",
         {name: name for name in ("deepep", "hybridep", "torch")}, what="exchange of tokens by"),
    Says("model.backend.fake_balanced_gate", "framework_options.fake_balanced_gate", "flag", {True: True},
         {False: "the default"}),
    Says("model.backend.enable_fsdp_optimizations", "framework_options.enable_fsdp_optimizations", "flag"),
    Says("model.backend.rope", "framework_options.backend.rope", "text", {"quack": "quack"}, {"torch": "the default"},
         "rope by"),
    Off("model.backend.compile_attn", "attention by torch.compile"),
    Off("model.backend.cuda_graph", "layers in CUDA graphs"),
    Off("model.backend.enable_deepep", "the older name of dispatcher deepep"),
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
REST_ROWS: Final = (
    Says("model.torch_dtype", "training.precision.params", "text", DTYPES,
         {"auto": "the checkpoint's format, as by default"}, "parameters in"),
    Says("model.use_liger_kernel", "framework_options.use_liger_kernel", "flag"),
    Idle(("model.trust_remote_code", "model.load_base_model", "model.use_sdpa_patching",
          "model.config.trust_remote_code", "model.config.dtype", "model.config.torch_dtype",
          "model.config.architectures"), _FILES),
    Idle(tuple(f"model.config.{name}" for name in _NO_FIELDS), "no layer of training depends on it"),
    Idle(("model.output_hidden_states",), "the loss reads the last of them, which is there in any case"),
    Unmodelled(("model.mtp_*",), "a head of multi-token prediction, which is trained where the checkpoint has one "
                                 "(models/nemotron_v3/mtp.py), is not counted"),
)


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
    family = _read_name(reader, draft)
    forced = reader.flag("model.force_hf")
    own = forced is None or not forced.value
    if own:
        draft.idle(forced, "the default")
    else:
        draft.put("implementation", forced, "hf")
    _read_attention(reader, draft, by_backend=own and family in BY_BACKEND)
    if own and family == "gpt_oss" and reader.is_mapping("model.backend") and reader.take(ATTENTION_ROW.key) is None:
        draft.default("framework_options.attn", "te", "0.7.0", "models/common/utils.py BackendConfig; without a "
                      "model.backend GPT-OSS takes flex")
    _read_backend(reader, draft, own=own)
    depth = reader.integer("model.num_nextn_predict_layers")
    if depth is not None and depth.value:
        draft.refuse(depth, "multi-token prediction under automodel")
    else:
        draft.idle(depth, "no layers of multi-token prediction")
    read_rows(reader, draft, REST_ROWS)
    return family


def _read_name(reader: Reader, draft: Draft) -> str:
    """Writes `model`, and returns its family; "" if it is not known."""
    if (given := draft.answers.settings.get("model")) is not None:
        draft.idle(reader.matching("model.config", "model.config.*", *(f"model.{name}" for name in _NAMES)),
                   "the model is given")
        return _family(str(given))
    written_out = reader.is_mapping("model.config")
    keys = [f"{within}.{name}" for within in ("model", *(["model.config"] if written_out else [])) for name in _NAMES]
    found = [one for key in (*keys, *([] if written_out else ["model.config"])) if (one := reader.text(key))]
    for other in found[1:]:
        if other.value != found[0].value:
            draft.fail(other.where, f"{other.key} is {other.value}, {found[0].key} is {found[0].value}")
    loader = reader.text("model.config._target_")
    if not found and (loader is not None and (family := _read_class(reader, draft, loader))):
        return family
    if not found:
        draft.ask("model", "--set model=NAME or PATH of its config.json", "model", loader)
        draft.idle(reader.matching("model.config.*"), "the model is asked for")
        return ""
    draft.use(loader, *found, why="names the model, or reads its configuration")
    fields = _fields(reader)
    draft.put("model.config" if fields else "model", found[0])
    for field in fields:
        draft.put(f"model.overrides.{field.path[-1]}", field)
    return _family(found[0].value)


_NO_SIZES: Final = ("rms_norm_eps", "rope_theta", "initializer_range")
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
    fields = {field.path[-1]: field for field in _fields(reader)}
    if "head_dim" not in fields:
        hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
        draft.infer("model.overrides.head_dim", hidden.value // heads.value, "the hidden size over the heads", hidden,
                    heads, source="models/qwen3_moe/layers.py")
    for absent in sorted(defaults.keys() - fields):
        draft.default(f"model.overrides.{absent}", defaults[absent], "transformers 5.23",
                      loader.value.rpartition(".")[2])
    for name, field in fields.items():
        if name in _NO_SIZES:
            draft.idle(field, "no size depends on it")
        elif name == "router_aux_loss_coef":
            draft.unmodelled(field, "the balancing loss is counted as in the published models")
        else:
            draft.put(f"model.overrides.{name}", field)
    return _family(base)


def _fields(reader: Reader) -> list[Taken[Any]]:
    """Fields of the configuration that the recipe changes."""
    names = [name for name in reader.names("model.config") if name not in (*_NAMES, *_NO_FIELDS, "_target_")]
    found = [reader.take(f"model.config.{name}") for name in names]
    return [one for one in found if one is not None]


def _family(reference: str) -> str:
    try:
        return str(model_config(reference, None, "").get("model_type", ""))
    except InputError:
        return ""


def _read_attention(reader: Reader, draft: Draft, *, by_backend: bool) -> None:
    """`by_backend`: the layers take `backend.attn` alone."""
    asked = reader.text("model.attn_implementation")
    if by_backend:
        draft.idle(asked, "the layers of this family take model.backend.attn alone")
        read_rows(reader, draft, [ATTENTION_ROW])
        return
    draft.put("framework_options.attn_implementation", asked)
    if asked is None:
        read_rows(reader, draft, [ATTENTION_ROW])
    else:
        draft.idle(reader.take(ATTENTION_ROW.key), f"{asked.key} decides")


_EXPERTS: Final = {
    "torch_mm": "", "gmm": "", "te": "products of experts are counted as those of torch._grouped_mm",
    "torch": "products of experts are counted as grouped, not as a loop over experts",
}


def _read_backend(reader: Reader, draft: Draft, *, own: bool) -> None:
    """Reads `BackendConfig`, which Automodel's own layers take; `own`: it is they that run."""
    if not own:
        draft.idle(reader.matching("model.backend.*"), "transformers' layers take no BackendConfig")
        return
    draft.use(reader.text("model.backend._target_"), why="the class of these settings")
    kernels: list[tuple[str, tuple[str, ...]]] = [("rms_norm", ("te", "torch", "torch_fp32", "quack"))]
    if not read_te_fp8(reader, draft):
        _read_experts(reader, draft)
        kernels = [("linear", ("te", "torch", "quack")), *kernels]
    for name, served in kernels:
        kernel = reader.text(f"model.backend.{name}")
        if kernel is not None and kernel.value not in served:
            draft.refuse(kernel, f"{name} by {kernel.value}")
        else:
            draft.unmodelled(kernel, _ALIKE)
    dispatcher = reader.text(_DISPATCHER)
    if dispatcher is not None and dispatcher.value == "uccl_ep":
        draft.infer("framework_options.dispatcher", "deepep", "UCCL-EP: DeepEP's manager, tensors, sizes of buffers; "
                    "its transport is not told apart", dispatcher, source="components/moe/megatron/token_dispatcher.py")
        read_rows(reader, draft, [row for row in BACKEND_ROWS if getattr(row, "key", "") != _DISPATCHER])
    else:
        read_rows(reader, draft, BACKEND_ROWS)


def _read_experts(reader: Reader, draft: Draft) -> None:
    experts = reader.text("model.backend.experts")
    if experts is not None and experts.value not in _EXPERTS:
        draft.refuse(experts, f"products of experts by {experts.value}")
    elif experts is not None and _EXPERTS[experts.value]:
        draft.unmodelled(experts, _EXPERTS[experts.value])
    else:
        draft.idle(experts, "grouped products, as they are counted")
