"""Layout of Megatron's arguments: degrees, pipeline stages, number of GPUs and batches."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

from simcore.recipes.answers import Answer
from simcore.recipes.megatron.fields import Setting, Writer
from simcore.recipes.megatron.hybrid import pattern_of

__all__ = ["COUNTED", "DEGREES", "SPLITS", "expect_counts", "write_batches", "write_mesh", "write_pipeline"]

DEGREES: Final = {"pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
                   "tp": "tensor_model_parallel_size"}
SPLITS: Final = {
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "microbatch_group_size_per_vp_stage": "microbatch_group_size_per_vp_stage"}
_BALANCED_WITH_CAPACITY: Final = frozenset({"aux_loss", "seq_aux_loss", "global_aux_loss", "none"})
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
        writer.use(copies, why=_instances(copies))
        return
    product = 1
    for setting in degrees.values():
        product *= setting.value or 1
    shown = " x ".join(f"{axis} {setting.value or 1}" for axis, setting in degrees.items())
    if product < 1 or gpus.value % product:
        writer.draft.fail(gpus.where, f"{gpus.value} GPUs are no multiple of {shown} = {product} (world size is not "
                                      "divisible by total_model_size: megatron/training/arguments.py)")
        writer.use(copies, why=_instances(copies))
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


def expect_counts(writer: Writer) -> None:
    """Records counts of which there is at least one, and that are 0 or less (megatron/training/arguments.py)."""
    names = (*DEGREES.values(), "expert_model_parallel_size", "expert_tensor_parallel_size", "micro_batch_size",
             "global_batch_size", "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank",
             "make_vocab_size_divisible_by")
    for one in map(writer.fields.integer, names):
        if one.taken and one.value is not None and one.value < 1:
            writer.draft.fail(one.taken[0].where, f"{one.taken[0].key}: expected at least 1, got {one.value}")


def write_batches(writer: Writer) -> None:
    """Writes batch sizes and length; a batch that ramps up is read at its end."""
    fields = writer.fields
    length, old = fields.integer("seq_length"), fields.integer("encoder_seq_length")
    if (answer := writer.draft.answers.seq_len) is not None:
        writer.draft.answered("training.seq_len", answer)
        writer.idle(f"{answer.where} says how long sequences are", length, old)
    elif length.value or old.value:
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
        _write_schedule(writer, schedule, batch, length if length.value else old)
    elif batch.value:
        _write_batch(writer, batch, micro)
    writer.use(schedule)
    _leave_changes(writer)
    _write_capacity(writer)
    forced = fields.flag("moe_router_force_load_balancing")
    if forced.value and "routing" not in writer.draft.values["training"]:
        writer.write("training.routing", "balanced", forced)
    else:
        writer.use(forced, why="training.routing says it" if forced.value else "off, as without it")


def _write_capacity(writer: Writer) -> None:
    """Writes how many tokens an expert takes, and whether its rows are padded to that."""
    fields = writer.fields
    capacity, pads = fields.number("moe_expert_capacity_factor"), fields.flag("moe_pad_expert_input_to_capacity")
    if not capacity.value or capacity.value < 0:
        writer.idle("there is no capacity of experts", capacity, pads)
        return
    _expect_balancing(writer)
    writer.write("training.routing.capacity_factor", capacity.value, capacity)
    if pads.value:
        writer.use(pads, why="training.routing.capacity_factor says it")
    else:
        writer.write("training.routing.pad", False, pads)  # noqa: FBT003


def _expect_balancing(writer: Writer) -> None:
    """Records a problem if experts with a capacity are balanced in a way that Megatron refuses beside it."""
    balancing = writer.fields.any("moe_router_load_balancing_type")
    kinds = balancing.value if isinstance(balancing.value, (list, tuple)) else (balancing.value,)
    writer.unmodelled("routing is taken as balanced, whatever the router aims at", balancing)
    if not set(kinds) <= _BALANCED_WITH_CAPACITY and balancing.taken:
        writer.draft.fail(balancing.taken[0].where, "moe_expert_capacity_factor only works with aux_loss, "
                          f"seq_aux_loss, global_aux_loss or none balancing, not {', '.join(map(str, kinds))} (core "
                          "transformer/transformer_config.py, __post_init__)")


def _leave_changes(writer: Writer) -> None:
    """Lists what changes the batch during a run: a ramp, which main ignores, and what cuts it."""
    ramp, drops = writer.fields.any("rampup_batch_size"), writer.fields.flag("decrease_batch_size_if_needed")
    if writer.draft.values.get("framework_version"):
        writer.idle("main only warns of it: the batch is constant (core/num_microbatches_calculator.py:100)", ramp)
    else:
        writer.unmodelled("core 0.16.1 raises the batch to --global-batch-size: the answer is for that one", ramp)
    writer.use(drops, why="the batch is a multiple of the ranks' microbatches as it is")


def _write_batch(writer: Writer, batch: Setting[int | None], micro: Setting[int | None]) -> None:
    """Writes the batch, which --decrease-batch-size-if-needed cuts to whole microbatches of all ranks.

    Megatron-LM d98e8a64 core/num_microbatches_calculator.py:366.
    """
    drops, mesh = writer.fields.flag("decrease_batch_size_if_needed"), writer.draft.values.get("mesh", {})
    size, unit = batch.value or 0, (micro.value or 1) * mesh.get("dp_shard", 1) * mesh.get("dp_replicate", 1)
    if drops.value and unit <= size and size % unit:
        writer.write("training.global_batch_size", size // unit * unit, batch, drops,
                     rule=f"{size} cut to a multiple of {unit}, microbatch x data-parallel ranks")
    else:
        writer.write("training.global_batch_size", size, batch)


def _write_schedule(writer: Writer, schedule: Setting[str | None], batch: Setting[int | None],
                    length: Setting[int | None]) -> None:
    """Batches by thresholds in tokens, such as "0:768 250B:1536": the one of the run's last step counts.

    Megatron-LM main training/global_vars.py:153 hands the sequence length to the calculator, so thresholds are tokens;
    training/training.py:2155 counts the steps of a run by its samples.
    """
    writer.use(batch, schedule)
    if batch.value:
        writer.draft.fail(batch.taken[0].where, "cannot specify both --step-batch-size-schedule and "
                                                "--global-batch-size (megatron/training/arguments.py)")
        return
    answers = writer.draft.answers
    tokens = answers.seq_len.value if answers.seq_len else length.value or answers.settings.get("training.seq_len", 1)
    try:
        steps = _steps(str(schedule.value), tokens)
    except ValueError as error:
        writer.draft.fail(schedule.taken[0].where, f"--step-batch-size-schedule: {error}")
        return
    samples, iterations = writer.fields.integer("train_samples"), writer.fields.integer("train_iters")
    if not samples.value and not iterations.value:
        writer.use(samples, iterations)
        writer.write("training.global_batch_size", steps[-1].batch, schedule,
                     rule="the last batch of the schedule: the recipe does not say how long the run is")
        return
    reached, before = _last_step(steps, iterations.value, samples.value)
    later = [one for one in steps if one.start > before]
    rule = f"the batch of the run's last step: {before:,} samples ({before * tokens:,} tokens) before it"
    if later:
        rule += f", of the {later[0].threshold:,} tokens from which batches are {later[0].batch:,}"
    writer.write("training.global_batch_size", reached.batch, schedule, samples, iterations, length, rule=rule)


class _Step(NamedTuple):
    """A step of a schedule: `batch` from `threshold` tokens on, which are `start` samples."""

    start: int
    batch: int
    threshold: int


def _steps(text: str, length: int) -> list[_Step]:
    """Steps of a schedule for sequences of `length` tokens, by their thresholds. ValueError as upstream refuses.

    Megatron-LM main core/num_microbatches_calculator.py:480-560.
    """
    steps = list[_Step]()
    for entry in text.replace(",", " ").split():
        threshold, _, batch = entry.partition(":")
        try:
            tokens, samples = _count(threshold), _count(batch)
        except (ValueError, OverflowError):
            raise ValueError(f"expected pairs such as 0:768 250B:1536, got {entry!r}") from None
        steps.append(_Step(tokens // length, samples, tokens))
    steps.sort(key=lambda one: one.start)
    if not steps or steps[0].start != 0:
        raise ValueError("the first threshold must be 0")
    if any(one.start == other.start for one, other in pairwise(steps)):
        raise ValueError(f"thresholds must grow by a sample at least, which has {length:,} tokens")
    if any(one.batch <= 0 for one in steps):
        raise ValueError("a batch must be positive")
    return steps


def _count(text: str) -> int:
    """Number with a suffix: K, M, B and T are thousands, millions, billions and trillions."""
    word = text.strip().upper()
    power = " KMBT".index(word[-1]) if word[-1:] in ("K", "M", "B", "T") else 0
    return int(float(word.rstrip("KMBT") if power else word) * 1000**power)


def _last_step(steps: list[_Step], iterations: int | None, samples: int | None) -> tuple[_Step, int]:
    """Step of the schedule at a run's last iteration, and samples before it. `samples`: read without `iterations`."""
    consumed = left = 0
    for step, end in zip(steps, [*(one.start for one in steps[1:]), None], strict=True):
        count = None if end is None else max(0, -(-(end - consumed) // step.batch))
        left = iterations if iterations else max(1, -(-((samples or 0) - consumed) // step.batch))
        if count is None or left <= count:
            return step, consumed + (left - 1) * step.batch
        consumed += count * step.batch
        iterations = iterations - count if iterations else iterations
    raise AssertionError("the last step has no end")


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


def _instances(copies: Setting[int | None]) -> str:
    return ("1, as without it" if (copies.value or 1) == 1 else
            "over how many groups of data-parallel ranks the optimizer is repeated; --gpus says how many there are")
