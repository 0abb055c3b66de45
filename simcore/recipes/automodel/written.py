"""Writes scenarios as Automodel recipes: the rows that the reader has, and the keys that depend on one another.

Data are a stand-in: mock samples of the scenario's length, as Automodel's own benchmarks have them.
"""

from __future__ import annotations

from typing import Final

from simcore.operators.automodel.sparse import SPARSE
from simcore.recipes.automodel.config_fields import FORMAT_ROW
from simcore.recipes.automodel.dion import DION_MUON, write_dion
from simcore.recipes.automodel.distributed import EXPERT_ROWS, PARAM_DTYPE, PIPELINE_ROWS, STRATEGY_ROWS
from simcore.recipes.automodel.flash_adam import FLASH_ADAM, write_flash_adam
from simcore.recipes.automodel.float8 import write_float8
from simcore.recipes.automodel.fused_adam import FUSED_ADAM, write_fused_adam
from simcore.recipes.automodel.model import ATTENTION_ROW, BACKEND_ROWS, BY_BACKEND, REST_ROWS
from simcore.recipes.automodel.optimizer import LOSSES, OPTIMIZER_ROWS, OPTIMIZERS
from simcore.recipes.automodel.peft import ADAPTER_ROWS, EFFICIENT_ROW, PACKED_ROWS
from simcore.recipes.automodel.predictions import DEPTH, REPEATS, has_module
from simcore.recipes.automodel.te_fp8 import write_te_fp8
from simcore.recipes.huggingface.written import hugging_face_name, write_given
from simcore.recipes.outline import Outline
from simcore.recipes.recipe_writer import Job, RecipeWriter
from simcore.recipes.rows import key_of, write_rows

__all__ = ["WRITER"]

_CLASS: Final = "nemo_automodel.NeMoAutoModelForCausalLM"
_NAME: Final = "pretrained_model_name_or_path"
_MOCK: Final = "nemo_automodel.components.datasets.llm.mock_iterable_dataset.MockIterableDataset"
_LOSS_FILES: Final = {"MaskedCrossEntropy": "masked_ce", "FusedLinearCrossEntropy": "linear_ce",
                      "TEParallelCrossEntropy": "te_parallel_ce", "ChunkedCrossEntropy": "chunked_ce"}
"""Modules of the losses (0.7.0 `components/loss`)."""
_PEFT: Final = "nemo_automodel.components._peft.lora.PeftConfig"


def _write(outline: Outline) -> None:
    if outline.settled.graph.architecture.has_tower:
        outline.refuse("model", "a recipe of a model with a vision tower (FinetuneRecipeForVLM), whose data are images")
        return
    outline.put("recipe", "TrainFinetuneRecipeForNextTokenPrediction")
    _write_batches(outline)
    _write_model(outline)
    _write_method(outline)
    _write_distributed(outline)
    _write_loss(outline)
    _write_lengths(outline)
    _write_optimizer(outline)


def _write_model(outline: Outline) -> None:
    scenario, fields = outline.settled.scenario, outline.settled.fields
    name, family = hugging_face_name(scenario.model_name), str(fields.get("model_type", ""))
    own = outline.value("implementation") == "automodel"
    overrides = {} if isinstance(scenario.model, str) else dict(scenario.model.overrides)
    further, repeats = (overrides.pop(key, None) for key in ("mtp_num_layers", "mtp_use_repeated_layer"))
    if overrides.pop("mtp_hybrid_override_pattern", "*E") != "*E":
        outline.refuse("model", "another pattern of multi-token prediction than attention and experts")
    if own and (further or has_module(scenario.model_name)):
        outline.put(DEPTH, further or 0, "model")
    if further and repeats:
        outline.put(REPEATS, True, "model")  # noqa: FBT003
    if not overrides:
        outline.put("model._target_", f"{_CLASS}.from_pretrained")
        outline.put(f"model.{_NAME}", name, "model")
    else:
        outline.put("model._target_", f"{_CLASS}.from_config")
        outline.put("model.config._target_", "transformers.AutoConfig.from_pretrained")
        outline.put(f"model.config.{_NAME}", name, "model")
        for key, value in overrides.items():
            outline.put(f"model.config.{key}", value, "model")
    if outline.given("implementation") == "hf":
        outline.put("model.force_hf", True, "implementation")  # noqa: FBT003
    elif own:
        outline.as_without("implementation")
    if not (own and family in BY_BACKEND):
        write_given(outline, "model.attn_implementation", "framework_options.attn_implementation")
    if own:
        write_rows(outline, (ATTENTION_ROW, *BACKEND_ROWS))
    if own and family in SPARSE:
        write_te_fp8(outline)
    else:
        write_float8(outline)
    write_rows(outline, (FORMAT_ROW, *REST_ROWS))


def _write_method(outline: Outline) -> None:
    method = outline.value("training.method")
    if method == "full":
        outline.put("recipe", outline.puts["recipe"].value, "training.method")
        return
    outline.put("peft._target_", _PEFT, "training.method")
    outline.put("peft.dim", outline.value("training.lora.rank"), "training.lora.rank")
    outline.put("peft.alpha", _whole(outline.value("training.lora.alpha")), "training.lora.alpha")
    targets = outline.given("training.lora.target_modules")
    if targets == ["*"] and outline.given("training.lora.expert_adapters") == "none":
        outline.put("peft.match_all_linear", True, "training.lora.target_modules", "training.lora.expert_adapters")  # noqa: FBT003
    rows = [row for row in (*ADAPTER_ROWS, EFFICIENT_ROW) if key_of(row) not in outline.puts
            and not (targets == ["*"] and key_of(row) == "peft.target_modules")]
    write_rows(outline, rows)
    if method == "qlora":
        outline.put("quantization.load_in_4bit", True, "training.method")  # noqa: FBT003
        write_rows(outline, PACKED_ROWS)


def _write_distributed(outline: Outline) -> None:
    outline.put("distributed.strategy", "fsdp2", "framework")
    outline.put("distributed.dp_size", "none", "mesh.dp_shard")
    for axis in ("tp", "cp", "pp", "ep"):
        size = outline.value(f"mesh.{axis}")
        if size > 1 or outline.given(f"mesh.{axis}"):
            outline.put(f"distributed.{axis}_size", size, f"mesh.{axis}")
    write_given(outline, "distributed.dp_replicate_size", "mesh.dp_replicate")
    if outline.value("mesh.tp") > 1:
        write_given(outline, "distributed.sequence_parallel", "training.sequence_parallel")
    recompute = outline.given("training.recompute")
    if recompute in ("none", "full"):
        outline.put("distributed.activation_checkpointing", recompute == "full", "training.recompute")
    narrow = outline.value("training.precision.compute") == "fp8"  # which the model's backend says
    write_rows(outline, [row for row in STRATEGY_ROWS if not (narrow and key_of(row) == PARAM_DTYPE)])
    if outline.value("mesh.ep") > 1:
        write_rows(outline, EXPERT_ROWS)
    if outline.value("mesh.pp") > 1:
        schedule = outline.value("training.pipeline.schedule")
        outline.put("distributed.pipeline.pp_schedule", schedule, "training.pipeline.schedule")
        outline.put("distributed.pipeline.pp_microbatch_size", outline.value("training.micro_batch_size"),
                    "training.micro_batch_size")
        write_rows(outline, PIPELINE_ROWS)


def _write_batches(outline: Outline) -> None:
    """With pipeline stages the local batch is that of all microbatches of the step, which is one schedule."""
    whole, micro = outline.value("training.global_batch_size"), outline.value("training.micro_batch_size")
    replicas = outline.value("mesh.dp_shard") * outline.value("mesh.dp_replicate")
    stages = outline.value("mesh.pp") > 1
    outline.put("step_scheduler.global_batch_size", whole, "training.global_batch_size")
    local = whole // replicas if stages else micro
    outline.put("step_scheduler.local_batch_size", local, "training.micro_batch_size")
    outline.put("step_scheduler.max_steps", 10, stand_in=True)


def _write_lengths(outline: Outline) -> None:
    _write_samples(outline)
    length, kind = outline.value("training.seq_len"), outline.value("training.lengths")
    if kind == "packed":
        outline.put("packed_sequence.packed_sequence_size", length, "training.seq_len", "training.lengths")
    elif kind == "fixed":
        outline.put("dataset.seq_len", length, "training.seq_len", "training.lengths")
    else:
        outline.refuse("training.lengths", "lengths that are drawn: data have them, not the recipe")


def _write_samples(outline: Outline) -> None:
    """Mock samples, which come in whole local batches (`components/datasets/llm/mock_iterable_dataset.py`)."""
    local = outline.puts["step_scheduler.local_batch_size"].value
    for key, value in (("dataset._target_", _MOCK), ("dataset.batch_size", local),
                       ("dataset.vocab_size", outline.settled.graph.architecture.vocab),
                       ("dataloader._target_", "torch.utils.data.DataLoader"), ("dataloader.batch_size", None),
                       ("checkpoint.enabled", False)):
        outline.put(key, value, stand_in=True, beside="dataset" * key.startswith("dataloader."))


def _write_loss(outline: Outline) -> None:
    loss, key = outline.value("training.loss"), "training.loss"
    name = next((name for name, meaning in LOSSES.items() if meaning == loss), None)
    if loss == "masked":
        outline.put("loss_fn._target_", _loss("MaskedCrossEntropy"), key)
        outline.put("loss_fn.fp32_upcast", False, key)  # noqa: FBT003
    elif name is not None:
        outline.put("loss_fn._target_", _loss(name), key)


def _loss(name: str) -> str:
    return f"nemo_automodel.components.loss.{_LOSS_FILES[name]}.{name}"


def _write_optimizer(outline: Outline) -> None:
    name = outline.value("training.optimizer.name")
    runs = outline.given("training.optimizer.implementation")
    target = DION_MUON if runs == "dion" else next(
        (target for target, meaning in OPTIMIZERS.items() if meaning == name), None)
    if target is None:
        outline.refuse("training.optimizer.name", f"{name}: read are {', '.join(OPTIMIZERS)}")
        return
    by_flash = {meaning: path for path, meaning in FLASH_ADAM.items()}
    chosen = {"te": FUSED_ADAM, "flashoptim": by_flash.get(name, target)}.get(runs, target)
    outline.put("optimizer._target_", chosen, "training.optimizer.name")
    outline.put("optimizer.lr", 0.0001, stand_in=True)
    if runs == "flashoptim":
        write_flash_adam(outline)
        return
    if runs == "dion":
        write_dion(outline)
        return
    if runs == "te":
        write_fused_adam(outline, "optimizer.")
        return
    if name == "lion":
        outline.said.add("training.optimizer.implementation")  # a loop, in any case
    elif runs in ("foreach", "for_loop"):
        outline.put("optimizer.foreach", runs == "foreach", "training.optimizer.implementation")
    elif runs == "fused":
        outline.put("optimizer.fused", True, "training.optimizer.implementation")  # noqa: FBT003
    write_rows(outline, [row for row in OPTIMIZER_ROWS if key_of(row) != "optimizer._target_"])


def _whole(value: float) -> float:
    return int(value) if float(value).is_integer() else value


def _launch(job: Job) -> str:
    if job.nodes == 1:
        return f"automodel {job.file} --nproc-per-node {job.gpus_per_node}\n"
    return job.torchrun(f"-m nemo_automodel.cli.app {job.file}")


WRITER: Final = RecipeWriter(".yaml", ("automodel",), _write, _launch, patches=True)
