"""The block `distributed` of an Automodel recipe: degrees of parallelism, FSDP2 and pipeline stages."""

from __future__ import annotations

from math import ceil, prod
from typing import Final

from simcore.errors import InputError
from simcore.hardware.topology import load_topology, topology_names
from simcore.models.config import Config
from simcore.models.graph import model_config
from simcore.models.registry import family_of
from simcore.recipes.answers import Answer
from simcore.recipes.automodel.config_fields import DTYPES
from simcore.recipes.automodel.float8 import asks_float8
from simcore.recipes.automodel.te_fp8 import is_fp8
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, On, Row, Says, Unmodelled, key_of, read_rows
from simcore.recipes.world import share_out

__all__ = ["EXPERT_ROWS", "PARAM_DTYPE", "PIPELINE_ROWS", "STRATEGY_ROWS", "read_distributed"]

_CHECKPOINTS: Final = "recipes/_dist_utils.py parse_distributed_section"
_SIZES: Final = "components/distributed/mesh_utils.py _infer_dp_size"
_STAGES: Final = "components/distributed/pipelining/functional.py calculate_virtual_stages"
PARAM_DTYPE: Final = "distributed.mp_policy.param_dtype"
_OF_OTHERS: Final = (
    "megatron_fsdp_unit_modules", "zero_dp_strategy", "init_fsdp_with_meta_device", "grad_reduce_in_fp32",
    "preserve_fp32_weights", "overlap_grad_reduce", "overlap_param_gather", "check_for_nan_in_grad",
    "report_nan_in_param_grad", "average_in_collective", "disable_bucketing", "calculate_per_token_loss",
    "keep_fp8_transpose_cache", "nccl_ub", "fsdp_double_buffer", "broadcast_buffers", "find_unused_parameters",
    "static_graph", "bucket_cap_mb", "gradient_as_bucket_view")
"""Fields of the strategies megatron_fsdp and ddp (0.7.0 `components/distributed/config.py`)."""
STRATEGY_ROWS: Final[tuple[Row, ...]] = (
    *(Says(f"distributed.{name}", f"framework_options.{name}", "flag")
      for name in ("reshard_after_forward", "defer_fsdp_grad_sync", "enable_fsdp2_prefetch", "enable_compile")),
    *(Says(f"distributed.{name}", f"framework_options.{name}")
      for name in ("fsdp2_forward_prefetch_depth", "fsdp2_backward_prefetch_depth")),
    Says(PARAM_DTYPE, "training.precision.compute", "text", DTYPES, what="products in"),
    Says("distributed.mp_policy.reduce_dtype", "training.precision.grad_reduce", "text", DTYPES, what="reductions in"),
    Off("distributed.enable_async_tensor_parallel", "asynchronous tensor parallelism"),
    Says("distributed.activation_checkpointing_scope", "", "text", idle={"all": "the default"}, words={None: None},
         what="checkpoints of some parts alone:"),
    Unmodelled(("distributed.mp_policy.output_dtype",), "outputs are counted in the format of products: in float32 the "
               "stream between two layers and the logits take 2 bytes an element more", ("bfloat16", "torch.bfloat16")),
    Idle(("distributed.mp_policy._target_",), "the class of the block"),
    On("distributed.mp_policy.cast_forward_inputs", "layers whose inputs keep their format"),
    Idle(("distributed.multimodal", "distributed.multimodal.*"), "towers beside text"),
    Idle(("distributed.patch_is_packed_sequence",), "how masks of packs are made"),
)
_BESIDE_FP8: Final = (Says(PARAM_DTYPE, "", "text", {None: None}, dict.fromkeys(
    ("bf16", "bfloat16", "torch.bfloat16"), "what other operators than products in 8 bits compute in"),
    what="products in 8 bits beside operators in"),)
EXPERT_ROWS: Final = (
    Says("distributed.moe.reshard_after_forward", "framework_options.moe.reshard_after_forward", "flag"),
    Idle(("distributed.moe._target_",), "the class of the block"),
    Idle(("distributed.moe.wrap_outer_model",), "the outer model has no parameter of its own"),
)
PIPELINE_ROWS: Final = (
    Says("distributed.pipeline.pp_recv_buffer_pool", "framework_options.pp_recv_buffer_pool", "flag"),
    Says("distributed.pipeline.pp_recv_buffer_pool_slack", "framework_options.pp_recv_buffer_pool_slack"),
    Idle(("distributed.pipeline.pp_seq_len",), "shapes are those of the batch"),
    Idle(("distributed.pipeline.dtype",), "what stages send has the format in which layers compute"),
    Idle(("distributed.pipeline.scale_grads_in_schedule", "distributed.pipeline.patch_*",
          "distributed.pipeline._target_"), "how stages are made and gradients scaled"),
)


def read_distributed(reader: Reader, draft: Draft) -> None:
    """Reads the block `distributed`: the mesh, FSDP2's options, recomputation and pipeline."""
    strategy = reader.text("distributed.strategy")
    if strategy is not None and strategy.value.lower() != "fsdp2":
        draft.refuse(strategy, f"strategy {strategy.value} of Automodel", always=True)
        draft.idle(reader.matching(*(f"distributed.{name}" for name in _OF_OTHERS)), "of a strategy that is refused")
    else:
        draft.use(strategy, why="FSDP2 shards, as is simulated")
    draft.idle(reader.take("distributed._target_"), "strategy decides; the loader strips it")
    sizes = {name: reader.integer(f"distributed.{name}_size") for name in ("pp", "cp", "tp", "ep")}
    for name, size in sizes.items():
        draft.put(f"mesh.{name}", size)
    _read_data_parallel(reader, draft, sizes)
    narrow = is_fp8(draft) or asks_float8(reader)
    read_rows(reader, draft, [row for row in STRATEGY_ROWS if not (narrow and key_of(row) == PARAM_DTYPE)])
    read_rows(reader, draft, _BESIDE_FP8 if narrow else ())
    draft.refuse(reader.take("distributed.offload_policy"), "offload of Automodel's recipes")
    draft.refuse(reader.take("distributed.autocast_dtype"), "products under torch.autocast")
    draft.refuse(reader.take("distributed.pipeline.module_fqns_per_model_part"), "modules of stages of one's own")
    draft.refuse(reader.take("distributed.pipeline.pp_schedule_csv"), "a schedule of one's own")
    draft.refuse(reader.take("distributed.tp_plan"), "a plan of tensor parallelism of one's own")
    older = reader.flag("distributed.use_hf_tp_plan")
    if older is not None and older.value and sizes["tp"] is not None and sizes["tp"].value > 1:
        draft.refuse(older, "transformers' own plan of matrices, by a key of releases up to 0.2")
    else:
        draft.idle(older, "nothing is cut by it: tp is 1, or it is off")
    sequences = reader.flag("distributed.sequence_parallel")
    if sizes["tp"] is not None and sizes["tp"].value > 1:
        draft.put("training.sequence_parallel", sequences)
    else:
        draft.idle(sequences, "tp is 1")
    _read_experts(reader, draft, sizes["ep"])
    _read_recompute(reader, draft)
    _read_pipeline(reader, draft, sizes["pp"])


def _read_data_parallel(reader: Reader, draft: Draft, sizes: dict[str, Taken[int] | None]) -> None:
    """Data-parallel degree: stated, or GPUs over the other degrees; what is replicated is a part of it."""
    stated, copies = reader.integer("distributed.dp_size"), reader.integer("distributed.dp_replicate_size")
    others = {f"{name}_size": sizes[name] for name in ("pp", "cp", "tp")}
    gpus = draft.answers.gpus
    if stated is not None and stated.value > 0:
        product = stated.value * prod(one.value for one in others.values() if one)
        if gpus is not None and gpus.value != product:
            draft.fail(gpus.where, f"the recipe is for {product} GPUs: {stated.key} is {stated.value} ({stated.where})")
        gpus = Answer(product, stated.where)
    gpus = gpus or _gpus_of_nodes(reader, draft)
    if copies is not None:
        others["dp_replicate_size"] = copies
        draft.put("mesh.dp_replicate", copies)
    if gpus is None:
        nodes = reader.look("ci.nodes")
        hint = f" (Automodel's own tests use {nodes} {'node' if nodes == 1 else 'nodes'})" if nodes else ""
        draft.ask("mesh.dp_shard", "--gpus N", f"number of GPUs{hint}", stated)
        return
    draft.use(stated, why="the number of GPUs follows from it")
    share_out(draft, gpus, others, "mesh.dp_shard", "GPUs over the other degrees", _SIZES)


def _gpus_of_nodes(reader: Reader, draft: Draft) -> Answer | None:
    """GPUs of the nodes that a benchmark, or Automodel's own test of the recipe, says it takes; None if none does.

    Several nodes of a benchmark are whole machines (`docs/performance-summary.mdx`: 8 GPUs for each of `num_nodes`);
    one may be a part of a machine, there a single GPU.
    """
    nodes, each = reader.integer("ci.nodes"), reader.integer("ci.nproc_per_node")
    of_benchmark, machine = reader.integer("benchmark.num_nodes"), draft.values.get("topology")
    if each is not None:
        draft.use(nodes, each, why="the number of GPUs follows from it")
        draft.idle(of_benchmark, f"{each.key} says how many GPUs there are")
        return Answer((nodes.value if nodes else 1) * each.value, each.where)
    draft.idle(nodes, "Automodel's own tests, on GPUs of a number that is not said")
    if of_benchmark is None or of_benchmark.value == 1 or machine not in topology_names():
        draft.idle(of_benchmark, "how many GPUs of its nodes are used is not said")
        return None
    draft.use(of_benchmark, why="the number of GPUs follows from it")
    return Answer(of_benchmark.value * load_topology(machine).gpus_per_host, of_benchmark.where)


def _read_experts(reader: Reader, draft: Draft, ep: Taken[int] | None) -> None:
    draft.refuse(reader.take("distributed.moe.mp_policy"), "a policy of mixed precision for experts alone")
    if ep is None or ep.value == 1 or not reader.is_mapping("distributed.moe"):
        draft.idle(reader.matching("distributed.moe", "distributed.moe.*"),
                   "the parallelizer of experts runs with ep above 1 only")
        return
    saved = reader.flag("distributed.moe.ignore_router_for_ac")
    if saved is not None and not saved.value:
        draft.unmodelled(saved, "a checkpoint is counted as keeping the router's product and top-k (0.7.0's default)")
    else:
        draft.idle(saved, "the default")
    draft.refuse(reader.take("distributed.moe.lm_head_precision"), "a head in another format than the model")
    read_rows(reader, draft, EXPERT_ROWS)


def _read_recompute(reader: Reader, draft: Draft) -> None:
    asked = reader.take("distributed.activation_checkpointing")
    if asked is None:
        draft.release_default("distributed.activation_checkpointing", "false", "Automodel 0.7.0", _CHECKPOINTS)
        return
    if str(asked.value).lower() in ("true", "false", "full"):
        draft.put("training.recompute", asked, "none" if str(asked.value).lower() == "false" else "full")
    else:
        draft.refuse(asked, f"activation checkpointing {asked.value}")


def _read_pipeline(reader: Reader, draft: Draft, pp: Taken[int] | None) -> None:
    if pp is None or pp.value == 1:
        draft.idle(reader.matching("distributed.pipeline.*"), "pp_size is 1")
        return
    schedule = reader.text("distributed.pipeline.pp_schedule")
    word = schedule.value.lower() if schedule else ""
    if word == "interleaved1f1b":
        draft.put("training.pipeline.schedule", schedule, "1f1b")
        _read_virtual_stages(reader, draft, pp)
    elif schedule is not None and word not in ("1f1b", "gpipe"):
        draft.refuse(schedule, f"schedule {schedule.value} under automodel")
    else:
        draft.put("training.pipeline.schedule", schedule, word)
    draft.idle(reader.matching("distributed.pipeline.layers_per_stage",
                               "distributed.pipeline.round_virtual_stages_to_pp_multiple"),
               "a rank has one stage" if word in ("", "1f1b", "gpipe") else "settings of a schedule that is refused")
    read_rows(reader, draft, PIPELINE_ROWS)


def _read_virtual_stages(reader: Reader, draft: Draft, pp: Taken[int]) -> None:
    """Stages of a rank: layers over `layers_per_stage`, rounded to a multiple of the ranks; two if nothing is said."""
    each = reader.integer("distributed.pipeline.layers_per_stage")
    rounded = reader.text("distributed.pipeline.round_virtual_stages_to_pp_multiple")
    layers = _num_layers(draft)
    if each is None:
        draft.default("training.pipeline.virtual_stages", 2, "Automodel 0.7.0", _STAGES)
        draft.idle(rounded, "stages are as many as ranks twice over")
        return
    if layers == 0:  # of a model that is not known
        draft.idle([each, *([rounded] if rounded else [])], "the model is not known")
        return
    count = ceil(layers / each.value)
    rest = count % pp.value
    if rest and rounded is not None:
        count += pp.value - rest if rounded.value == "up" else -rest
    if count % pp.value or count < 2 * pp.value:
        draft.fail(each.where, f"{each.key} {each.value} makes {count} stages of {layers} layers, which "
                               f"interleaved1f1b on {pp.value} ranks does not take ({_STAGES})")
        draft.use(each, rounded)
        return
    draft.infer("training.pipeline.virtual_stages", count // pp.value, f"{layers} layers / {each.value} on a stage"
                f"{', rounded ' + rounded.value if rounded and rest else ''}, over {pp.value} ranks",
                each, pp, rounded, source=_STAGES)


def _num_layers(draft: Draft) -> int:
    """Layers of the model that the draft names; 0 if it is not known."""
    model = draft.answers.settings.get("model", draft.values.get("model", ""))
    config, changed = (model.get("config", ""), model.get("overrides", {})) if isinstance(model, dict) else (model, {})
    try:
        fields = model_config(str(config), changed, "")
        return len(family_of(str(fields["model_type"])).architecture(Config(fields, "")).pattern)
    except InputError:
        return 0
