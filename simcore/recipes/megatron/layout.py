"""Layout of Megatron's arguments: degrees, pipeline stages, number of GPUs and batches."""

from __future__ import annotations

from typing import Any, Final

from simcore.recipes.answers import Answer
from simcore.recipes.megatron.fields import Setting, Writer
from simcore.recipes.megatron.hybrid import pattern_of

__all__ = ["COUNTED", "DEGREES", "SPLITS", "write_batches", "write_mesh", "write_pipeline"]

DEGREES: Final = {"pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
                   "tp": "tensor_model_parallel_size"}
SPLITS: Final = {
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "microbatch_group_size_per_vp_stage": "microbatch_group_size_per_vp_stage"}
COUNTED: Final = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")


def write_mesh(writer: Writer, gpus: Answer | None) -> None:
    """Writes the degrees; `gpus`: number of ranks, asked for if None.

    Data-parallel ranks are what is left of all ranks (`validate_args`); several instances of the distributed optimizer
    are replicas of a sharded group (`core/parallel_state.py`).
    """
    fields = writer.fields
    degrees = {axis: fields.integer(name) for axis, name in DEGREES.items()}
    for axis, setting in degrees.items():
        writer.write_other(f"mesh.{axis}", setting.value or 1, 1, setting)
    copies = fields.integer("num_distributed_optimizer_instances")
    _write_data(writer, gpus, degrees, copies)
    experts, ep, etp = (fields.integer("num_experts"), fields.integer("expert_model_parallel_size"),
                        fields.integer("expert_tensor_parallel_size"))
    if experts.value:
        tp = degrees["tp"]
        writer.write("mesh.ep", ep.value or 1, ep)
        writer.write("mesh.etp", etp.value or tp.value or 1, etp, *(() if etp.value else (tp,)),
                     rule="" if etp.value else "as tp, which --expert-tensor-parallel-size defaults to")
    else:
        writer.write_other("mesh.ep", ep.value or 1, 1, ep)
        writer.idle("the model has no experts", etp)
    writer.unmodelled("ranks of a pipeline lie in another order over the nodes, which changes traffic between nodes",
                      fields.flag("use_tp_pp_dp_mapping"))


def _write_data(writer: Writer, gpus: Answer | None, degrees: dict[str, Setting[int | None]],
                copies: Setting[int | None]) -> None:
    settings = writer.draft.answers.settings
    if gpus is None:
        if not {"mesh.dp_shard", "mesh.dp_replicate"} & set(settings):
            writer.draft.ask("mesh.dp_shard", "--gpus N", "number of GPUs")
        writer.use(copies, why="1, as without it")
        return
    product = 1
    for setting in degrees.values():
        product *= setting.value or 1
    shown = " x ".join(f"{axis} {setting.value or 1}" for axis, setting in degrees.items())
    if product < 1 or gpus.value % product:
        writer.draft.fail(gpus.where, f"{gpus.value} GPUs are no multiple of {shown} = {product} (world size is not "
                                      "divisible by total_model_size: megatron/training/arguments.py)")
        writer.use(copies, why="1, as without it")
        return
    data, few = gpus.value // product, max(1, copies.value or 1)
    rule = f"{gpus.value} GPUs ({gpus.where}) / ({shown})"
    taken = [one for setting in degrees.values() for one in setting.taken]
    if data % few:
        writer.draft.fail(gpus.where, f"{data} data-parallel ranks are no multiple of {few} instances of the optimizer")
        return
    if few > 1:
        writer.write("mesh.dp_replicate", few, copies)
    else:
        writer.use(copies, why="1, as without it")
    if data // few > 1:
        writer.draft.infer("mesh.dp_shard", data // few, rule, *taken)


def write_batches(writer: Writer) -> None:
    """Writes batch sizes and length; a batch that ramps up is read at its end."""
    fields = writer.fields
    length, old = fields.integer("seq_length"), fields.integer("encoder_seq_length")
    if length.value or old.value:
        writer.write("training.seq_len", length.value or old.value, length, old)
    else:
        writer.draft.ask("training.seq_len", "--seq-len N", "tokens of a sequence (--seq-length)")
    micro, batch = fields.integer("micro_batch_size"), fields.integer("global_batch_size")
    if micro.value:
        writer.write("training.micro_batch_size", micro.value, micro)
    else:
        writer.draft.ask("training.micro_batch_size", "--set training.micro_batch_size=N",
                         "sequences of a microbatch (--micro-batch-size)")
    schedule = fields.text("step_batch_size_schedule")
    if schedule.value:
        _write_schedule(writer, schedule, batch)
    elif batch.value:
        writer.write("training.global_batch_size", batch.value, batch)
    writer.unmodelled("the batch grows to --global-batch-size: the answer is for that one",
                      fields.any("rampup_batch_size"))
    capacity, pads = fields.number("moe_expert_capacity_factor"), fields.flag("moe_pad_expert_input_to_capacity")
    if capacity.value and capacity.value > 0 and pads.value:
        writer.write("training.routing.capacity_factor", capacity.value, capacity, pads)
    elif capacity.value and capacity.value > 0:
        writer.unmodelled("tokens beyond an expert's capacity are dropped: routing is taken as balanced", capacity)
        writer.use(pads, why="off, as without it")
    else:
        writer.idle("there is no capacity of experts", capacity, pads)
    forced = fields.flag("moe_router_force_load_balancing")
    if forced.value and not (capacity.value and pads.value):
        writer.write("training.routing", "balanced", forced)
    else:
        writer.use(forced, why="training.routing says it" if forced.value else "off, as without it")


def _write_schedule(writer: Writer, schedule: Setting[Any], batch: Setting[int | None]) -> None:
    """Batches by thresholds, such as "0:768 250B:1536": the last counts."""
    last = str(schedule.value).split()[-1].rpartition(":")[2]
    writer.use(batch)
    if batch.value:
        writer.draft.fail(batch.taken[0].where, "cannot specify both --step-batch-size-schedule and "
                                                "--global-batch-size (megatron/training/arguments.py)")
    elif not last.isdigit():
        writer.draft.fail(schedule.taken[0].where, "--step-batch-size-schedule: expected pairs such as 0:768 250B:1536")
    else:
        writer.write("training.global_batch_size", int(last), schedule, rule="the last batch of the schedule")
    writer.use(schedule)


def write_pipeline(writer: Writer) -> None:
    """Writes stages: chunks of each rank, layers of the first and last, or a layout."""
    fields, options = writer.fields, "framework_options."
    hybrid, pp = pattern_of(writer), fields.integer("pipeline_model_parallel_size")
    stages = pp.value or 1
    layout = fields.text("pipeline_model_parallel_layout")
    if hybrid is not None:
        pattern, setting = hybrid
        if len(pattern.segments) > 1:
            writer.write_other("training.pipeline.virtual_stages", max(1, len(pattern.segments) // stages), 1, setting,
                               rule="segments of the pattern over stages")
            writer.write("training.pipeline.layers", [len(one) for one in pattern.segments], setting,
                         rule="layers of each segment of the pattern")
    if layout.value:
        writer.write(f"{options}pipeline_model_parallel_layout", layout.value.replace("\\", ""), layout)
    for option, name in SPLITS.items():
        setting = fields.integer(name)
        writer.write_other(f"{options}{option}", setting.value, None, setting)
    for name in COUNTED:
        writer.write_other(f"{options}{name}", fields.flag(name).value, False, fields.flag(name))  # noqa: FBT003
    _write_chunks(writer, stages, is_open=hybrid is None and not layout.value)


def _write_chunks(writer: Writer, stages: int, *, is_open: bool) -> None:
    """Virtual stages by their number, or by the layers of each (`validate_args`)."""
    fields, key = writer.fields, "training.pipeline.virtual_stages"
    number, each = (fields.integer("num_virtual_stages_per_pipeline_rank"),
                    fields.integer("num_layers_per_virtual_pipeline_stage"))
    if not is_open:
        writer.use(number, each, why="the layout, or the pattern, has the stages")
    elif number.value:
        writer.write_other(key, number.value, 1, number)
        writer.use(each, why="--num-virtual-stages-per-pipeline-rank says it")
    elif each.value:
        layers = fields.integer("num_layers").value or fields.integer("encoder_num_layers").value or 0
        layers += sum(fields.flag(name).value for name in COUNTED)
        if each.value < 1 or layers % stages or layers // stages % each.value:
            writer.draft.fail(each.taken[0].where, f"{layers} layers over {stages} stages are no multiple of "
                                                   f"{each.value} layers of a virtual stage")
            writer.use(each)
        else:
            writer.write_other(key, layers // stages // each.value, 1, each,
                               rule=f"{layers} layers / ({stages} stages x {each.value})")
