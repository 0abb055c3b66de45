"""Fp8 and NVFP4 under Megatron-Core: recipes, layers in bf16, and the copies of weights that outlast a pass.

Core 0.16.1 `transformer/transformer_config.py` (fp8 related, fp4 related), `fp8_utils.py`, `fp4_utils.py`,
`extensions/transformer_engine.py`; TransformerEngine 2.18. [Note: fp8 linears] in
`operators/megatron/ops/fp8.py` has what layers keep.

[Note: fp8 weights]
With bf16 parameters each linear casts its weight in the step's first microbatch into a workspace that it never frees;
with disable_parameter_transpose_cache every forward casts anew. With fp8_param_gather the parameter is the row-wise
data, a byte an element in a separate buffer, which data-parallel ranks gather; column-wise data, where they are a copy,
stay allocated too (`post_all_gather_processing`). Where the layer-wise optimizer deals whole parameters, each is a
tensor of its own; what its owner updates, in fp32, is quantised into it, sent in 16 bits, and quantised by those that
get it (main `optimizer/layer_wise_optimizer.py`, _allgather_helper; `optimizer.py`, _multi_tensor_copy_this_to_that
without an overflow buffer; TransformerEngine `pytorch/tensor`, QuantizedTensor, copy_). Delayed scaling keeps a history
of maxima for the five tensors of each GEMM. The output head in mxfp8 (main `models/gpt/gpt_model.py`:272, core
`extensions/transformer_engine.py`, TELMHeadColumnParallelLinear) is built outside of fp8_model_init: its parameter
stays in 16 bits, and it has a workspace in any case.

[Note: nvfp4 weights]
Core computes in fp8 or in fp4, not in both; a recipe of TransformerEngine does either for all linears of a layer, so
layers in bf16 are chosen as for fp8, by default none (Bridge `training/mixed_precision.py` bf16_with_nvfp4_mixed).
There are bf16 parameters and a lasting copy, unless fp4_param_gather (only main; Bridge v0.5.0's preset) makes the
row-wise data the parameter: half a byte an element in the gathered buffer; scales and columns are outside it (main
`distributed/param_and_grad_buffer.py`, _compute_nvfp4_packed_layout). How shards get the scales of their whole tensor
is left out. Single linears may have another recipe, or bf16 (`quant_recipe`, patterns of their names, the first match
counts); in layers that stay in bf16 they have none (override_nonquantized_autocast is off).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from simcore.frameworks.common.te_recipes import check_device, scaling_of, weight_copies
from simcore.frameworks.megatron.rules import whole_layout
from simcore.inputs.optimizers import OPTIMIZERS
from simcore.inputs.training import Recompute
from simcore.models.blocks import Head, LayerKind, Mtp
from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.placement.job import Draft, Job
from simcore.placement.layout import local_shape
from simcore.placement.mesh import Mesh
from simcore.recording.number_formats import RECIPES, Scaling, in_model, matched

__all__ = [
    "OPTIONS",
    "Fp8",
    "check_shapes",
    "fp8_of",
    "narrow_layers",
    "quantized",
    "with_format",
]

OPTIONS = {
    "fp8_format": ("e4m3", "hybrid"),
    "fp8_recipe": (*(recipe for recipe in RECIPES if recipe != "nvfp4"), "custom"),
    "fp8_param_gather": (True, False),
    "fp8_margin": (0, int),
    "fp8_amax_history_len": (int,),
    "fp8_amax_compute_algo": ("most_recent", "max"),
    "fp8_wgrad": (True, False),
    "fp8_dot_product_attention": (True, False),
    "fp8_multi_head_attention": (True, False),
    "fp8_output_proj": (True, False),
    "tp_only_amax_red": (True, False),
    "fp4_format": ("e2m1",),
    "fp4_recipe": ("nvfp4", "custom"),
    "fp4_param_gather": (True, False),
    "quant_recipe": (dict,),
    "first_last_layers_bf16": (True, False),
    "num_layers_at_start_in_bf16": (0, int),
    "num_layers_at_end_in_bf16": (0, int),
    "disable_parameter_transpose_cache": (True, False),
    "moe_router_padding_for_quantization": (True, False),
    "reuse_grad_buf_for_mxfp8_param_ag": (True, False),
    "keep_mtp_spec_in_bf16": (True, False),
    "TransformerEngine": ("1.11",),
}
PRESETS = {"tensorwise": (True, True), "delayed": (True, False), "blockwise": (False, False), "mxfp8": (True, False)}
"""Bridge 0.3.1 `training/mixed_precision.py`, bf16_with_*_mixed: (fp8_param_gather, first_last_layers_bf16)."""
PRESET = "Bridge 0.3.1 training/mixed_precision.py bf16_with_*_mixed"
CONFIG = "core 0.16.1 transformer/transformer_config.py"
HISTORY = 1024
"""Bridge's preset of delayed scaling: fp8_amax_history_len."""
TENSORS_OF_A_GEMM = 5
"""Input, weight and output in forward; gradients of output and input in backward (TE `pytorch/quantization.py`)."""


@dataclass(frozen=True, slots=True)
class Fp8:
    """Settings of linears that compute in fp8 or fp4, for one job.

    `scaling`: the recipe. `params`: weights are stored in that format; `cached`: if not, their copies in it outlast a
    forward or backward. `start`, `end`: number of first and last transformer layers in bf16. `history`:
    fp8_amax_history_len, 0 unless the recipe is delayed. `pads_routing`: tokens of an expert are padded.
    `further_in_bf16`: modules of multi-token prediction are in bf16. `attends`: attention is in fp8. `matchers`:
    linears with another recipe, see `number_formats.matched`. `transposes_again`: each backward makes the columns of
    frozen parameters anew. `heads`: the output head is in fp8 too, see [Note: fp8 weights].
    """

    scaling: Scaling
    params: bool
    cached: bool
    start: int
    end: int
    history: int
    pads_routing: bool
    further_in_bf16: bool = False
    attends: bool = False
    matchers: str = ""
    transposes_again: bool = False
    heads: bool = False

    @property
    def lasting(self) -> bool:
        """True if quantised weights outlast a forward or backward: as parameters, or as copies."""
        return self.params or self.cached

    @property
    def stored(self) -> str:
        """The format of quantised values: "fp4" or "fp8"."""
        return "fp4" if self.scaling.recipe == "nvfp4" else "fp8"


def fp8_of(job: Draft, options: dict[str, object]) -> Fp8 | None:
    """Returns the settings of fp8 or fp4; None if the job computes in neither.

    `options`: the framework options that the scenario sets, by name; those left out are as in Megatron-Bridge's
    presets of mixed precision. Raises IllegalLayout or NotYet for options that are refused.
    """
    _check_idle(job, options)
    if job.narrow == "fp4":
        return _fp4_of(job, options)
    if not job.narrow:
        return None
    recipe = job.auto("framework_options.fp8_recipe", str(options.get("fp8_recipe", "auto")), "tensorwise",
                      "Bridge 0.3.1 training/mixed_precision.py MixedPrecisionConfig")
    _check(job, options, recipe)
    gather, ends = PRESETS[recipe]
    params = job.flag(options, "fp8_param_gather", PRESET, default=gather)
    return _made(job, options, recipe, params=params, ends=ends)


def _fp4_of(job: Draft, options: dict[str, object]) -> Fp8:
    """[Note: nvfp4 weights]."""
    recipe = job.auto("framework_options.fp4_recipe", str(options.get("fp4_recipe", "auto")), "nvfp4",
                      "Bridge 0.3.1 training/mixed_precision.py MixedPrecisionConfig")
    _check(job, options, recipe)
    is_main = job.scenario.framework_version.startswith("main")
    params = job.flag(options, "fp4_param_gather", "Bridge v0.5.0 training/mixed_precision.py bf16_with_nvfp4_mixed, "
                      "not in 0.3.1", default=is_main)
    if params and not is_main:
        raise job.illegal("framework_options.fp4_param_gather", "core 0.16.1 has no buffers for parameters in fp4",
                          "core 0.16.1 distributed/param_and_grad_buffer.py; use framework_version: main 2026-08-22")
    return _made(job, options, recipe, params=params, ends=False)


def _made(job: Draft, options: dict[str, object], recipe: str, *, params: bool, ends: bool) -> Fp8:
    in_bf16 = job.flag(options, "first_last_layers_bf16", PRESET, default=ends)
    start, end = (int(str(options.get(f"num_layers_at_{at}_in_bf16", 1))) * in_bf16 for at in ("start", "end"))
    made = Fp8(scaling_of(job, recipe), params,
               not options.get("disable_parameter_transpose_cache"), start, end,
               int(str(options.get("fp8_amax_history_len", HISTORY))) if recipe == "delayed" else 0,
               bool(options.get("moe_router_padding_for_quantization")), bool(options.get("keep_mtp_spec_in_bf16")),
               bool(options.get("fp8_dot_product_attention")), _matchers(job, options, params=params),
               _transposes_again(job, options, recipe, params=params), bool(options.get("fp8_output_proj")))
    _check_routing(job, options)
    _check_layers(job, options, made)
    _check_params(job, options, made)
    return made


def _transposes_again(job: Job, options: dict[str, object], recipe: str, *, params: bool) -> bool:
    """True under TransformerEngine 1.8 to 1.13: the transpose of an 8-bit parameter is made by backward and dropped.

    v1.11 `pytorch/module/linear.py`, _Linear.backward: weight_fp8.transpose_2d(), which fills no cache; 1.6 and 1.7
    fill one unless disable_parameter_transpose_cache. From 2.0 on forward makes it, and the parameter keeps it.
    """
    if "TransformerEngine" not in options:
        return False
    key = "framework_options.TransformerEngine"
    if recipe != "delayed" or not params or job.scenario.training.method != "lora" or job.has_experts:
        raise job.not_yet(key, "TransformerEngine 1.11 but for adapters of dense models over frozen parameters in fp8, "
                          "by delayed scaling")
    return True


def _matchers(job: Job, options: dict[str, object], *, params: bool) -> str:
    """Linears that have a recipe of their own, by patterns of their names; upstream's file has no more in it."""
    given = options.get("quant_recipe") or {}
    assert isinstance(given, dict)
    key = "framework_options.quant_recipe"
    for name in given.values():
        job.one_of(key, str(name), ("bf16", "tensorwise", "blockwise", "mxfp8", "nvfp4"))
    if given and params:
        raise job.not_yet(key, "recipes of single linears where quantised weights are the parameters")
    return ";".join(f"{pattern}={recipe}" for pattern, recipe in given.items())


def _check_idle(job: Job, options: dict[str, object]) -> None:
    """Options of a format that nothing computes in."""
    told = {"disable_parameter_transpose_cache", "fp8_recipe" * bool(options.get("use_precision_aware_optimizer"))}
    if job.narrow == "fp4" and job.scenario.framework_version.startswith("main"):
        told.add("fp8_dot_product_attention")  # main fp4_utils.py:224 hands it on, core 0.16.1 does not
    told |= {name for name in OPTIONS if job.narrow and not name.startswith("fp8" if job.narrow == "fp4" else "fp4")}
    for name in options:
        if name in OPTIONS and name not in told:
            needed = "fp4" if name.startswith("fp4") else "fp8"
            raise job.illegal(f"framework_options.{name}", f"it needs training.precision.compute: {needed}",
                              f"{CONFIG}: {needed}_param must be used together with {needed} mode")


# ---- what is refused ------------------------------------------------------------------------------------------------
def _check(job: Job, options: dict[str, object], recipe: str) -> None:
    check_device(job, recipe)
    if recipe == "custom":
        raise job.not_yet(f"framework_options.{job.narrow}_recipe",
                          f"{job.narrow}_recipe custom: a quantizer factory is code")
    if options.get("transformer_impl") == "local":
        raise job.not_yet("framework_options.transformer_impl", f"local layers with {job.narrow} (TransformerEngine's "
                          "alone compute in it)")
    is_known = recipe in ("delayed", "tensorwise", "nvfp4") or (
        recipe == "mxfp8" and job.scenario.framework_version.startswith("main"))
    for name, idle in (("fp8_dot_product_attention", False), ("fp8_multi_head_attention", False), ("fp8_wgrad", True)):
        if options.get(name, idle) is not idle and not (name == "fp8_dot_product_attention" and is_known):
            raise job.not_yet(f"framework_options.{name}", f"{name}: {options[name]} with fp8_recipe {recipe}")
    if recipe == "delayed" and (again := {"moe_act", "layernorm"} & set(_recomputed(job))):
        raise job.illegal("training.recompute", f"{min(again)}: Delayed scaling does not support moe_act and layernorm "
                          "recompute for fp8", f"{CONFIG}:1243")


def _recomputed(job: Job) -> tuple[str, ...]:
    given = job.scenario.training.recompute
    if isinstance(given, Recompute):
        return given.modules
    return given if isinstance(given, tuple) else ()


def _check_routing(job: Job, options: dict[str, object]) -> None:
    if options.get("moe_router_padding_for_quantization") and options.get("moe_token_dispatcher_type") == "allgather":
        raise job.illegal("framework_options.moe_router_padding_for_quantization", "allgather and alltoall_seq "
                          "dispatcher does not support moe_router_padding_for_quantization.", f"{CONFIG}:1627")


def _check_layers(job: Job, options: dict[str, object], made: Fp8) -> None:
    if not (made.start or made.end):
        return
    if made.scaling.recipe == "delayed":
        raise job.illegal("framework_options.first_last_layers_bf16",
                          "Delayed scaling does not support first / last layer in BF16", f"{CONFIG}:990")
    most = job.graph.num_blocks // job.mesh.pp
    for at, count in (("start", made.start), ("end", made.end)):
        if count > most:
            raise job.illegal(f"framework_options.num_layers_at_{at}_in_bf16", f"{count} must be between 0 and number "
                              f"of layers per pipeline stage ({most})", f"{CONFIG}:999")


def _check_params(job: Job, options: dict[str, object], made: Fp8) -> None:
    if options.get("use_precision_aware_optimizer") and made.scaling.recipe == "delayed":
        raise job.not_yet("framework_options.use_precision_aware_optimizer",
                          "use_precision_aware_optimizer with fp8_recipe delayed")
    if not made.params:
        return
    if options.get("use_distributed_optimizer") is False and not _is_dealt(job, options):
        raise job.illegal(f"framework_options.{job.narrow}_param_gather", f"--{job.narrow}-param-gather only supported "
                          "with distributed optimizer", "Megatron-LM training/arguments.py")
    if made.scaling.recipe == "mxfp8" and options.get("reuse_grad_buf_for_mxfp8_param_ag") is False:
        raise job.illegal("framework_options.reuse_grad_buf_for_mxfp8_param_ag", "must be set to True when "
                          "fp8_param_gather=True and fp8_recipe='mxfp8'",
                          "Bridge 0.3.1 training/mixed_precision.py finalize")


def _is_dealt(job: Job, options: dict[str, object]) -> bool:
    """True if ranks update whole parameters, gather them in 16 bits and quantise each themselves ([Note: fp8 weights]).

    Bridge 067f987d has no check of Megatron-LM's arguments: recipes of Kimi K2 ask for it.
    """
    return OPTIMIZERS[job.scenario.training.optimizer.name].layerwise and \
        options.get("use_layer_wise_param_layout") is False


def check_shapes(job: Job, made: Fp8, graph: ModelGraph) -> None:
    """Raises IllegalLayout unless tokens and weight dimensions are multiples that the recipe requires.

    `graph`: the model after `quantized`.
    """
    rows, columns = {"mxfp8": (32, 32), "nvfp4": (16, 16)}.get(made.scaling.recipe, (8, 16))
    rule = "TransformerEngine 2.18 pytorch/utils.py assert_dim_for_fp8_exec; pytorch/tensor/{mxfp8,nvfp4}_tensor.py"
    asked = f"divisible by {rows} and the last dimension to be divisible by {columns}"
    training = job.scenario.training
    tokens = training.micro_batch_size * training.seq_len // job.mesh.cp
    parts = 1 if training.sequence_parallel is False else job.mesh.tp
    if tokens % (rows * parts):
        raise job.illegal("training.seq_len", f"{tokens} tokens over tp {parts}: {made.scaling.recipe} requires "
                          f"the product of all dimensions except the last to be {asked}", rule)
    for kind, specs in zip(graph.kinds, graph.tensors, strict=True):
        for spec in specs if kind.fp8 else ():
            if _is_te_linear(spec, kind):
                _, *shape = local_shape(spec.copies, spec.shape, whole_layout(spec), job.mesh, 0)
                if shape[0] % rows or shape[1] % columns:
                    raise job.illegal("training.precision.compute", f"{spec.name} is {shape[0]} x {shape[1]} on a "
                                      f"rank: {made.scaling.recipe} requires the first to be {asked}", rule)


# ---- the model ------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=64)
def quantized(graph: ModelGraph, mesh: Mesh, made: Fp8, *, cut: bool = False) -> ModelGraph:
    """Returns the model with its layers in fp8 or fp4 marked (all but the `start` and `end` ones), and their weights.

    Copies of weights that outlast a pass, and scales, are added as buffers. `cut`: data of rows and columns are in
    buckets that ranks share, see `megatron_fsdp/table.py`.
    """
    inner = narrow_layers(graph, made)
    if made.heads:
        inner.add(graph.head)
    parts = [(layer, replace(graph.kinds[layer.kind], fp8=layer.index in inner)) for layer in graph.layers]
    kinds = tuple(dict.fromkeys(kind for _, kind in parts))
    specs = {kind: graph.tensors[layer.kind] for layer, kind in parts}
    tensors = tuple(_specs(kind, specs[kind], mesh, made, cut=cut) for kind in kinds)
    return graph.with_kinds(kinds, tensors, [kinds.index(kind) for _, kind in parts])


def narrow_layers(graph: ModelGraph, made: Fp8 | None) -> set[int]:
    """Returns the numbers of layers that compute in fp8 or fp4; none without settings.

    Modules of multi-token prediction know no first and last (core `multi_token_prediction.py:772`).
    """
    if made is None:
        return set()
    further = {layer.index for layer in graph.layers if isinstance(graph.kinds[layer.kind].block, Mtp)}
    return set(graph.blocks[made.start:graph.num_blocks - made.end]) | (set() if made.further_in_bf16 else further)


def _specs(kind: LayerKind, specs: tuple[TensorSpec, ...], mesh: Mesh, made: Fp8, *, cut: bool) -> tuple[
        TensorSpec, ...]:
    found: list[TensorSpec] = []
    if isinstance(kind.block, Head):  # it is built outside of the context that makes parameters in 8 bits
        copied = replace(made, params=False)
        found = [copy for spec in specs if kind.fp8 for copy in _copies(spec, mesh, copied, cut=False)]
    for spec in specs:
        name = in_model(spec.name.removesuffix(".weight"), further=isinstance(kind.block, Mtp))
        own = matched(made.matchers, name) if made.matchers else ""
        is_weight = kind.fp8 and _is_te_linear(spec) and own != "bf16"
        found.append(replace(spec, stored=made.stored) if is_weight and made.params else spec)
        if is_weight:
            found += _copies(spec, mesh, replace(made, scaling=replace(made.scaling, recipe=own)) if own else made,
                             cut=cut)
        elif not cut and made.params and made.scaling.recipe == "mxfp8" and spec.is_owned and spec.trainable:
            found.append(_unused_buffer(spec))
    return tuple(found)


def _is_te_linear(spec: TensorSpec, kind: LayerKind | None = None) -> bool:
    """The output head is core's own linear, wherever it is used; in 8 bits, if `kind` is given, TransformerEngine's."""
    is_head = spec.name.endswith("output_layer.weight") and (kind is None or not isinstance(kind.block, Head))
    return spec.module in ("linear", "grouped") and spec.is_owned and not is_head


def _copies(spec: TensorSpec, mesh: Mesh, made: Fp8, *, cut: bool) -> list[TensorSpec]:
    """Returns buffers stored with one rank's part of a weight. `cut`: columns are only scales, of this whole part."""
    _, out_features, in_features = local_shape(spec.copies, spec.shape, whole_layout(spec), mesh, 0)
    data = made.scaling.data_bytes(out_features * in_features)
    rows, columns = weight_copies(made.scaling, out_features, in_features)
    sizes = {"amax_history": 4 * TENSORS_OF_A_GEMM * (1 + made.history) * bool(made.history)}
    if made.params:
        sizes["scale_inv"] = rows - data
    elif made.cached:
        sizes[made.stored] = rows
    if made.lasting and columns and not made.transposes_again:
        sizes[f"{made.stored}_columns"] = columns - cut * data
    return [TensorSpec(f"{spec.name}.{name}", (size,), ("bytes",), spec.component, "fp8", "uint8", is_buffer=True,
                       trainable=False, copies=spec.copies) for name, size in sizes.items() if size]


def _unused_buffer(spec: TensorSpec) -> TensorSpec:
    """Mxfp8 parameters are gathered through the gradient buffer; then no parameter is moved into a buffer of its own.

    The 16-bit ones have one all the same (core 0.16.1 `distributed/param_and_grad_buffer.py:790` and `:821`).
    """
    return replace(spec, name=f"{spec.name}.param_buffer", module="fp8", is_buffer=True, trainable=False)


# ---- what layers and reports are told -------------------------------------------------------------------------------
def with_format(options: MegatronOptions, made: Fp8 | None) -> MegatronOptions:
    """Returns the layers' options with those of the format added; `options` itself if `made` is None."""
    if made is None:
        return options
    return replace(options, fp8_recipe=made.scaling.recipe, fp8_transposes=made.scaling.transposes,
                   keeps_fp8_weights=made.lasting, moe_router_padding_for_quantization=made.pads_routing,
                   fp8_dot_product_attention=made.attends, quant_recipe=made.matchers,
                   transposes_weights_again=made.transposes_again)
