"""Quantised weights that a scenario asks for: by `generation.quantization`, or by the model's own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.hardware.topology import Topology
from simcore.inputs.generation import Generation
from simcore.inputs.scenario import Scenario
from simcore.models.blocks import Attention
from simcore.models.config import Architecture, quantization_of
from simcore.results.report import Assumption
from simcore.vllm.quantized.four_bit import FourBits
from simcore.vllm.quantized.recipe import FAMILIES, REFITTED, Recipe, Unserved, of_checkpoint, online, refitted
from simcore.vllm.quantized.tensor import Gpu
from simcore.vllm.weights import layers_of, modules

__all__ = ["assumptions_of", "misread", "recipe_of"]

_RELEASE: Final = "0.12.0"
"""The version whose layers are held to it."""
_ONLINE: Final = ("fp8", "bitsandbytes")
_NEMO_RL: Final = {"modelopt": "7ea279ab nemo_rl/modelopt", "modelopt_fp4": "7ea279ab nemo_rl/modelopt"}
"""Formats other than fp8 and mxfp8 to which NeMo RL can quantise, with its source."""
_REFIT: Final = ("fp8", "mxfp8")
_MX_GPUS: Final = ("NeMo RL 7ea279ab models/generation/vllm/quantization/fp8.py:866 Unsupported MXFP8 linear kernel "
                   "for refit: vLLM 0.25.1 chooses Marlin there")
_MX_LEAST: Final = 10
_DECIDES: Final = "vLLM 0.12.0 config/model.py _verify_quantization"


def recipe_of(scenario: Scenario, given: Generation, model: tuple[Architecture, Mapping[str, Any]], topology: Topology,
              engine: tuple[str, Literal["server", "library"]]) -> Recipe | None:
    """Quantisation of an engine's weights; None for the 16 bits of the checkpoint.

    `model`: its layers and its configuration; `engine`: version of vLLM, and who calls it. Raises IllegalLayout for
    what vLLM refuses, NotYet for what is not modelled, InputError for a wrong value of the configuration.
    """
    (architecture, fields), asked = model, given.quantization
    if given.unquantized and (engine[1] != "library" or asked not in _REFIT):
        raise InputError(Problem(scenario.where("generation", "unquantized"), "unquantized: names layers of an engine "
                                 "that a trainer sends weights to in fp8 or mxfp8"))
    if engine[1] == "library" and asked != "auto":
        return _refitted(scenario, given, architecture, topology, engine[0])
    found = quantization_of(fields, scenario.where("model"))
    if found is None and asked == "auto":
        return None
    at = scenario.where("model") if asked == "auto" else scenario.where("generation", "quantization")
    _check_engine(at, architecture, topology, engine)
    recipe = _read(at, asked, found, Gpu(_capability(topology), int(topology.device.num_sms)))
    _check_layers(at, given.tp, architecture, recipe)
    return recipe


def _capability(topology: Topology) -> tuple[int, int]:
    major, _, minor = topology.device.compute_capability.partition(".")
    return int(major), int(minor)


def _check_engine(at: str, architecture: Architecture, topology: Topology, engine: tuple[str, str]) -> None:
    version, use = engine
    missing = ""
    if use == "library":
        missing = "a quantised checkpoint of an engine that a trainer sends weights to (served: quantization: fp8)"
    elif version != _RELEASE:
        missing = f"quantised weights of vLLM {version} (served: {_RELEASE})"
    elif "AMD" in topology.device.name:
        missing = f"quantised weights on {topology.device.name}"
    elif architecture.family not in FAMILIES:
        missing = f"quantised weights of {architecture.family} (served: {', '.join(FAMILIES)})"
    if missing:
        raise NotYet(Problem(at, f"not yet: {missing}"))


def _refitted(scenario: Scenario, given: Generation, architecture: Architecture, topology: Topology,
              version: str) -> Recipe:
    """Recipe of an engine to which NeMo RL sends weights in 16 bits: fp8 or mxfp8, which its own loader makes."""
    at, asked = scenario.where("generation", "quantization"), given.quantization
    source = _NEMO_RL.get(asked)
    if source:
        raise NotYet(Problem(at, f"not yet: quantization: {asked} of an engine that a trainer sends weights to (NeMo "
                             f"RL {source}; served: fp8, mxfp8)"))
    if asked not in _REFIT:
        raise IllegalLayout(Problem(at, f"quantization: {asked} of an engine that a trainer sends weights to; fp8 is "
                                    "possible", "NeMo RL 7ea279ab models/generation/vllm/vllm_backend.py:201 "
                                    "_load_hf_weights: weights arrive in 16 bits, and are quantised to fp8 alone"))
    if version == _RELEASE:
        raise IllegalLayout(Problem(at, f"quantization: {asked} under NeMo RL with vLLM {version}", "NeMo RL 7ea279ab "
                                    "models/generation/vllm/quantization/fp8.py:24 imports fused_moe.routed_experts, "
                                    "which vLLM 0.12.0 does not have"))
    if architecture.family not in REFITTED:
        raise NotYet(Problem(at, f"not yet: weights of {architecture.family} that a trainer sends in {asked} (served: "
                             f"{', '.join(REFITTED)})"))
    if asked == "mxfp8" and topology.device.architecture < _MX_LEAST:
        raise IllegalLayout(Problem(at, f"quantization: mxfp8: device compute capability {_MX_LEAST}.0 or higher "
                                    f"required, the topology has {topology.device.compute_capability}", _MX_GPUS))
    try:
        recipe = refitted(Gpu(_capability(topology), int(topology.device.num_sms)), tuple(given.unquantized),
                          in_exponents=asked == "mxfp8")
    except Unserved as error:
        raise NotYet(Problem(at, f"not yet: {error}")) from None
    _check_layers(at, given.tp, architecture, recipe)
    return recipe


def _read(at: str, asked: str, found: Mapping[str, Any] | None, gpu: Gpu) -> Recipe:
    """Recipe of the key over a checkpoint in 16 bits, or of the checkpoint, which the key may name."""
    if asked == "mxfp8":
        raise IllegalLayout(Problem(at, "quantization: mxfp8, which this version does not know",
                                    "vLLM 0.12.0 layers/quantization/__init__.py QuantizationMethods"))
    try:
        if found is None:
            if asked not in _ONLINE:
                raise IllegalLayout(Problem(at, f"quantization: {asked} of a model whose configuration has no "
                                            "quantization_config", "vLLM 0.12.0 model_loader/weight_utils.py "
                                            "get_quant_config: Cannot find the config file"))
            return online(asked, gpu)
        recipe = of_checkpoint(found, gpu)
    except Unserved as error:
        raise NotYet(Problem(at, f"not yet: quantised weights: {error}")) from None
    except ValueError as error:
        raise InputError(Problem(at, f"model configuration: quantization_config: {error}")) from None
    if asked not in ("auto", recipe.name):
        raise IllegalLayout(Problem(at, f"quantization: {asked} over a checkpoint of {recipe.name}", f"{_DECIDES}: "
                                    "Quantization method specified in the model config does not match"))
    return recipe


def _check_layers(at: str, tp: int, architecture: Architecture, recipe: Recipe) -> None:
    """Refuses layers that the method does not take on this many ranks; one line for each kind of layer."""
    illegal: dict[tuple[str, str], None] = {}
    try:
        for path, kind in layers_of(architecture):
            for module, linear in modules(path, kind, tp):
                method = recipe.method_of(module, linear)
                if method is not None:
                    illegal[method.refusal(linear)] = None
    except ValueError as error:
        rule = "vLLM 0.12.0 quant_utils.py is_layer_skipped: All shards of fused layers to have the same precision"
        raise IllegalLayout(Problem(at, f"quantization_config: {error}", rule)) from None
    problems = [(message, rule) for message, rule in illegal if message] + misread(architecture, recipe)
    if any(rule for _, rule in problems):
        raise IllegalLayout(Problem(at, f"{recipe.name}: {message}", rule) for message, rule in problems if rule)
    if problems:
        raise NotYet(Problem(at, f"not yet: {recipe.name}: {message}") for message, _ in problems)
    if recipe.name == "bitsandbytes" and any(isinstance(branch.block, Attention) and branch.block.num_kv_heads < tp
                                             for _, kind in architecture.parts for branch in kind.branches):
        raise NotYet(Problem(at, "not yet: bitsandbytes with KV heads that are replicated over tp"))


def misread(architecture: Architecture, recipe: Recipe) -> list[tuple[str, str]]:
    """Pairs (message, vLLM's rule) for files of bitsandbytes that hold a layer in another format than vLLM makes it.

    Experts are always made in 4 bits; a router of Mixtral is always made in 16 (`models/mixtral.py`).
    """
    found: dict[tuple[str, str], None] = {}
    if not isinstance(recipe.method, FourBits) or not recipe.method.from_file:
        return []
    for path, kind in layers_of(architecture):
        for module in [module for module, linear in modules(path, kind, 1) if linear.is_experts]:
            router = f"{module.rpartition('.')[0]}.gate"
            if recipe.skipped.names(module):
                found["experts that llm_int8_skip_modules names, whose files hold 16 bits",
                      "vLLM 0.12.0 bitsandbytes.py get_quant_method: FusedMoE is quantised, listed or not"] = None
            if kind.family == "mixtral" and not recipe.skipped.names(router):
                found["a router that llm_int8_skip_modules does not name, whose files hold 4 bits",
                      "vLLM 0.12.0 models/mixtral.py: the gate has no quant_config; linear.py ReplicatedLinear "
                      "weight_loader: Tried to load weights of size"] = None
    return list(found)


def assumptions_of(recipe: Recipe | None, version: str) -> list[Assumption]:
    """Assumptions about quantised weights of an engine of that version; none for 16 bits."""
    if recipe is None:
        return []
    if version != _RELEASE:
        blocks = "32 inputs, the head too" if recipe.name == "mxfp8" else "128 x 128"
        return [Assumption(what="generation.quantization", value=f"{recipe.name} in blocks of {blocks}, quantised in "
                           "every refit", kind="derived", source="NeMo RL 7ea279ab "
                           "models/generation/vllm/quantization/fp8.py init_fp8, load_weights; first and last layers "
                           "not left out (num_first_layers_in_bf16)")]
    rows = [Assumption(what="generation.quantization", value=recipe.name, kind="derived", source=f"{_DECIDES}; see "
                       "simcore/vllm/quantized/recipe.py: linears and experts, all else in 16 bits")]
    if recipe.unpacks:
        rows.append(Assumption(what="layers in 4 bits", value="made whole in 16 bits in every pass: one matrix after "
                               "the other, of experts all of a layer", kind="derived",
                               source="vLLM 0.12.0 bitsandbytes.py _apply_bnb_4bit, _apply_4bit_dequnt"))
    if recipe.name in ("awq_marlin", "gptq_marlin"):
        rows.append(Assumption(what="layers that are packed", value="all linears of layers, routers not unless listed",
                               kind="assumed", source="vLLM 0.12.0 reads them from the files (maybe_update_config)"))
    if recipe.name == "fp8":
        rows.append(Assumption(what="kernels of fp8", value="without DeepGEMM and FlashInfer", kind="assumed",
                               source="vLLM 0.12.0 fp8.py get_fp8_moe_backend: DeepGEMM is not in its wheel, and "
                               "FlashInfer's kernels for experts must be asked for"))
    return rows
