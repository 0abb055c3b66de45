"""QLoRA: which weights bitsandbytes 0.50.2, as transformers 5.23 calls it, or torchao packs into 4 bits, and how.

transformers `integrations/bitsandbytes.py`, replace_with_bnb_linear: every `nn.Linear` but those that
`quantizers/base.py`, get_keys_to_not_convert, names: the output head, what is tied, the last module. Embeddings, norms,
convolutions, routers and experts that are one 3-D parameter are no `nn.Linear`: they stay as they are stored. In
transformers 4 and in a model's own repository each expert is a module of linears, which are packed
(4.57.1 `integrations/bitsandbytes.py`); so is transformers 4's router, a linear there.

[Note: Mamba's output projection] It is never packed. Mamba's fused kernel takes `out_proj.weight` itself (mamba-ssm
`ops/triton/ssd_combined.py`: F.linear(out, outproj_weight)), and a packed column is no such matrix: the first step
raises "mat1 and mat2 shapes cannot be multiplied" (axolotl issue 3951). Every run that works skips it, by
`llm_int8_skip_modules: [out_proj, lm_head]`, a list that replaces the default one (5.23 `quantizers/base.py`,
get_modules_to_not_convert).
torchtune bd2a0fc7 `models/llama3_1/_model_builders.py` and `modules/low_precision/nf4_linear.py` (quantize_base): the
same linears, by torchao's NF4Tensor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.frameworks.common.expert_adapters import adapts_experts
from simcore.inputs.training import Quantization
from simcore.models.tensor import TensorSpec
from simcore.placement.job import Draft, Job
from simcore.recording.number_formats import PackedWeights

__all__ = ["EXPERTS_OPTION", "OUTLIERS", "SKIP_OPTION", "STORAGES", "STORAGE_OPTION", "THRESHOLD_OPTION", "TUNE_OPTION",
           "is_cast_by_product", "is_expert", "is_head", "is_packed", "packed_of", "packs_experts", "packs_head"]

STORAGE_OPTION: Final = "bnb_4bit_quant_storage"
TUNE_OPTION: Final = "quantize_base"
THRESHOLD_OPTION: Final = "llm_int8_threshold"
OUTLIERS: Final = ("outliers of LLM.int8()", "no column of an input has any; products take as long as in 16 bits",
                   "assumed", "bitsandbytes 0.50.2 backends/default/ops.py int8_mixed_scaled_mm: such columns are "
                   "multiplied apart, and how many there are is a matter of the data")
SKIP_OPTION: Final = "llm_int8_skip_modules"
EXPERTS_OPTION: Final = "quantize_moe_experts"
_TYPES: Final = {"uint8": "uint8", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
STORAGES: Final[tuple[Any, ...]] = (None, *_TYPES)
_SIZES: Final = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_BNB: Final = "bitsandbytes 0.50.2"
_TURING: Final = (7, 5)
"""The first with integer tensor cores."""
_CONVOLUTIONS: Final = ("conv1d", "patch_embedding", "projection")
_COLUMN: Final = ("uint8", "transformers 5.23 utils/quantization_config.py BitsAndBytesConfig")


def packed_of(job: Draft, options: dict[str, Any], default: tuple[str, str] = _COLUMN) -> PackedWeights | None:
    """Returns the format in which frozen linears are packed in 4 or 8 bits; None without qlora.

    `options`: the framework options that the scenario sets, by name. `default`: dtype (bitsandbytes' names: uint8,
    bfloat16, ...) in which the packed values are stored unless they say it, and its source. Raises InputError,
    IllegalLayout or NotYet for a format that is not served.
    """
    asked, at = job.scenario.training.quantization, "training.quantization"
    if job.scenario.training.method != "qlora":
        for name in (STORAGE_OPTION, TUNE_OPTION, THRESHOLD_OPTION):
            job.refuse_idle(options, name, "without qlora")
        return None
    _note_unpacked(job)
    if options.get(TUNE_OPTION):
        return _torchaos(job, options)
    if asked.format == "int8":
        return _int8(job, options)
    job.refuse_idle(options, THRESHOLD_OPTION, f"with {asked.format}")
    if asked.block_size not in _SIZES:
        sizes = ", ".join(str(size) for size in _SIZES)
        raise InputError(Problem(job.scenario.where("training", "quantization", "block_size"),
                                 f"block_size: expected one of {sizes}, got {asked.block_size} ({_BNB} functional.py)"))
    if asked.block_size != _SIZES[1]:
        raise job.illegal(f"{at}.block_size", f"{asked.block_size} values in a block: BitsAndBytesConfig has no such "
                          "setting, Params4bit takes 64", f"{_BNB} nn/modules.py, transformers 5.23 "
                          "utils/quantization_config.py")
    storage = job.auto(f"framework_options.{STORAGE_OPTION}", options.get(STORAGE_OPTION) or "auto", *default)
    return PackedWeights(asked.format, asked.block_size, asked.double_quant, _TYPES[storage])


def _note_unpacked(job: Draft) -> None:
    """Records what stays in 16 bits although its like is packed elsewhere."""
    if job.has_experts and job.graph.implementation == "hf" and not job.scenario.framework_options.get(EXPERTS_OPTION):
        job.note("quantization of experts", "none: they stay in 16 bits", "transformers 5.23 integrations/"
                                                "bitsandbytes.py: linears are packed, experts are parameters of 3-D")
    if any(_is_taken_by_kernel(spec) for specs in job.graph.tensors for spec in specs):
        job.note("quantization of out_proj", "none: it stays in 16 bits, by llm_int8_skip_modules: [out_proj, lm_head]",
                 "mamba-ssm ops/triton/ssd_combined.py: F.linear(out, outproj_weight); packed, the first step raises")


def _int8(job: Draft, options: dict[str, Any]) -> PackedWeights:
    """Nothing of it is asked for but a threshold, which frameworks take that serve it."""
    asked = job.scenario.training.quantization
    if job.scenario.framework != "ddp":
        raise job.not_yet("training.quantization.format", f"int8 (LLM.int8()) under {job.scenario.framework} (served: "
                          "ddp)")
    if job.graph.implementation != "hf":
        raise job.not_yet("training.quantization.format", "int8 (LLM.int8()) of experts that are modules (served: nf4, "
                          "fp4)")
    if job.compute_capability < _TURING:
        have, need = (".".join(str(part) for part in parts) for parts in (job.compute_capability, _TURING))
        raise job.illegal("training.quantization.format", "int8: products of LLM.int8() need compute "
                          f"capability {need}, and this GPU has {have} (nf4 and fp4 run on it)",
                          f"{_BNB} docs/source/installation.mdx")
    if asked != Quantization(format="int8"):
        raise InputError(Problem(job.scenario.where("training", "quantization"), "quantization: block_size and "
                                 f"double_quant change nothing with int8, whose rows have a maximum each ({_BNB})"))
    for name in (STORAGE_OPTION, TUNE_OPTION):
        job.refuse_idle(options, name, "with int8")
    given = options.get(THRESHOLD_OPTION)
    job.auto(f"framework_options.{THRESHOLD_OPTION}", "auto" if given is None else str(given), "6.0",
             "transformers 5.23 utils/quantization_config.py BitsAndBytesConfig")
    return PackedWeights("int8", 0, double_quant=False, storage="int8")


def _torchaos(job: Job, options: dict[str, Any]) -> PackedWeights:
    """Blocks of 64, whose maxima are quantised by 256; a weight must be whole ones of those."""
    asked, source = job.scenario.training.quantization, "torchao 0.18 nf4_tensor.py to_nf4, from_tensor"
    job.refuse_idle(options, STORAGE_OPTION, f"with {TUNE_OPTION}")
    if (asked.format, asked.block_size, asked.double_quant) != ("nf4", _SIZES[1], True):
        raise job.illegal("training.quantization", "NF4Tensor has blocks of 64 NF4 values, quantised twice", source)
    bad = next((spec.name for specs in job.graph.tensors for spec in specs
                if is_packed(spec) and spec.numel % (_SIZES[1] * 256)), None)
    if bad:
        raise job.illegal("model", f"{bad}: number of scalers must be divisible by scaler block size 256", source)
    return PackedWeights("nf4", _SIZES[1], double_quant=True, is_tensor=True)


def is_packed(spec: TensorSpec) -> bool:
    """True if a tensor is packed under qlora: a frozen weight of a linear.

    Neither the output head's nor Mamba's output projection ([Note: Mamba's output projection]).
    """
    return (spec.module == "linear" and not spec.trainable and spec.component not in ("embedding", "lm_head")
            and not _is_taken_by_kernel(spec))


def packs_experts(job: Job, options: dict[str, Any]) -> bool:
    """Returns True if experts that are one parameter are packed in 4 bits as they are read.

    axolotl 067b021c `monkeypatch/moe_quant.py` patch_moe_quantization_on_load, by bitsandbytes 0.50.2
    `nn/parametrize.py` replace_parameter_4bit: the weight is made whole where the module reads it, once a forward.
    InputError without such a base, NotYet for int8, for experts with biases and for experts that have adapters.
    """
    if not options.get(EXPERTS_OPTION):
        return False
    at = f"framework_options.{EXPERTS_OPTION}"
    if job.scenario.training.method != "qlora" or not job.has_experts:
        raise InputError(Problem(job.scenario.where("framework_options", EXPERTS_OPTION), f"{EXPERTS_OPTION}: changes "
                                 "nothing without experts beside a base in 4 bits"))
    if job.scenario.training.quantization.format == "int8":
        raise job.not_yet(at, "experts in int8 (served: nf4, fp4)")
    if any(spec.component == "routed_experts" and spec.module == "bias" for specs in job.graph.tensors
           for spec in specs):
        raise job.not_yet(at, "experts with biases that are packed")
    if adapts_experts(job):
        raise job.not_yet(at, "adapters of experts that are packed")
    return True


def is_expert(spec: TensorSpec) -> bool:
    """True for the weights of all routed experts of a layer as one frozen parameter."""
    return spec.module == "grouped" and not spec.trainable


def is_cast_by_product(spec: TensorSpec) -> bool:
    """True for the bias of a linear that is packed in 4 bits: it rests in the type of the product.

    bitsandbytes 0.50.2 `nn/modules.py` Linear4bit.forward replaces its data in the first step, whatever type
    prepare_model_for_kbit_training gave it. A tower that is given no images has no such step.
    """
    at = spec.path.rpartition(".")[2]
    return (spec.module == "bias" and not spec.rests and spec.component not in ("router", "routed_experts")
            and at not in _CONVOLUTIONS and is_packed(replace(spec, module="linear")))


def packs_head(job: Job, options: dict[str, Any]) -> bool:
    """Returns True if the output head is packed too, as with a list of skipped modules that does not name it.

    transformers 5.23 `quantizers/base.py`, get_modules_to_not_convert: the list replaces the default one. NotYet for
    other modules than Mamba's `out_proj`, IllegalLayout where the head is the embedding.
    """
    skipped = options.get(SKIP_OPTION)
    if skipped is None:
        return False
    at = f"framework_options.{SKIP_OPTION}"
    if job.scenario.training.method != "qlora" or job.scenario.training.quantization.format == "int8":
        raise InputError(Problem(job.scenario.where("framework_options", SKIP_OPTION), f"{SKIP_OPTION}: changes "
                                 "nothing without weights in 4 bits"))
    if unknown := [name for name in skipped if name not in ("out_proj", "lm_head")]:
        raise job.not_yet(at, f"{unknown[0]} that is not packed (served: out_proj, lm_head)")
    if "out_proj" not in skipped and any(_is_taken_by_kernel(spec) for specs in job.graph.tensors for spec in specs):
        raise job.illegal(at, "Mamba's out_proj is packed: mat1 and mat2 shapes cannot be multiplied",
                          "mamba-ssm ops/triton/ssd_combined.py: F.linear(out, outproj_weight)")
    if "lm_head" not in skipped and job.graph.has_tied_head:
        raise job.not_yet(at, "a tied lm_head that is packed")
    return "lm_head" not in skipped


def is_head(spec: TensorSpec) -> bool:
    """True for the weight of the output head, where it is none other's."""
    return spec.component == "lm_head" and not spec.is_buffer and not spec.trainable and len(spec.shape) == 2


def _is_taken_by_kernel(spec: TensorSpec) -> bool:
    return spec.component == "mamba" and spec.module == "linear" and spec.path.endswith("out_proj")
