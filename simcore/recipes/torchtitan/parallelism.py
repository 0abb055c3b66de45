"""The block `parallelism` of a job configuration: mesh, FSDP, tensor, context and expert parallelism, stages."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Final

from simcore.errors import Problem
from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Says, read_rows
from simcore.recipes.torchtitan.model import has_experts
from simcore.recipes.world import share_out

__all__ = ["DEGREES", "FSDP_ROW", "SCHEDULES", "read_parallelism"]

_WORLD: Final = "distributed/parallel_dims.py _validate"
_STAGES: Final = "distributed/pipeline_parallel.py pipeline_llm"
DEGREES: Final[Mapping[str, str]] = {
    "pp": "pipeline_parallel_degree", "dp_replicate": "data_parallel_replicate_degree",
    "cp": "context_parallel_degree", "tp": "tensor_parallel_degree"}
_SHARDS: Final = "parallelism.data_parallel_shard_degree"
SCHEDULES: Final[Mapping[str, tuple[str, bool]]] = {
    "1f1b": ("1f1b", False), "gpipe": ("gpipe", False), "interleaved1f1b": ("1f1b", True),
    "interleavedzerobubble": ("interleaved_zb", True), "zbvzerobubble": ("zbv", True)}
"""Schedule of the scenario, and whether a rank has several stages, by the name in lower case
(torch 2.13 `distributed/pipelining/schedules.py` get_schedule_class)."""
FSDP_ROW: Final = Says("parallelism.fsdp_reshard_after_forward", "framework_options.reshard_after_forward", "text",
                    {"always": True, "never": False}, {"default": "the default"}, "resharding")
_CONTEXT: Final = (
    Says("parallelism.context_parallel_rotate_method", "", "text",
         idle={"allgather": "the default"}, words={None: None}, what="keys and values exchanged by"),
    Says("parallelism.context_parallel_load_balancer", "", "text",
         idle={"headtail": "the default"}, words={None: None}, what="sequences balanced by"),
)
ASYNCHRONOUS: Final = ("torchtitan 0.2.2 enables no symmetric memory for the tp group (not since 69cf2075, again from "
                       "73759474 on), without which torch 2.13 fuses no product with its collective")
_OF_STAGES: Final = tuple(f"parallelism.{name}" for name in (
    "pipeline_parallel_schedule", "pipeline_parallel_schedule_csv", "pipeline_parallel_layers_per_stage",
    "pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers",
    "pipeline_parallel_microbatch_size", "pipeline_parallel_expert_parallel_overlap", "module_fqns_per_model_part"))
_ONE_STAGE: Final = Idle(_OF_STAGES, "pipeline_parallel_degree is 1")


def read_parallelism(reader: Reader, draft: Draft, sizes: Mapping[str, Any], *, compiled: bool) -> None:
    """Reads the block. `sizes`: the model's; `compiled`: torch.compile runs on the blocks."""
    degrees = {name: reader.integer(f"parallelism.{key}") for name, key in DEGREES.items()}
    for name, degree in degrees.items():
        draft.put(f"mesh.{name}", degree)
    _read_shards(reader, draft, degrees)
    read_rows(reader, draft, [FSDP_ROW])
    _read_tensor(reader, draft, degrees["tp"], raises=not compiled and sizes.get("model_type") != "qwen3")
    if _is_one(degrees["cp"]):
        read_rows(reader, draft, [Idle(tuple(one.key for one in _CONTEXT), "context_parallel_degree is 1")])
    else:
        read_rows(reader, draft, _CONTEXT)
        balancer = _CONTEXT[1].key
        if balancer.rpartition(".")[2] in reader.names("parallelism") and not reader.has(balancer):
            where = reader.document.where(tuple(balancer.split(".")))
            draft.refused.append(Problem(where, f"not yet: {balancer}: null: sequences that are not balanced"))
    _read_experts(reader, draft, sizes)
    if _is_one(degrees["pp"]):
        read_rows(reader, draft, [_ONE_STAGE])
    else:
        _read_stages(reader, draft, degrees["pp"], sizes)


def _is_one(degree: Taken[int] | None) -> bool:
    return degree is None or degree.value == 1


def _read_shards(reader: Reader, draft: Draft, degrees: Mapping[str, Taken[int] | None]) -> None:
    """Writes the sharding degree: as stated, or GPUs over the other degrees (-1)."""
    stated, gpus = reader.integer(_SHARDS), draft.answers.gpus
    others = {DEGREES[name]: one for name, one in degrees.items()}
    if stated is not None and stated.value > 0:
        product = stated.value * prod(one.value for one in degrees.values() if one)
        if gpus is not None and gpus.value != product:
            draft.fail(gpus.where, f"the recipe is for {product} GPUs: {stated.key} is {stated.value} ({stated.where})")
        gpus = Answer(product, stated.where)
        draft.put("mesh.dp_shard", stated)
        return
    if stated is not None and stated.value != -1:
        draft.use(stated)
        draft.fail(stated.where, f"{stated.key} {stated.value}: expected -1, or 1 and more (torchtitan 0.2.2 "
                                 "distributed/parallel_dims.py _validate)")
        return
    if gpus is None:
        draft.ask("mesh.dp_shard", "--gpus N", "number of GPUs", stated)
        return
    draft.use(stated, why="the number of GPUs over the other degrees")
    share_out(draft, gpus, others, "mesh.dp_shard", "GPUs over the other degrees", _WORLD)


def _read_tensor(reader: Reader, draft: Draft, tp: Taken[int] | None, *, raises: bool) -> None:
    """Reads keys of tensor parallelism. `raises`: this model stops where products are to run beside collectives."""
    whole = reader.flag("parallelism.disable_loss_parallel")
    overlapped = reader.flag("parallelism.enable_async_tensor_parallel")
    if _is_one(tp):
        draft.idle([one for one in (whole, overlapped) if one], "tensor_parallel_degree is 1")
        return
    draft.put("framework_options.disable_loss_parallel", whole)
    if overlapped is not None and overlapped.value and raises:
        draft.fail(overlapped.where, f"{overlapped.key}: Async TP requires 'model' in --compile.components and "
                   "--compile.enable (torchtitan 0.2.2 distributed/tensor_parallel.py maybe_enable_async_tp)")
    draft.idle(overlapped, ASYNCHRONOUS if overlapped and overlapped.value else "the default")


def _read_experts(reader: Reader, draft: Draft, sizes: Mapping[str, Any]) -> None:
    ep, etp = (reader.integer(f"parallelism.{name}_degree") for name in ("expert_parallel", "expert_tensor_parallel"))
    backend = reader.text("parallelism.expert_parallel_comm_backend")
    if not has_experts(sizes):
        draft.idle([one for one in (ep, etp, backend) if one], "the model has no experts")
        return
    draft.put("mesh.ep", ep)
    if _is_one(ep):
        draft.idle([one for one in (etp, backend) if one], "expert_parallel_degree is 1")
        return
    draft.put("mesh.etp", etp)
    if backend is not None and backend.value != "standard":
        draft.refuse(backend, f"exchange of tokens by {backend.value}")
    else:
        draft.idle(backend, "the default")


# ---- stages ---------------------------------------------------------------------------------------------------------
def _read_stages(reader: Reader, draft: Draft, pp: Taken[int] | None, sizes: Mapping[str, Any]) -> None:
    schedule = reader.text("parallelism.pipeline_parallel_schedule")
    word = schedule.value if schedule else "1F1B"
    known = SCHEDULES.get(word.lower())
    if known is None:
        draft.refuse(schedule, f"schedule {word}")
        known = ("1f1b", False)
    else:
        draft.put("training.pipeline.schedule", schedule, known[0])
    _read_layers(reader, draft, pp, sizes, word, several=known[1])
    read_rows(reader, draft, [Idle(("parallelism.pipeline_parallel_expert_parallel_overlap",),
                                   "of the schedule DualPipeV alone")])
    listed, parts = (reader.take(f"parallelism.{name}") for name in ("pipeline_parallel_schedule_csv",
                                                                     "module_fqns_per_model_part"))
    if listed is not None and listed.value:
        draft.refuse(listed, "a schedule that is read from a file")
    else:
        draft.idle(listed, "none")
    draft.refuse(parts, "stages that are listed module by module")


def _read_layers(reader: Reader, draft: Draft, pp: Taken[int] | None, sizes: Mapping[str, Any], schedule: str, *,
                 several: bool) -> None:
    """Writes the stages of a rank: 2 where the schedule has several, or as many as `layers_per_stage` gives."""
    for name in ("first", "last"):
        fewer = reader.integer(f"parallelism.pipeline_parallel_{name}_stage_less_layers")
        if fewer is not None and fewer.value != 1:
            draft.refuse(fewer, f"a {name} stage that counts as {fewer.value} layers more than it has")
        else:
            draft.idle(fewer, "the default")
    layers = reader.integer("parallelism.pipeline_parallel_layers_per_stage")
    ranks, count = pp.value if pp else 1, sizes.get("num_hidden_layers")
    if layers is None or layers.value < 1 or not isinstance(count, int) or ranks < 1:
        if several:
            draft.default("training.pipeline.virtual_stages", 2, "torchtitan 0.2.2", _STAGES)
        draft.use(layers, why="layers of a model that is not known, or as many as by default")
        return
    stages = -(-(count + 2) // layers.value)
    if stages % ranks or (stages // ranks > 1) != several:
        draft.fail(layers.where, f"{layers.key} {layers.value} makes {stages} stages of {count} layers, which "
                                 f"{schedule} on {ranks} ranks does not take ({_STAGES})")
        draft.use(layers)
    else:
        draft.infer("training.pipeline.virtual_stages", stages // ranks, f"({count} layers + 2) / {layers.value}, "
                    f"rounded up, over {ranks} ranks", layers, pp, source=_STAGES)
