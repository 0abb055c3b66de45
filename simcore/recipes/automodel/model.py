"""The model of an Automodel recipe: which one, in which format, by whose layers, with which kernels."""

from __future__ import annotations

from typing import Final

from simcore.errors import InputError
from simcore.models.graph import model_config
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken

__all__ = ["DTYPES", "read_model"]

_BUILDERS: Final = ("NeMoAutoModelForCausalLM.from_pretrained", "NeMoAutoModelForCausalLM.from_config")
_LOADERS: Final = ("AutoConfig.from_pretrained",)
DTYPES: Final = {"bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32", "float32": "fp32", "fp16": "fp16",
                 "float16": "fp16"}
"""Formats by the words of `torch_dtype`, with or without `torch.` before them."""
_NAMES: Final = ("pretrained_model_name_or_path", "name_or_path")
_NO_FIELDS: Final = ("trust_remote_code", "use_cache", "_attn_implementation", "attn_implementation_new", "dtype",
                     "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id", "architectures")
_BY_BACKEND: Final = ("nemotron_h", "qwen3_moe", "deepseek_v3")
"""Families whose layers take `backend.attn` and never read attn_implementation (`frameworks/automodel/attention`)."""
_IDLE: Final = "which files are read, and by which code: not part of a step"


def read_model(reader: Reader, draft: Draft) -> None:
    """Reads the block `model`."""
    builder = reader.text("model._target_")
    if builder is not None and not builder.value.endswith(_BUILDERS):
        draft.refuse(builder, f"models are read that {' or '.join(_BUILDERS)} makes")
    else:
        draft.use(builder)
    family = _read_name(reader, draft)
    _read_dtype(reader, draft)
    own = True
    if (forced := reader.flag("model.force_hf")) is not None and forced.value:
        draft.put("implementation", forced, "hf")
        own = False
    elif forced is not None:
        draft.idle(forced, "the default")
    by_backend = own and family in _BY_BACKEND
    _read_attention(reader, draft, by_backend=by_backend)
    _read_backend(reader, draft, own=own)
    _read_rest(reader, draft)


def _read_name(reader: Reader, draft: Draft) -> str:
    """Writes `model`, and returns its family; "" if it is not known."""
    within = "model.config." if reader.is_mapping("model.config") else "model."
    found = [one for one in (reader.text(f"{within}{name}") for name in _NAMES) if one is not None]
    if not reader.is_mapping("model.config") and (named := reader.text("model.config")) is not None:
        found.append(named)
    draft.use(*found)
    if not found:
        if within == "model.config.":
            draft.refuse(reader.text("model.config._target_"), "a configuration that is written out: save it as "
                         "config.json and give its path (--set model=PATH)")
        draft.ask("model", "--set model=NAME or PATH of its config.json", "model")
        return ""
    name = found[0]
    if within == "model.config.":
        loader = reader.text("model.config._target_")
        draft.use(loader)
    fields = _fields(reader)
    draft.put("model.config" if fields else "model", name)
    for field in fields:
        draft.put(f"model.overrides.{field.path[-1]}", field)
    return _family(str(draft.answers.settings.get("model", name.value)))


def _fields(reader: Reader) -> list[Taken[object]]:
    """Fields of the configuration that the recipe changes."""
    names = [name for name in reader.names("model.config") if name not in (*_NAMES, *_NO_FIELDS, "_target_")]
    found = [reader.take(f"model.config.{name}") for name in names]
    return [one for one in found if one is not None]


def _family(reference: str) -> str:
    try:
        return str(model_config(reference, None, "").get("model_type", ""))
    except InputError:
        return ""


def _read_dtype(reader: Reader, draft: Draft) -> None:
    dtype = reader.text("model.torch_dtype")
    if dtype is None:
        return
    word = dtype.value.removeprefix("torch.")
    if word == "auto":
        draft.idle(dtype, "the checkpoint's format, as by default")
    elif word in DTYPES:
        draft.put("training.precision.params", dtype, DTYPES[word])
    else:
        draft.refuse(dtype, f"parameters in {dtype.value}")


def _read_attention(reader: Reader, draft: Draft, *, by_backend: bool) -> None:
    asked = reader.text("model.attn_implementation")
    if by_backend:
        draft.idle(asked, "the layers of this family take model.backend.attn alone")
    else:
        draft.put("framework_options.attn_implementation", asked)
    attention = reader.text("model.backend.attn")
    if attention is None:
        return
    if asked is not None and not by_backend:
        draft.idle(attention, "model.attn_implementation decides")
    elif attention.value in ("te", "sdpa"):
        draft.put("framework_options.attn", attention)
    else:
        draft.refuse(attention, f"attention by {attention.value} under automodel")


_EXPERTS: Final = {
    "torch_mm": "", "gmm": "", "te": "products of experts are counted as those of torch._grouped_mm",
    "torch": "products of experts are counted as grouped, not as a loop over experts",
}


def _read_backend(reader: Reader, draft: Draft, *, own: bool) -> None:
    """Reads `BackendConfig`, which Automodel's own layers take; `own`: it is they that run."""
    if not own:
        draft.idle(reader.matching("model.backend.*"), "transformers' layers take no BackendConfig")
        return
    draft.use(reader.text("model.backend._target_"))
    experts = reader.text("model.backend.experts")
    if experts is not None and experts.value not in _EXPERTS:
        draft.refuse(experts, f"products of experts by {experts.value}")
    elif experts is not None and _EXPERTS[experts.value]:
        draft.unmodelled(experts, _EXPERTS[experts.value])
    else:
        draft.idle(experts, "grouped products, as they are counted")
    dispatcher = reader.text("model.backend.dispatcher")
    if dispatcher is not None and dispatcher.value not in ("deepep", "hybridep", "torch"):
        draft.refuse(dispatcher, f"exchange of tokens by {dispatcher.value}")
        draft.idle(reader.matching("model.backend.mok.*"), "settings of a dispatcher that is refused")
    else:
        draft.put("framework_options.dispatcher", dispatcher)
    _read_kernels(reader, draft)


def _read_kernels(reader: Reader, draft: Draft) -> None:
    for name, served in (("linear", ("te", "torch")), ("rms_norm", ("te", "torch", "torch_fp32")),
                         ("rope", ("torch",))):
        kernel = reader.text(f"model.backend.{name}")
        if kernel is not None and kernel.value not in served:
            draft.refuse(kernel, f"{name} by {kernel.value}")
        else:
            draft.unmodelled(kernel, "kernels are not told apart: memory is counted as torch's")
    draft.unmodelled([one for name in ("rope_fusion", "gate_precision", "dispatcher_num_sms",
                                       "dispatcher_share_token_dispatcher", "dispatcher_async_dispatch")
                      if (one := reader.take(f"model.backend.{name}"))], "not told apart")
    gate = reader.flag("model.backend.fake_balanced_gate")
    if gate is not None and gate.value:
        draft.put("framework_options.fake_balanced_gate", gate)
    else:
        draft.idle(gate, "the default")
    draft.put("framework_options.enable_fsdp_optimizations", reader.flag("model.backend.enable_fsdp_optimizations"))
    draft.idle(reader.take("model.backend.enable_hf_state_dict_adapter"), _IDLE)
    draft.refuse(reader.take("model.backend.te_fp8"), "products in 8 bits by TransformerEngine under automodel")
    compiled = reader.flag("model.backend.compile_attn")
    if compiled is not None and compiled.value:
        draft.refuse(compiled, "attention by torch.compile")
    else:
        draft.idle(compiled, "the default")


def _read_rest(reader: Reader, draft: Draft) -> None:
    draft.put("framework_options.use_liger_kernel", reader.flag("model.use_liger_kernel"))
    draft.idle(reader.matching("model.trust_remote_code", "model.load_base_model", "model.use_sdpa_patching",
                               *(f"model.config.{name}" for name in _NO_FIELDS)), _IDLE)
    hidden = reader.flag("model.output_hidden_states")
    draft.idle(hidden, "the loss reads the last of them, which is there in any case")
    depth = reader.integer("model.num_nextn_predict_layers")
    if depth is not None and depth.value:
        draft.refuse(depth, "multi-token prediction under automodel")
    else:
        draft.idle(depth, "no layers of multi-token prediction")
    draft.idle(reader.matching("model.mtp_*"), "settings of multi-token prediction alone")
