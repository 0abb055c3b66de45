"""Recipes of TRL become the scenarios that a person wrote for the same trainers; what cannot be followed is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT
from simcore.errors import RankscopeError
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.simulate import check

RECIPE: dict[str, Any] = {"model_name_or_path": "llama-3.2-3b", "dtype": "bfloat16", "dataset_name": "some/answers"}
LORA: dict[str, Any] = {**RECIPE, "use_peft": True, "lora_r": 8, "lora_alpha": 8, "lora_dropout": 0}
ADAPTER: dict[str, Any] = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
FSDP2: dict[str, Any] = {
    "distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 8,
    "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}
FSDP1: dict[str, Any] = {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 8,
                         "fsdp_config": {"fsdp_version": 1, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}
ZERO: dict[str, Any] = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"},
                        "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(*values: dict[str, Any], gpus: int | None = 8, name: str = "mine") -> Imported:
    """Import of a recipe and the files beside it, each by its values."""
    for index, one in enumerate(values):
        Path(f"{name}.yaml" if not index else f"beside{index}.yaml").write_text(json.dumps(one, indent=1), "utf-8")
    paths = [f"{name}.yaml", *(f"beside{index}.yaml" for index in range(1, len(values)))]
    return import_recipe(paths, Answers.of_options(gpus, None, "dgx-h100"))


def scenario(*values: dict[str, Any], gpus: int | None = 8, name: str = "mine") -> Scenario:
    found = imported(*values, gpus=gpus, name=name)
    found.expect_complete()
    result = parse_scenario(found.document())
    assert check(result).problems == ()
    return result


def of_folder(name: str, **settings: Any) -> Scenario:
    """Scenario of `scenarios/trainers`, without its sweep."""
    path = ROOT / f"scenarios/trainers/{name}.yaml"
    document = parse_document(path.read_text(encoding="utf-8"), str(path)).with_value(("sweep",), None, "")
    for key, value in settings.items():
        document = document.with_value(tuple(key.split("__")), value, "")
    return parse_scenario(document)


def refusal(*values: dict[str, Any]) -> str:
    with pytest.raises(RankscopeError) as raised:
        imported(*values).expect_complete()
    return str(raised.value)


def without_file(config: dict[str, Any]) -> dict[str, Any]:
    return {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "num_processes": 8, "deepspeed_config": config}


@pytest.mark.parametrize(("name", "files", "gpus", "settings"), [
    ("trl-one-gpu", (RECIPE,), 1, {}),
    ("trl-ddp", (RECIPE,), 8, {}),
    ("trl-ddp", (RECIPE, {"distributed_type": "MULTI_GPU", "mixed_precision": "bf16", "num_processes": 8}), None, {}),
    ("trl-lora", (LORA,), 1, {}),
    ("trl-lora", (LORA,), 8, {"mesh__dp_replicate": 8}),
    ("trl-lora", (RECIPE, ADAPTER), 1, {}),
    *(("trl-deepspeed", (RECIPE, without_file({"zero_stage": stage})), None, {"framework": f"zero{stage}"})
      for stage in (1, 2, 3)),
    ("trl-deepspeed", (RECIPE, without_file({"zero_stage": 3, "offload_optimizer_device": "cpu",
                                             "offload_param_device": "cpu"})), None,
     {"framework": "zero3", "training__offload": {"optimizer": "host", "params": "host"}}),
    ("trl-deepspeed", ({**RECIPE, "deepspeed": "a/beside1.yaml"}, ZERO), 8, {}),
    ("trl-deepspeed", ({**RECIPE, "deepspeed": ZERO},), 8, {}),
    ("trl-deepspeed", (RECIPE, without_file({"deepspeed_config_file": "beside2.yaml"}), ZERO), None, {}),
    ("trl-deepspeed-lora", (LORA, without_file({"zero_stage": 3})), None, {"framework": "zero3"}),
    ("trainer-fsdp2", (RECIPE, FSDP2), None, {}),
    ("trainer-fsdp2", ({**RECIPE, "fsdp": True, "gradient_accumulation_steps": 2},), 8,
     {"training__global_batch_size": 128}),
    ("trainer-fsdp1", (RECIPE, FSDP1), None, {}),
    ("trainer-fsdp1", ({**RECIPE, "fsdp": "full_shard auto_wrap", "fsdp_config": {"version": 1},
                        "gradient_accumulation_steps": 2},), 8, {"training__global_batch_size": 128}),
])
def test_it_is_the_scenario_that_a_person_wrote(name: str, files: tuple[dict[str, Any], ...], gpus: int | None,
                                                settings: dict[str, Any]) -> None:
    assert scenario(*files, gpus=gpus, name=f"trainers-{name}") == of_folder(name, **settings)


def test_the_command_line_reads_checkpoints_in_fp32_unless_told() -> None:
    """TRL 1.16.0 `trainer/model_config.py` ModelConfig.dtype."""
    found = imported({**RECIPE, "dtype": None})
    assert found.values["training"]["precision"] == {"compute": "bf16", "params": "fp32"}
    assert found.origins["training", "precision", "params"].kind == "default"


def test_bf16_of_the_recipe_goes_before_the_launchers() -> None:
    plain = {"distributed_type": "MULTI_GPU", "mixed_precision": "no", "num_processes": 8}
    assert imported(RECIPE, plain).values["training"]["precision"]["compute"] == "bf16"
    off = imported({**RECIPE, "bf16": False, "dtype": "float32"}, plain).values["training"]["precision"]
    assert off["compute"] == "fp32"


def test_nothing_is_upcast_without_mixed_precision() -> None:
    """accelerate 1.15.0 `accelerator.py` prepare_model, `utils/fsdp_utils.py` fsdp2_prepare_model."""
    for launch in (FSDP1, FSDP2):
        found = imported({**RECIPE, "bf16": False}, {**launch, "mixed_precision": "no"}).values["training"]["precision"]
        assert (found["compute"], found["params"]) == ("bf16", "bf16")


def test_packs_are_one_row_of_all_samples_of_a_microbatch() -> None:
    found = imported({**RECIPE, "packing": True, "max_length": 512, "per_device_train_batch_size": 4,
                      "gradient_accumulation_steps": 3}).values["training"]
    assert (found["seq_len"], found["packed_length"], found["micro_batch_size"]) == (2048, 512, 1)
    assert found["global_batch_size"] == 24
    wrapped = imported({**RECIPE, "packing": True, "packing_strategy": "wrapped", "max_length": 512}).values["training"]
    assert (wrapped["seq_len"], wrapped["micro_batch_size"]) == (512, 8)
    assert "lengths" not in wrapped


def test_wrapped_packs_are_one_row_only_where_padding_free_asks_for_it() -> None:
    """TRL f2cd5771 `trainer/sft_trainer.py`: packs by best fit switch padding_free on, wrapped ones do not."""
    recipe = {**RECIPE, "packing": True, "packing_strategy": "wrapped", "max_length": 512}
    plain = imported({**recipe, "padding_free": False})
    origin = plain.origins["training", "seq_len"]
    assert "padding_free" not in str(origin)
    assert "_pack_wrapped" in origin.source
    free = imported({**recipe, "padding_free": True}).values["training"]
    assert (free["seq_len"], free["packed_length"], free["micro_batch_size"]) == (4096, 512, 1)
    assert free["lengths"] == "packed"


def test_rows_without_padding_need_packs_or_no_limit() -> None:
    """TRL f2cd5771 `trainer/sft_trainer.py`:1244 raises where max_length would not be enforced."""
    found = imported({**RECIPE, "padding_free": True})
    assert any("max_length is not enforced" in problem.message for problem in found.wrong)
    unlimited = imported({**RECIPE, "padding_free": True, "max_length": None})
    assert not unlimited.wrong
    assert any("padding" in problem.message for problem in unlimited.refused)


def test_version_1_shards_fully_whatever_reshard_after_forward_says() -> None:
    """`sharding_strategy` is FULL_SHARD where it is missing, and decides (accelerate 1.15.0 `utils/dataclasses.py`)."""
    launch = {**FSDP1, "fsdp_config": {**FSDP1["fsdp_config"], "fsdp_reshard_after_forward": "SHARD_GRAD_OP"}}
    found = imported(RECIPE, launch)
    assert "sharding_strategy" not in found.values["framework_options"]
    assert "fsdp_config.fsdp_reshard_after_forward" in {one.key for one in found.left}
    said = {**FSDP1, "fsdp_config": {**FSDP1["fsdp_config"], "fsdp_sharding_strategy": "SHARD_GRAD_OP"}}
    assert imported(RECIPE, said).values["framework_options"]["sharding_strategy"] == "SHARD_GRAD_OP"


def test_options_that_the_trainer_drops_have_no_effect() -> None:
    """transformers 5.23.0 `training_args.py` _process_fsdp_args asks for `cpu_offload`, and for no strategy."""
    dropped = {"version": 1, "offload_params": True, "fsdp_sharding_strategy": "NO_SHARD"}
    found = imported({**RECIPE, "fsdp": True, "fsdp_config": dropped})
    assert "offload" not in found.values["training"]
    assert "sharding_strategy" not in found.values["framework_options"]
    why = {one.key: one.why for one in found.left}
    for key in ("fsdp_config.offload_params", "fsdp_config.fsdp_sharding_strategy"):
        assert why[key].startswith("is dropped by the program")
    moved = imported({**RECIPE, "fsdp": True, "fsdp_config": {"cpu_offload": True}}).values["training"]
    assert moved["offload"] == {"params": "host", "gradients": "host", "optimizer": "host"}


def test_adapters_under_fsdp_1_are_units_that_are_upcast() -> None:
    """transformers 5.23 `distributed/fsdp.py`; accelerate 1.15 leaves a frozen flat parameter as it is read."""
    found = scenario(LORA, FSDP1, gpus=None)
    assert found.framework_options["wrap"] == "layers_adapters"
    assert (found.training.precision.params, found.training.lora.dtype) == ("bf16", "fp32")
    packed = scenario({**LORA, "load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16", "bf16": False},
                      {**FSDP1, "mixed_precision": "no"}, gpus=None)
    assert (packed.training.precision.params, packed.training.lora.dtype) == ("bf16", "bf16")


def test_a_packed_base_has_adapters_in_bf16_and_plain_scales() -> None:
    training = scenario({**LORA, "load_in_4bit": True}, gpus=1).training
    assert (training.method, training.lora.dtype, training.quantization.double_quant) == ("qlora", "bf16", False)


@pytest.mark.parametrize(("files", "told"), [
    (({**LORA, "load_in_4bit": True, "dtype": None},), "a packed base with products in fp32"),
    (({**LORA, "lora_target_modules": ["q_proj"]},), "q_proj alone is a pattern for whole paths"),
    (({**LORA, "lora_target_modules": [".*q_proj", "v_proj"]},), "modules by a pattern"),
    (({**LORA, "lora_modules_to_save": ["lm_head"]},), "not yet: lora_modules_to_save"),
    (({**RECIPE, "load_in_4bit": True},), "a packed base that is trained in full"),
    (({**RECIPE, "optim": "ademamix"},), "not yet: optim: the optimizer ademamix"),
    (({**RECIPE, "loss_type": "dft"},), "not yet: loss_type"),
    (({**RECIPE, "max_length": None},), "max_length is null, so that nothing is cut"),
    (({**RECIPE, "betta": 0.1},), "unknown key 'betta'"),
    (({**RECIPE, "deepspeed": "zero.json"},), "stands in another file, 'zero.json': name it too"),
    (({**RECIPE, "bf16": True, "fp16": True},), "bf16 and fp16 are both asked for"),
    (({**LORA, "bf16": False}, {**FSDP1, "mixed_precision": "no"}), "adapters in fp32 under FSDP 1 without mixed"),
    (({**RECIPE, "fsdp": "full_shard auto_wrap", "fsdp_config": {"version": 1, "limit_all_gathers": False}},),
     "limit_all_gathers: gathers that nothing limits"),
    ((RECIPE, {**FSDP2, "fsdp_config": {**FSDP2["fsdp_config"], "fsdp_activation_checkpointing": True}}),
     "both at once are an error"),
    ((RECIPE, {**ZERO, "train_micro_batch_size_per_gpu": 4}), "per_gpu is 4, and the trainer's 8"),
    ((RECIPE, {**ZERO, "fp16": {"enabled": True}}), "enables fp16, the trainer bf16"),
    ((RECIPE, FSDP2, ZERO), "the launcher's YAML asks for no DeepSpeed"),
    (({**RECIPE, "fsdp": True}, FSDP2), "a launcher's YAML beside a recipe that asks for FSDP"),
    ((RECIPE, RECIPE), "is no part of the trl recipe"),
    (({**RECIPE, "attn_implementation": "flash_attention_2"}, {**FSDP2, "parallelism_config": {
        "parallelism_config_cp_size": 8}}), "Context parallelism is supported only with SDPA attention, you are using"),
    ((RECIPE, {**FSDP2, "num_processes": 4}), "--gpus 8: the launcher starts 4 ranks: num_processes (beside1.yaml:4)"),
])
def test_what_cannot_be_followed_is_refused_by_name(files: tuple[dict[str, Any], ...], told: str) -> None:
    assert told in refusal(*files)


@pytest.mark.parametrize(("keys", "told"), [
    ({"torch_compile_backend": "inductor"}, "layers by torch.compile, backend inductor"),
    ({"ddp_backend": "gloo"}, "collectives by gloo"), ({"label_smoothing_factor": 0.1}, "smoothed by 0.1"),
    ({"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}}, "after each microbatch"),
    ({"use_liger_kernel": True, "liger_kernel_config": {"cross_entropy": True}}, "some of Liger's kernels"),
    ({"debug": "underflow_overflow"}, "a check of every module, by underflow_overflow")])
def test_arguments_of_the_trainer_that_have_an_effect_are_refused(keys: dict[str, Any], told: str) -> None:
    """transformers 5.23.0 `training_args.py`: a backend alone switches torch.compile on."""
    with pytest.raises(RankscopeError, match=told):
        imported({**RECIPE, **keys}).expect_complete()


def test_arguments_of_the_trainer_at_their_defaults_are_listed() -> None:
    keys = {"ddp_backend": "nccl", "label_smoothing_factor": 0, "debug": "", "skip_memory_metrics": True}
    found = imported({**RECIPE, **keys})
    assert found.refused == ()
    assert {one.key for one in found.left if one.kind == "no effect"} >= {*keys}


@pytest.mark.parametrize(("keys", "length"), [
    ({"max_length": 1000, "pad_to_multiple_of": 64}, 1024),
    ({"max_length": 1000, "pad_to_multiple_of": 64, "packing": True, "packing_strategy": "wrapped"}, 1024),
    ({"max_length": 1000, "pad_to_multiple_of": 64, "packing": True, "per_device_train_batch_size": 3}, 3008),
    ({"pad_to_multiple_of": 3000}, 3000)])
def test_a_batch_is_padded_to_a_multiple(keys: dict[str, Any], length: int) -> None:
    assert imported({**RECIPE, "max_length": 1024, **keys}).values["training"]["seq_len"] == length


def test_samples_that_nothing_prepares_are_neither_cut_nor_packed() -> None:
    """TRL 1.16.0 `sft_trainer.py` _skip_prepare_dataset."""
    keys: dict[str, Any] = {"max_length": 1000, "dataset_kwargs": {"skip_prepare_dataset": True}}
    assert [one.key for one in imported({**RECIPE, **keys}).questions] == ["training.seq_len"]
    assert "packs that the data set brings" in str(imported({**RECIPE, **keys, "packing": True}).refused)


@pytest.mark.parametrize(("keys", "optimizer"), [
    ({"optim": "adamw_torch"}, {"name": "adamw", "implementation": "foreach"}),
    ({"optim": "adamw_torch_fused"}, {"name": "adamw"}), ({}, None)])
def test_a_loop_over_lists_of_tensors_is_told_from_a_fused_kernel_under_zero(keys: dict[str, Any],
                                                                           optimizer: dict[str, str] | None) -> None:
    """torch's foreach has a square root of all second moments at once, which DeepSpeed's flat part is too."""
    assert imported({**RECIPE, **keys}, ZERO).values["training"].get("optimizer") == optimizer


@pytest.mark.parametrize(("model", "kind"), [("microsoft/Phi-3-mini-4k-instruct", "not modelled"),
                                             ("llama-3.2-3b", "no effect")])
def test_code_of_a_checkpoint_takes_the_place_of_transformers_layers(model: str, kind: str) -> None:
    found = imported({**RECIPE, "model_name_or_path": model, "trust_remote_code": True})
    assert [one.kind for one in found.left if one.key == "trust_remote_code"] == [kind]


def test_keys_in_the_order_in_which_trl_reads_them() -> None:
    """TRL 1.16.0 scripts/sft.py:76, transformers 5.23.0 training_args.py:1536."""
    told = imported({**RECIPE, "attn_implementation": "eager", "model_init_kwargs": {
        "attn_implementation": "sdpa", "dtype": "float32", "num_hidden_layers": 4, "use_kernels": True},
        "activation_checkpointing": False, "gradient_checkpointing": True})
    told.expect_complete()
    assert told.values["framework_options"] | {"attn_implementation": "sdpa", "use_kernels": True} == (
        told.values["framework_options"])
    assert told.values["training"]["recompute"] == "none"
    assert told.values["training"]["precision"]["params"] == "fp32"
    assert told.values["model"] == {"config": "llama-3.2-3b", "overrides": {"num_hidden_layers": 4}}
    assert {one.key for one in told.left if "goes before it" in one.why} == {
        "attn_implementation", "dtype", "gradient_checkpointing"}


def test_an_older_recipe_has_the_defaults_of_its_release() -> None:
    """TRL v0.19.1 trainer/sft_config.py, transformers 4.53.0 training_args.py: optim, gradient_checkpointing."""
    newer, older = ({name: value for name, value in RECIPE.items() if name not in ("dtype", "max_length", "optim",
                                                                                "gradient_checkpointing")}
                    for _ in range(2))
    newer |= {"dtype": "bfloat16", "max_length": 512}
    older |= {"torch_dtype": "bfloat16", "max_seq_length": 512, "warmup_ratio": 0.1, "overwrite_output_dir": True}
    first, second = imported(newer), imported(older)
    second.expect_complete()
    assert [one.values["training"]["recompute"] for one in (first, second)] == ["full", "none"]
    assert [one.values["training"]["loss"] for one in (first, second)] == ["fused_lm_head", "hf"]
    assert [one.values["training"]["optimizer"]["implementation"] for one in (first, second)] == ["fused", "foreach"]
    assert first.values["training"]["seq_len"] == second.values["training"]["seq_len"] == 512
    assert {one.key for one in second.left if "TRL 0.19.1" in one.why and one.kind == "not modelled"} >= {
        "max_seq_length"}
    assert not [one for one in first.left if "0.19.1" in one.why]
    for name in ("max_seq_length", "use_peft"):  # neither is there: lengths and adapters by default
        plain = {key: value for key, value in older.items() if key != name} | {"num_of_sequences": 4, "use_peft": True}
        cited = " ".join(f"{one.text} {one.source}" for one in imported(plain).origins.values())
        assert ("TRL 0.19.1" in cited, "TRL 1.16.0" in cited) == (True, False)
    both = imported({**older, "max_length": 256})
    both.expect_complete()
    assert both.values["training"]["seq_len"] == 512
    assert any(one.key == "max_length" and "max_seq_length goes before it" in one.why for one in both.left)


def test_names_of_transformers_4_alone_are_of_a_release_that_recomputes() -> None:
    """TRL v0.24.0 trainer/sft_config.py:116; a learning rate's key does not change what fits."""
    newer = imported({**RECIPE, "max_length": 512})
    middle = imported({**RECIPE, "max_length": 512, "warmup_ratio": 0.03})
    middle.expect_complete()
    assert [one.values["training"]["recompute"] for one in (newer, middle)] == ["full", "full"]
    assert [one.values["training"]["loss"] for one in (newer, middle)] == ["fused_lm_head", "hf"]
    assert "warmup_ratio" in {one.key for one in middle.left if "TRL 0.24.0" in one.why}
    assert "torchdynamo: layers by torch.compile, backend inductor" in refusal({**RECIPE, "torchdynamo": "inductor"})
    assert "batches without padding of TRL 0.24.0" in refusal({**RECIPE, "warmup_ratio": 0.1, "padding_free": True})


def test_adapters_beside_a_packed_base_are_wider_in_an_older_recipe() -> None:
    """TRL v0.19.1 trainer/utils.py peft_module_casting_to_bf16 leaves them; norms are in fp32."""
    packed = {**RECIPE, "use_peft": True, "load_in_4bit": True}
    newer = imported({**packed, "dtype": "bfloat16"})
    older = imported({**{name: value for name, value in packed.items() if name != "dtype"}, "torch_dtype": "bfloat16"})
    assert [one.values["training"]["lora"]["dtype"] for one in (newer, older)] == ["bf16", "fp32"]
    assert any(one.key == "norms" and one.kind == "not modelled" for one in older.left)


@pytest.mark.parametrize(("said", "command"), [
    ({"num_generations": 8, "normalize_advantages": True}, "trl rloo"),
    ({"lmbda": 0.5, "beta": 0.1}, "trl gkd")])
def test_other_trainings_than_sft_are_named(said: dict[str, Any], command: str) -> None:
    """Nothing else of such a recipe is complained about."""
    message = refusal({**RECIPE, **said})
    assert command in message
    assert "read: `trl sft`, `trl dpo`, `trl reward`, `trl grpo`, `trl kto`" in message
    assert "unknown key" not in message


def test_arguments_of_scripts_around_the_trainer_change_no_step() -> None:
    """open-r1 src/open_r1/configs.py, alignment-handbook src/alignment/configs.py."""
    told = imported({**RECIPE, "chat_template": "{{ x }}", "system_prompt": "Be brief.", "benchmarks": ["gpqa"],
                     "dataset_mixture": {"datasets": [{"id": "a", "weight": 1.0}]}})
    told.expect_complete()
    assert {one.key.partition(".")[0] for one in told.left if one.kind == "no effect"} >= {
        "chat_template", "system_prompt", "benchmarks", "dataset_mixture"}


@pytest.mark.parametrize(("said", "message"), [
    ({"parallelism_config": {"dp_replicate_size": 2}}, "the Accelerator stops at it"),
    ({"router_aux_loss_coef": 0.1}, "the model has no experts, at which TRL 1.16.0 stops"),
    ({"accelerate_config": "fsdp2"}, "names a further file, fsdp2.yaml"),
    ({"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 2}}, "gradient_accumulation_steps": 4},
     "num_steps beside gradient_accumulation_steps 4"),
    ({"model_init_kwargs": {"quantization_config": {"load_in_4bit": True}}}, "a packed base by an argument")])
def test_arguments_at_which_trl_stops(said: dict[str, Any], message: str) -> None:
    assert message in refusal({**RECIPE, **said})


def test_options_of_the_launcher_in_the_recipe() -> None:
    """TRL 1.16.0 cli/commands/training.py run."""
    found = imported({**RECIPE, "num_processes": 4, "use_fsdp": True, "fsdp_version": 2,
                      "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}, gpus=None)
    found.expect_complete()
    assert (found.values["framework"], found.values["mesh"]) == ("fsdp2", {"dp_shard": 4})
    alone = imported({**RECIPE, "num_processes": 2}, gpus=None)
    alone.expect_complete()
    assert alone.values["mesh"] == {"dp_replicate": 2}


def test_steps_and_momentum_by_other_arguments() -> None:
    """transformers 5.23.0 trainer.py:814, trainer_optimizer.py _get_sgd."""
    found = imported({**RECIPE, "accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 3}},
                      "per_device_train_batch_size": 2, "optim": "sgd", "optim_args": "momentum=0.9"})
    found.expect_complete()
    assert found.values["training"]["global_batch_size"] == 2 * 3 * 8
    assert found.values["training"]["optimizer"]["momentum"] == 0.9


def test_the_loss_that_balances_experts_is_on_by_default() -> None:
    """TRL 1.16.0 trainer/sft_trainer.py:1205."""
    experts = {**RECIPE, "model_name_or_path": "qwen3-30b-a3b"}
    kinds = [[one.kind for one in imported({**experts, **said}).left if one.key == "router_aux_loss_coef"]
             for said in ({}, {"router_aux_loss_coef": 0.0}, {"router_aux_loss_coef": 0.1})]
    assert kinds == [["not modelled"], ["no effect"], ["not modelled"]]


def test_adafactor_by_its_name_and_by_the_flag_of_an_older_release() -> None:
    """transformers 5.23.0 trainer_optimizer.py _get_adafactor, which reads no `optim_args`; 4.57 training_args.py."""
    named = imported({**RECIPE, "optim": "adafactor", "optim_args": "beta1=0.9"})
    named.expect_complete()
    assert named.values["training"]["optimizer"] == {"name": "adafactor"}
    assert [one.kind for one in named.left if one.key == "optim_args"] == ["no effect"]
    older = {name: value for name, value in RECIPE.items() if name not in ("dtype", "max_length")}
    older |= {"torch_dtype": "bfloat16", "max_seq_length": 512, "optim": "adamw_8bit"}
    for flag, name in ((True, "adafactor"), (False, "adamw")):
        found = imported({**older, "adafactor": flag})
        found.expect_complete()
        assert found.values["training"]["optimizer"]["name"] == name
    assert "optim: adafactor goes before it" in [f"{one.key}: {one.why}" for one in imported(
        {**older, "adafactor": True}).left]
    assert imported({**RECIPE, "optim": "adafactor"}, ZERO).values["training"]["optimizer"]["name"] == "adafactor"


def test_states_on_the_host_have_deepspeeds_adam_whatever_optim_says() -> None:
    """accelerate 1.15.0 `utils/deepspeed.py` map_pytorch_optim_to_deepspeed; without offload the optimizer is kept."""
    host = {**ZERO, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    for optim in ("adafactor", "adamw_8bit", "sgd", "adamw_torch", "paged_adamw_32bit"):
        assert scenario({**RECIPE, "optim": optim}, host).training.optimizer.name == "adamw", optim
    assert imported({**RECIPE, "optim": "sgd"}, ZERO).values["training"]["optimizer"]["name"] == "sgd"
    kept = imported(RECIPE, {**host, "zero_force_ds_cpu_optimizer": False})
    assert not kept.refused
    other = refusal({**RECIPE, "optim": "adafactor"}, {**host, "zero_force_ds_cpu_optimizer": False})
    assert "not yet: optim: adafactor on a CPU" in other
    assert kept.values["training"]["optimizer"]["name"] == "adamw"


@pytest.mark.parametrize("model", ["gemma-2-2b", "gpt-oss-20b"])
def test_transformers_takes_eager_attention_for_models_without_sdpa(model: str) -> None:
    recipe = {**RECIPE, "model_name_or_path": model}
    assert imported(recipe).values["framework_options"]["attn_implementation"] == "eager"
    assert "the model has no SDPA" in refusal({**recipe, "attn_implementation": "sdpa"})
    flash = imported({**recipe, "attn_implementation": "flash_attention_2"}).values["framework_options"]
    assert flash["attn_implementation"] == "flash_attention_2"
    assert "attn_implementation" not in imported(RECIPE).values.get("framework_options", {})


SCRIPT = """\
accelerate launch --num_processes 8 --use_deepspeed --zero_stage 3 trl/scripts/sft.py \\
  --model_name_or_path llama-3.2-3b --dataset_name some/answers --packing --per_device_train_batch_size 2 \\
  --use_peft --lora_r 32 --lora_target_modules q_proj v_proj --max_length 1024
"""


def test_a_script_with_all_arguments_is_the_recipe() -> None:
    """As TRL docs/source/peft_integration.md and the heads of its scripts show it."""
    Path("run.sh").write_text(SCRIPT, encoding="utf-8")
    found = import_recipe(["run.sh"], Answers.of_options(None, None, "dgx-h100"))
    found.expect_complete()
    training = found.values["training"]
    assert (found.values["framework"], found.values["mesh"]) == ("zero3", {"dp_shard": 8})
    assert (training["seq_len"], training["lora"]["target_modules"]) == (2048, ["q_proj", "v_proj"])
    assert found.origins["training", "lora", "rank"].where == "run.sh:3"
    Path("mine.yaml").write_text(json.dumps({**RECIPE, "max_length": 512}), encoding="utf-8")
    Path("run.sh").write_text("trl sft --config mine.yaml --model_name_or_path llama-3.2-1b --num_processes 2\n",
                              encoding="utf-8")
    both = import_recipe(["run.sh", "mine.yaml"], Answers.of_options(None, None, "dgx-h100"))
    assert (both.values["model"], both.values["training"]["seq_len"]) == ("llama-3.2-1b", 512)


def test_another_training_of_trl_is_refused_by_its_name() -> None:
    Path("run.sh").write_text("trl rloo --model_name_or_path llama-3.2-1b\n", encoding="utf-8")
    with pytest.raises(RankscopeError, match=r"no format"):
        import_recipe(["run.sh"], Answers.of_options(8, None, "dgx-h100")).expect_complete()


def test_words_that_accelerate_hands_on_to_no_one_are_told() -> None:
    """accelerate 1.15.0 commands/launch.py _validate_launch_command sets them on its arguments, which nothing reads."""
    told = imported(RECIPE, {"distributed_type": "DEEPSPEED", "num_processes": 8, "deepspeed_config": {
        "zero_stage": 2, "train_micro_batch_size_per_gpu": 4, "offload_optimizer": {"device": "cpu"}}})
    told.expect_complete()
    assert told.values["framework"] == "zero2"
    assert "offload" not in told.values["training"]
    assert {one.key for one in told.left if "hands on to no one" in one.why and one.kind == "not modelled"} == {
        "deepspeed_config.train_micro_batch_size_per_gpu", "deepspeed_config.offload_optimizer.device"}


def test_the_default_optimizer_of_an_older_release_goes_to_zero_too() -> None:
    """transformers 4.53.0 training_args.py: adamw_torch, not the fused one of later releases."""
    plain = {name: value for name, value in RECIPE.items() if name != "optim"}
    found = imported({**plain, "max_seq_length": 512}, {"distributed_type": "DEEPSPEED", "num_processes": 8,
                                                         "deepspeed_config": {"zero_stage": 3}})
    assert found.values["training"]["optimizer"] == {"name": "adamw", "implementation": "foreach"}
