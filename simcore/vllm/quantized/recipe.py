"""From `generation.quantization` and the model's `quantization_config` to the method of every layer.

[Note: quantised weights]
vLLM 0.12.0 `config/model.py` _verify_quantization: a checkpoint's configuration decides, and a key that names another
method is an error; over 16 bits only fp8 and bitsandbytes quantise while they load. Only linears of layers and experts
are quantised: embedding, head, norms, convolution and biases keep 16 bits (`get_quant_method` takes LinearBase and
FusedMoE). Routers have a method too where the model gives them one (Qwen3-MoE, not Mixtral and Nemotron-H). AWQ and
GPTQ read from the files which linears are packed (maybe_update_config): assumed are all but routers. Held to vLLM's own
parameters for the families below, on compute capability 8.0, 8.9, 9.0 and 10.0 (`tests/truth/probe_vllm_weights.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from simcore.models.blocks import Branch
from simcore.vllm.quantized.four_bit import FourBits
from simcore.vllm.quantized.fp8 import REFIT_BLOCK, Fp8Blocks, Fp8Channels, Fp8Matrices, OnlineFp8
from simcore.vllm.quantized.integers import Integers
from simcore.vllm.quantized.linears import Linear
from simcore.vllm.quantized.mxfp8 import Mxfp8
from simcore.vllm.quantized.nvfp4 import Nvfp4
from simcore.vllm.quantized.skipped import Skipped
from simcore.vllm.quantized.tensor import Gpu, Method

__all__ = ["FAMILIES", "REFITTED", "Recipe", "Unserved", "of_checkpoint", "online", "refitted"]

FAMILIES: Final = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "nemotron_h")
"""Model families whose modules and their names are known here."""
REFITTED: Final = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral")
"""Those with NeMo RL's fp8. vLLM 0.25.1 makes the first matrix of experts without a gate twice as large: not yet."""


class Unserved(Exception):
    """A quantisation that vLLM may have and that is not modelled; its text says which."""


_NONE: Final = Skipped()
_HOPPER, _BLACKWELL = 9, 10


@dataclass(frozen=True, slots=True)
class Recipe:
    """Quantisation of one engine: `name` as vLLM calls it, the `method` of linears, and the layers that it leaves out.

    `routers`: routers are quantised where the model lets them. `is_online`: the weights are read in 16 bits and
    quantised on the device. `heads`: so is the head, unless its weight is the embedding's.
    """

    name: str
    method: Method
    skipped: Skipped = _NONE
    routers: bool = True
    is_online: bool = False
    heads: bool = False

    @property
    def unpacks(self) -> bool:
        """True if a pass of many tokens makes each matrix whole in 16 bits first (bitsandbytes `_functions.py`)."""
        return isinstance(self.method, FourBits)

    def unpacked_bytes(self, blocks: Iterable[tuple[Branch, list[tuple[str, Linear]]]], tokens: int) -> dict[
            Branch, int]:
        """Bytes that a pass of `tokens` tokens adds to unpack weights, by block; empty where kernels read them packed.

        `blocks`: each with its linears by path; of a block that stands in several layers the most.
        """
        found: dict[Branch, int] = {}
        if not isinstance(self.method, FourBits):
            return found
        for branch, linears in blocks:
            taken = [linear for module, linear in linears if self.method_of(module, linear) is not None]
            found[branch] = max(found.get(branch, 0), self.method.unpacked_bytes(taken, tokens))
        return found

    def method_of(self, module: str, linear: Linear) -> Method | None:
        """Method of a linear of the module with this path; None for one that stays in 16 bits."""
        if linear.name == "conv1d" or (linear.name == "gate" and not self.routers) or self.skipped.has(module):
            return None
        return self.method


def online(name: str, gpu: Gpu) -> Recipe:
    """Recipe of `--quantization fp8` or `bitsandbytes` over a checkpoint in 16 bits."""
    if name == "fp8":
        _needs(gpu, (8, 9), "fp8 weights on GPUs whose cores do not take fp8 (vLLM packs them for Marlin)")
        return Recipe(name, OnlineFp8(), is_online=True)
    return Recipe(name, FourBits(from_file=False))


def refitted(gpu: Gpu, kept: tuple[str, ...] = (), *, in_exponents: bool = False) -> Recipe:
    """Recipe of an engine of NeMo RL with `vllm_cfg.precision: fp8`, whose weights are quantised as they arrive.

    NeMo RL 7ea279ab `models/generation/vllm/quantization/fp8.py` init_fp8: vLLM 0.25.1 takes it for a checkpoint in
    blocks of 128 x 128, or of MXFP8 (`in_exponents`, is_mx); process_weights_after_loading and _moe keep the tensors
    that were made, so that the next refit finds them. `kept`: parts of names of parameters that stay in 16 bits
    (quantization_ignored_layer_kws). Raises Unserved for GPUs other than compute capability 9, or 10 for MXFP8.
    """
    skipped = Skipped("parameters", kept)
    if in_exponents:
        if gpu.capability[0] != _BLACKWELL:
            raise Unserved("mxfp8 weights that a trainer sends, on GPUs other than compute capability 10")
        return Recipe("mxfp8", Mxfp8(), skipped, heads=True)
    if gpu.capability[0] != _HOPPER:
        raise Unserved("fp8 weights that a trainer sends, on GPUs other than compute capability 9 (DeepGEMM packs "
                       "scales in another way on 10, Marlin weights below 8.9)")
    return Recipe("fp8", Fp8Blocks(REFIT_BLOCK, REFIT_BLOCK, kept="weight_scale_inv", release="0.25.1"), skipped)


def of_checkpoint(config: Mapping[str, Any], gpu: Gpu) -> Recipe:
    """Recipe of a `quantization_config`. Raises Unserved for what is not modelled, ValueError for a wrong value."""
    name = str(config.get("quant_method", "")).lower().replace("_", "-")
    if config.get("producer", {}).get("name") == "modelopt":
        name = "modelopt"
    if name not in _READERS:
        raise Unserved(f"quant_method {name or 'nothing'} (served: {', '.join(_READERS)})")
    return _READERS[name](config, gpu)


def _needs(gpu: Gpu, least: tuple[int, int], what: str) -> None:
    if gpu.capability < least:
        raise Unserved(what)


def _names(config: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    """The first of these lists that is there and not empty."""
    for key in keys:
        value = config.get(key)
        if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            raise ValueError(f"{key}: expected a list of names, got {value!r}")
        if value:
            return tuple(value)
    return ()


def _whole(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
        raise ValueError(f"{key}: expected a whole number, got {value!r}")
    return value


def _fp8(config: Mapping[str, Any], gpu: Gpu) -> Recipe:
    scheme, blocks = config.get("activation_scheme"), config.get("weight_block_size")
    if scheme not in ("static", "dynamic"):
        raise ValueError(f"activation_scheme: expected static or dynamic, got {scheme!r}")
    _needs(gpu, (8, 9), "fp8 weights on GPUs whose cores do not take fp8 (vLLM packs them for Marlin)")
    skipped = Skipped("names", _names(config, "ignored_layers", "modules_to_not_convert"))
    if blocks is None:
        return Recipe("fp8", Fp8Matrices("fp8", static=scheme == "static"), skipped)
    if scheme == "static" or not isinstance(blocks, list) or len(blocks) != 2:
        raise ValueError(f"weight_block_size: expected two numbers and activation_scheme dynamic, got {blocks!r}")
    sizes = {"rows": blocks[0], "columns": blocks[1]}
    return Recipe("fp8", Fp8Blocks(_whole(sizes, "rows"), _whole(sizes, "columns")), skipped)


def _awq(config: Mapping[str, Any], gpu: Gpu) -> Recipe:
    bits, group = _whole(config, "bits"), _whole(config, "group_size")
    if bits != 4 or config.get("zero_point") is not True or group not in (-1, 32, 64, 128):
        raise Unserved("awq other than 4 bits with zero_point in groups of 32, 64 or 128 (served: what Marlin takes)")
    _needs(gpu, (8, 0), "awq below compute capability 8.0, where Marlin does not run")
    if config.get("lm_head"):
        raise Unserved("a quantised lm_head")
    skipped = _names(config, "modules_to_not_convert")
    return Recipe("awq_marlin", Integers("awq", bits, group, gpu), Skipped("parts", skipped), routers=bool(skipped))


def _gptq(config: Mapping[str, Any], gpu: Gpu) -> Recipe:
    bits, group = _whole(config, "bits"), _whole(config, "group_size")
    if bits not in (4, 8) or config.get("sym") is not True or group not in (-1, 32, 64, 128):
        raise Unserved("gptq other than symmetric 4 or 8 bits in groups of 32, 64 or 128")
    if config.get("desc_act"):
        raise Unserved("gptq with desc_act (its order of inputs needs indices that kernels hold apart)")
    if config.get("dynamic") or config.get("lm_head") or config.get("modules_in_block_to_quantize"):
        raise Unserved("gptq of chosen modules (dynamic, lm_head, modules_in_block_to_quantize)")
    _needs(gpu, (8, 0), "gptq below compute capability 8.0, where Marlin does not run")
    if bits == 8 and group == -1 and gpu.capability < (9, 0):
        raise Unserved("gptq in 8 bits without groups on compute capability 8 (vLLM chooses AllSpark's kernel)")
    return Recipe("gptq_marlin", Integers("gptq", bits, group, gpu), routers=False)


def _bitsandbytes(config: Mapping[str, Any], gpu: Gpu) -> Recipe:
    if config.get("load_in_8bit"):
        raise Unserved("bitsandbytes in 8 bits")
    return Recipe("bitsandbytes", FourBits(from_file=True),
                  Skipped("components", _names(config, "llm_int8_skip_modules")))


def _modelopt(config: Mapping[str, Any], gpu: Gpu) -> Recipe:
    inner = config.get("quantization")
    found = inner if isinstance(inner, Mapping) else config
    algorithm = found.get("quant_algo")
    skipped = Skipped("wildcards", _names(found, "exclude_modules" if found is inner else "ignore"))
    if algorithm == "FP8":
        _needs(gpu, (8, 9), "modelopt below compute capability 8.9 (vLLM refuses it)")
        return Recipe("modelopt", Fp8Matrices("modelopt", static=True), skipped)
    if algorithm == "NVFP4" and found.get("group_size") == 16:
        _needs(gpu, (10, 0), "NVFP4 on GPUs whose cores do not take fp4 (kernels differ with what is installed)")
        return Recipe("modelopt_fp4", Nvfp4("modelopt"), skipped)
    raise Unserved(f"modelopt with quant_algo {algorithm!r}, group_size {found.get('group_size')!r} (served: FP8, "
                   "and NVFP4 in groups of 16)")


def _compressed(config: Mapping[str, Any], gpu: Gpu) -> Recipe:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise Unserved("compressed-tensors with other than one group in config_groups")
    group = next(iter(groups.values()))
    if group.get("targets") != ["Linear"] or config.get("sparsity_config") or config.get("transform_config"):
        raise Unserved("compressed-tensors with targets other than Linear, sparsity_config or transform_config")
    weights, inputs = group.get("weights") or {}, group.get("input_activations") or {}
    method = _method(weights, inputs, group.get("format") or config.get("format"), gpu)
    return Recipe("compressed-tensors", method, Skipped("patterns", _names(config, "ignore")))


def _method(weights: Mapping[str, Any], inputs: Mapping[str, Any], form: object, gpu: Gpu) -> Method:
    kind = (weights.get("type"), weights.get("num_bits"), weights.get("strategy"))
    symmetric = weights.get("symmetric", True) and not weights.get("actorder")
    if kind[:2] == ("float", 8) and form == "float-quantized" and inputs.get("num_bits") == 8 and symmetric:
        _needs(gpu, (8, 9), "fp8 weights on GPUs whose cores do not take fp8 (vLLM packs them for Marlin)")
        pair = kind[2], inputs.get("strategy"), bool(inputs.get("dynamic"))
        if pair in _FLOAT8:
            return _FLOAT8[pair]
    if kind[:2] == ("int", 4) and form == "pack-quantized" and not inputs and symmetric:
        _needs(gpu, (8, 0), "compressed-tensors in 4 bits below compute capability 8.0, where Marlin does not run")
        size = _whole(weights, "group_size") if kind[2] == "group" else -1
        if kind[2] in ("group", "channel") and size in (-1, 32, 64, 128):
            return Integers("compressed-tensors", 4, size, gpu)
    if kind == ("float", 4, "tensor_group") and form == "nvfp4-pack-quantized" and inputs.get("num_bits") == 4:
        _needs(gpu, (10, 0), "NVFP4 on GPUs whose cores do not take fp4 (kernels differ with what is installed)")
        return Nvfp4("compressed-tensors")
    raise Unserved(f"compressed-tensors with weights {kind[0]} {kind[1]} {kind[2]}, format {form} (served: float 8 "
                   "tensor or channel, int 4 symmetric in groups or channels, nvfp4)")


_FLOAT8: Final[dict[tuple[Any, Any, bool], Method]] = {
    ("tensor", "tensor", False): Fp8Matrices("compressed-tensors", static=True),
    ("tensor", "token", True): Fp8Matrices("compressed-tensors", static=False),
    ("channel", "token", True): Fp8Channels()}
"""By strategy of weights, strategy of activations, whether these are scaled while running."""

_READERS: Final[dict[str, Callable[[Mapping[str, Any], Gpu], Recipe]]] = {
    "fp8": _fp8, "awq": _awq, "gptq": _gptq, "bitsandbytes": _bitsandbytes, "modelopt": _modelopt,
    "compressed-tensors": _compressed}
