"""Recipes of LLaMA-Factory become the scenarios that a person would write; what cannot be followed is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcore.errors import RankscopeError
from simcore.inputs.document import parse_document
from simcore.inputs.loading import read
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import Opener, import_recipe
from simcore.simulate import check

FULL: dict[str, Any] = {
    "model_name_or_path": "llama-3.2-3b", "stage": "sft", "do_train": True, "finetuning_type": "full", "bf16": True,
    "cutoff_len": 1000, "per_device_train_batch_size": 2, "template": "llama3"}
LORA: dict[str, Any] = {**FULL, "finetuning_type": "lora"}
ZERO: dict[str, Any] = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"},
                        "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}


def fsdp(version: int, **more: Any) -> dict[str, Any]:
    return {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 8,
            "fsdp_config": {"fsdp_version": version, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", **more}}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(*values: dict[str, Any], gpus: int | None = 8, **answers: Any) -> Imported:
    """Import of a recipe and the files beside it, each by its values."""
    names = ["mine.yaml", *(f"beside{index}.yaml" for index in range(1, len(values)))]
    for name, one in zip(names, values, strict=True):
        Path(name).write_text(json.dumps(one, indent=1), "utf-8")
    return import_recipe(names, Answers.of_options(gpus, topology="dgx-h100", **answers))


def scenario(*values: dict[str, Any], gpus: int | None = 8) -> Scenario:
    found = imported(*values, gpus=gpus)
    found.expect_complete()
    result = parse_scenario(found.document())
    assert check(result).problems == ()
    return result


def written(text: str) -> Scenario:
    return parse_scenario(parse_document(text, "mine.yaml"))


def refusal(*values: dict[str, Any], gpus: int | None = 8) -> str:
    with pytest.raises(RankscopeError) as raised:
        imported(*values, gpus=gpus).expect_complete()
    return str(raised.value)


def test_a_recipe_is_the_scenario_that_a_person_would_write() -> None:
    assert scenario({**FULL, "gradient_accumulation_steps": 3}) == written("""\
name: mine
model: llama-3.2-3b
framework: ddp
topology: dgx-h100
mesh: {dp_replicate: 8}
training:
  seq_len: 1000
  micro_batch_size: 2
  global_batch_size: 48
  recompute: full
  precision: {params: fp32, compute: bf16}
  optimizer: {implementation: fused}
environment: {expandable_segments: true}
""")


def test_adapters_are_in_fp32_beside_a_base_in_bf16_under_autocast() -> None:
    assert scenario({**LORA, "lora_rank": 4}, gpus=1) == written("""\
name: mine
model: llama-3.2-3b
framework: ddp
topology: dgx-h100
training:
  method: lora
  seq_len: 1000
  micro_batch_size: 2
  recompute: full
  precision: {params: bf16, compute: bf16}
  lora:
    {rank: 4, alpha: 8, dtype: fp32,
     target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]}
  optimizer: {implementation: fused}
framework_options: {autocast: true}
""")


def test_deepspeed_casts_adapters_too() -> None:
    found = scenario({**LORA, "deepspeed": "beside1.yaml"}, ZERO)
    assert (found.framework, found.mesh.dp_shard, found.training.precision.compute) == ("zero2", 8, "bf16")
    assert (found.training.precision.params, found.training.lora.dtype) == ("auto", "auto")


def test_everything_is_fp32_under_fsdp_2() -> None:
    """accelerate 1.11.0 `utils/fsdp_utils.py` fsdp2_prepare_model casts a frozen base as well."""
    found = scenario(LORA, fsdp(2), gpus=None)
    assert (found.framework, found.training.precision.params, found.training.lora.dtype) == ("fsdp2", "fp32", "fp32")
    assert found.training.precision.grad_reduce == "bf16"
    assert not found.environment.expandable_segments


@pytest.mark.parametrize("version", [1, 2])
def test_what_trains_in_full_is_fp32_under_fsdp(version: int) -> None:
    found = scenario(FULL, fsdp(version), gpus=None)
    assert (found.framework, found.mesh.dp_shard, found.training.precision.compute) == (f"fsdp{version}", 8, "bf16")
    assert found.training.precision.params == ("auto" if version == 1 else "fp32")  # fsdp1 has no other by default


def test_a_packed_base_under_fsdp_1_is_stored_in_the_format_of_products() -> None:
    launch = {**fsdp(1, fsdp_use_orig_params=True), "mixed_precision": "no"}
    found = scenario({**LORA, "quantization_bit": 4, "bf16": None, "pure_bf16": True}, launch, gpus=None)
    assert (found.training.method, found.training.precision.params) == ("qlora", "bf16")
    assert found.training.quantization.double_quant
    assert found.framework_options["bnb_4bit_quant_storage"] == "bfloat16"


def test_adapters_under_fsdp_1_are_units_that_are_upcast() -> None:
    """transformers 5.8 takes PEFT's wrap policy, and accelerate 1.11 upcasts units that train alone."""
    found = scenario({**LORA, "quantization_bit": 4}, fsdp(1), gpus=None)
    assert found.framework_options["wrap"] == "layers_adapters"
    assert (found.training.precision.params, found.training.lora.dtype) == ("bf16", "fp32")


def test_pure_bf16_casts_nothing_and_has_no_autocast() -> None:
    plain = scenario({**FULL, "bf16": None, "pure_bf16": True}).training.precision
    assert (plain.params, plain.compute) == ("bf16", "bf16")
    adapters = scenario({**LORA, "bf16": None, "pure_bf16": True})
    assert (adapters.training.lora.dtype, "autocast" in adapters.framework_options) == ("bf16", False)


def test_without_mixed_precision_what_trains_is_multiplied_in_fp32() -> None:
    found = scenario({**FULL, "bf16": False}).training.precision
    assert (found.params, found.compute) == ("fp32", "fp32")


@pytest.mark.parametrize(("changed", "length"), [
    ({}, 1000), ({"cutoff_len": 1001}, 1008), ({"cutoff_len": None}, 2048),
    ({"packing": True, "cutoff_len": 1001}, 1008),
    ({"neat_packing": True, "flash_attn": "fa2", "per_device_train_batch_size": 1}, 999),
    ({"stage": "pt", "cutoff_len": 1001}, 1001), ({"stage": "pt", "packing": True, "cutoff_len": 1001}, 1000),
    ({"stage": "pt", "packing": False, "cutoff_len": 1001}, 1001),
])
def test_rows_are_as_long_as_their_collator_makes_them(changed: dict[str, Any], length: int) -> None:
    """`packing: true` takes one token (`hparams/data_args.py`); rows of `sft` are padded in steps of 8."""
    found = imported({**FULL, **changed}).values["training"]
    assert found["seq_len"] == length
    assert ("lengths" in found) is ("neat_packing" in changed)


def test_the_answer_goes_before_the_length_of_the_recipe() -> None:
    assert imported({**FULL, "packing": True}, seq_len=300).values["training"]["seq_len"] == 300


def test_layers_are_recomputed_unless_it_is_switched_off() -> None:
    off = {**FULL, "disable_gradient_checkpointing": True}
    assert scenario(off).training.recompute == "none"
    assert scenario({**off, "gradient_checkpointing": True}).training.recompute == "full"
    assert imported(FULL).origins["training", "recompute"].kind == "default"


def test_inputs_of_recomputed_layers_may_wait_on_the_host() -> None:
    assert scenario({**FULL, "use_unsloth_gc": True}).training.offload.activations == "host"


@pytest.mark.parametrize(("values", "gpus", "expandable"), [
    ((FULL,), 1, False), ((FULL,), 2, True), (({**FULL, "deepspeed": "beside1.yaml"}, ZERO), 1, True),
    ((FULL, {"distributed_type": "MULTI_GPU", "mixed_precision": "bf16", "num_processes": 8}), 8, False)])
def test_its_launcher_sets_expandable_segments(values: tuple[dict[str, Any], ...], gpus: int, *,
                                               expandable: bool) -> None:
    assert scenario(*values, gpus=gpus).environment.expandable_segments is expandable


@pytest.mark.parametrize(("line", "expandable"), [
    ("NPROC_PER_NODE=8 llamafactory-cli train mine.yaml", True),
    ("OPTIM_TORCH=0 NPROC_PER_NODE=8 llamafactory-cli train mine.yaml", False),
    ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False\n"
     "NPROC_PER_NODE=8 llamafactory-cli train mine.yaml", True),
    ("export OPTIM_TORCH=0 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
     "NPROC_PER_NODE=8 llamafactory-cli train mine.yaml", True),
    ("torchrun --nproc-per-node 8 src/train.py mine.yaml", False)])
def test_a_launch_command_says_who_sets_the_variables(line: str, *, expandable: bool) -> None:
    Path("mine.yaml").write_text(json.dumps(FULL, indent=1), "utf-8")
    Path("run.sh").write_text(line, "utf-8")
    found = import_recipe(["mine.yaml", "run.sh"], Answers.of_options(topology="dgx-h100"))
    assert found.values["mesh"] == {"dp_replicate": 8}
    assert found.values.get("environment", {}).get("expandable_segments", False) is expandable


def launched(recipe: dict[str, Any], line: str, gpus: int | None = None) -> Imported:
    Path("mine.yaml").write_text(json.dumps(recipe, indent=1), "utf-8")
    Path("run.sh").write_text(line, "utf-8")
    return import_recipe(["mine.yaml", "run.sh"], Answers.of_options(gpus, topology="dgx-h100"))


@pytest.mark.parametrize("name", ["USE_V1", "USE_MCA", "USE_MEGATRON_BRIDGE", "USE_KT"])
def test_variables_that_choose_another_program_are_refused(name: str) -> None:
    """ff6d4d12 `cli.py`, `launcher.py`, `hparams/parser.py`."""
    line = "NPROC_PER_NODE=8 llamafactory-cli train mine.yaml"
    assert f"not yet: {name}: " in str(launched(FULL, f"export {name}=1\n{line}").wrong[0])
    assert launched(FULL, f"export {name}=0\n{line}").wrong == ()


def test_rays_workers_are_the_ranks_where_the_script_asks_for_ray() -> None:
    """`launcher.py` starts no torchrun then, which would make segments expandable."""
    recipe = {**FULL, "ray_num_workers": 4}
    found = launched(recipe, "USE_RAY=1 llamafactory-cli train mine.yaml")
    assert found.values["mesh"] == {"dp_replicate": 4}
    assert "environment" not in found.values
    assert "Ray starts 4 ranks" in str(launched(recipe, "USE_RAY=1 llamafactory-cli train mine.yaml", 8).wrong[0])
    assert launched(recipe, "NPROC_PER_NODE=8 llamafactory-cli train mine.yaml").values["mesh"] == {"dp_replicate": 8}


SCRIPT = """\
MODEL=llama-3.2-3b
FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train \\
    --model_name_or_path ${MODEL} --stage sft --do_train --finetuning_type full --template llama3 \\
    --cutoff_len 1000 --per_device_train_batch_size 2 --bf16
"""


def test_arguments_of_a_script_are_a_recipe() -> None:
    Path("mine.sh").write_text(SCRIPT, "utf-8")
    found = import_recipe(["mine.sh"], Answers.of_options(topology="dgx-h100"))
    found.expect_complete()
    assert parse_scenario(found.document()) == scenario(FULL)
    assert str(found.origins["training", "micro_batch_size"]) == "mine.sh:4 per_device_train_batch_size"
    [entry] = read(["mine.sh"], (), Opener(Answers.of_options(topology="dgx-h100"), bool))
    assert entry.problems == ()
    with pytest.raises(RankscopeError, match="starts 8 processes, which contradicts --gpus 4"):
        import_recipe(["mine.sh"], Answers.of_options(4))
    Path("mine.sh").write_text(SCRIPT.replace("--template", "--templates"), "utf-8")
    assert "unknown key 'templates'" in str(import_recipe(["mine.sh"], Answers.of_options(8)).unknown)


def test_liger_comes_with_its_own_loss() -> None:
    found = imported({**LORA, "enable_liger_kernel": True})
    assert found.values["framework_options"]["use_liger_kernel"] is True
    assert "loss" not in found.values["training"]


def test_workers_of_ray_have_a_gpu_each() -> None:
    assert imported({**FULL, "ray_num_workers": 4}, gpus=None).values["mesh"] == {"dp_replicate": 4}
    assert imported({**FULL, "ray_num_workers": 4}, gpus=2).values["mesh"] == {"dp_replicate": 2}


def test_gemma_2_asks_for_its_attention() -> None:
    found = imported({**FULL, "model_name_or_path": "gemma-2-9b"})
    assert [question.key for question in found.questions] == ["framework_options.attn_implementation"]


def test_targets_are_a_text_with_commas() -> None:
    found = imported({**LORA, "lora_target": "q_proj, v_proj"}).values["training"]["lora"]
    assert found["target_modules"] == ["q_proj", "v_proj"]
    assert scenario({**LORA, "lora_target": "q_proj"}).training.lora.target_modules == ("q_proj",)


@pytest.mark.parametrize("hostile", [
    {"cutoff_len": -5}, {"cutoff_len": "1e400"}, {"stage": ["sft"]}, {"lora_rank": "${oc.env:HOME}"}, {"lora_rank": -1},
    {"ray_num_workers": 0}, {"per_device_train_batch_size": 0}, {"model_name_or_path": "$(touch canary)"},
    {"lora_target": {"a": 1}}, {"deepspeed": "../../etc/passwd"}, {"quantization_bit": 3}, {"flash_attn": 7}])
def test_a_hostile_value_is_told_at_its_line(hostile: dict[str, Any]) -> None:
    with pytest.raises(RankscopeError) as raised:
        scenario({**LORA, **hostile}, gpus=None if "ray_num_workers" in hostile else 8)
    assert "mine.yaml:" in str(raised.value)
    assert not Path("canary").exists()


@pytest.mark.parametrize(("values", "told"), [
    (({**FULL, "stage": "ppo"},), "not yet: stage: training by ppo"),
    (({**FULL, "finetuning_type": "freeze", "freeze_trainable_layers": 2},), "a few layers that are trained"),
    (({**FULL, "do_train": None, "export_dir": "out"},), "not yet: export_dir: merging and export"),
    (({**FULL, "do_train": None},), "do_train is missing"),
    (({**FULL, "tensor_model_parallel_size": 2, "sequence_parallel": True},), "layers of Megatron (USE_MCA"),
    (({**FULL, "use_unsloth": True},), "layers of Unsloth"),
    (({**FULL, "upcast_layernorm": True},), "norms in fp32"),
    (({**FULL, "neat_packing": True},), "a mask of all pairs"),
    (({**FULL, "neat_packing": True, "flash_attn": "fa2"},), "per_device_train_batch_size must be 1"),
    (({**FULL, "quantization_bit": 4},), "a base with adapters that is trained in full"),
    (({**LORA, "quantization_bit": 4, "quantization_method": "hqq"},), "a base that hqq packs"),
    (({**LORA, "quantization_bit": 4}, fsdp(2)), "all of which accelerate 1.11.0 casts to fp32"),
    (({**LORA, "quantization_bit": 4, "bf16": None}, {**fsdp(1), "mixed_precision": "no"}),
     "adapters in fp32 under FSDP 1"),
    (({**LORA, "quantization_bit": 8}, fsdp(1)), "quantization_bit 8 under fsdp1 is an error of LLaMA-Factory"),
    (({**LORA, "additional_target": "embed_tokens"},), "not yet: additional_target"),
    (({**LORA, "adapter_name_or_path": "old"},), "adapters that are read from files"),
    (({**FULL, "pure_bf16": True, "bf16": None, "deepspeed": "beside1.yaml"}, ZERO), "parameters of 16 bits"),
    (({**FULL, "deepspeed": "zero.json"},), "DeepSpeed's configuration stands in another file, 'zero.json': name it"),
    (({**FULL, "fsdp": "full_shard auto_wrap", "fsdp_config": {"version": 2}},), "FSDP by the trainer's own"),
    ((FULL, fsdp(2, fsdp_activation_checkpointing=True)), "beside LLaMA-Factory's own checkpoints"),
    (({**FULL, "use_badam": True},), "not yet: use_badam: BAdam"),
])
def test_what_cannot_be_followed_is_refused_by_name(values: tuple[dict[str, Any], ...], told: str) -> None:
    assert told in refusal(*values)


def test_keys_of_inference_are_not_told_as_files() -> None:
    """LLaMA-Factory ff6d4d12 hparams/model_args.py."""
    told = {one.key: one.why for one in imported({**FULL, "use_kv_cache": True, "infer_dtype": "auto"}).left}
    assert told["use_kv_cache"] == told["infer_dtype"] == "inference and export: not part of a step"


def test_the_switch_of_older_releases_for_flash_attention_is_followed() -> None:
    """Releases up to 0.6: llmtuner/hparams/model_args.py flash_attn: bool."""
    on, off = imported({**FULL, "flash_attn": True}), imported({**FULL, "flash_attn": False})
    assert on.values["framework_options"]["attn_implementation"] == "flash_attention_2"
    assert "attn_implementation" not in off.values.get("framework_options", {})


def test_keys_of_older_releases_are_told() -> None:
    found = imported({**FULL, "ray_run_name": "a", "ray_storage_path": "b", "resources_per_worker": {"GPU": 1},
                      "visual_inputs": True})
    assert not found.unknown


def test_adafactor_by_its_name_and_by_the_flag_of_transformers_4() -> None:
    """transformers 4.57 training_args.py __post_init__: the flag goes before `optim`."""
    for said in ({"optim": "adafactor"}, {"optim": "sgd", "adafactor": True}):
        assert scenario({**FULL, **said}).training.optimizer.name == "adafactor"
