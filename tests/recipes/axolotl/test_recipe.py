"""Recipes of axolotl become the scenarios that a person would write; what cannot be followed is refused by its key."""

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

RECIPE = """\
base_model: qwen3-8b
datasets: [{path: some/answers, type: alpaca}]
sequence_len: 768
micro_batch_size: 3
gradient_accumulation_steps: 2
bf16: auto
attn_implementation: flash_attention_2
optimizer: adamw_torch_fused
"""
QLORA = RECIPE + """\
load_in_4bit: true
adapter: qlora
lora_r: 24
lora_alpha: 48
lora_dropout: 0.05
lora_target_linear: true
sample_packing: true
gradient_checkpointing: true
"""
FSDP2 = RECIPE + """\
fsdp_version: 2
fsdp_config: {auto_wrap_policy: TRANSFORMER_BASED_WRAP, reshard_after_forward: true, offload_params: true}
"""


def imported(folder: Path, text: str, gpus: int | None = 4) -> Imported:
    file = folder / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    return import_recipe([str(file)], Answers.of_options(gpus, None, "dgx-h100"))


def scenario(folder: Path, text: str, gpus: int = 4) -> Scenario:
    found = imported(folder, text, gpus)
    found.expect_complete()
    result = parse_scenario(found.document())
    assert check(result).problems == ()
    return result


def written(text: str) -> Scenario:
    return parse_scenario(parse_document(text, "by-hand.yaml"))


def changed(text: str, **keys: Any) -> str:
    """The recipe with other values of top-level keys; None leaves one out."""
    kept = [line for line in text.splitlines() if line.partition(":")[0] not in keys]
    return "\n".join([*kept, *(f"{key}: {json.dumps(value)}" for key, value in keys.items() if value is not None), ""])


def test_full_training_is_a_copy_on_each_gpu_in_16_bits(tmp_path: Path) -> None:
    assert scenario(tmp_path, RECIPE) == written("""\
name: mine
model: qwen3-8b
framework: ddp
topology: dgx-h100
environment: {expandable_segments: true}
mesh: {dp_replicate: 4}
training:
  seq_len: 768
  micro_batch_size: 3
  global_batch_size: 24
  precision: {compute: bf16, params: bf16}
  optimizer: {name: adamw, implementation: fused}
framework_options: {attn_implementation: flash_attention_2}
""")


def test_packs_of_a_microbatch_are_one_row(tmp_path: Path) -> None:
    assert scenario(tmp_path, QLORA, 1) == written("""\
name: mine
model: qwen3-8b
framework: ddp
topology: dgx-h100
environment: {expandable_segments: true}
mesh: {dp_replicate: 1}
training:
  method: qlora
  seq_len: 2304
  packed_length: 768
  lengths: packed
  micro_batch_size: 1
  global_batch_size: 2
  recompute: full
  precision: {compute: bf16, params: bf16}
  lora:
    {rank: 24, alpha: 48, dropout: 0.05, dtype: fp32,
     target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]}
  optimizer: {name: adamw, implementation: fused}
framework_options: {attn_implementation: flash_attention_2, autocast: true}
""")


def test_keys_of_shipped_recipes_that_axolotl_does_not_read_are_told(tmp_path: Path) -> None:
    text = RECIPE + "test_value: true\ncls_model_config: Qwen3Config\nfp8_enable_fsdp_float8_all_gather: true\n"
    found = imported(tmp_path, text)
    assert found.unknown == ()
    told = {one.key: one.kind for one in found.left}
    assert (told["test_value"], told["cls_model_config"]) == ("no effect", "not modelled")
    assert told["fp8_enable_fsdp_float8_all_gather"] == "no effect"


def test_bf16_by_itself_is_bf16_on_any_gpu(tmp_path: Path) -> None:
    """torch 2.13 `cuda/__init__.py` is_bf16_supported counts emulation: fp16 is never chosen, also on a V100."""
    (tmp_path / "mine.yaml").write_text(RECIPE, encoding="utf-8")
    found = import_recipe([str(tmp_path / "mine.yaml")], Answers.of_options(1, None, "v100-32gb"))
    assert found.values["training"]["precision"]["compute"] == "bf16"
    assert "is_bf16_supported" in found.origins["training", "precision", "compute"].source


@pytest.mark.parametrize(("keys", "dtype", "autocast"), [
    ({}, "fp32", True), ({"bf16": "full"}, "fp32", None), ({"bf16": None, "bfloat16": True}, "fp32", True),
    ({"bf16": False, "fp16": True}, "fp32", True), ({"bf16": False, "float16": True}, "fp32", None),
    ({"peft_autocast_adapter_dtype": False}, "fp32", True),
    ({"adapter": "lora", "load_in_4bit": None, "peft_autocast_adapter_dtype": False}, "bf16", None)])
def test_adapters_are_in_fp32_and_the_trainer_casts_them(tmp_path: Path, keys: dict[str, Any], dtype: str,
                                                         autocast: bool | None) -> None:
    """PEFT's autocast_adapter_dtype; core/builders/base.py gives the Trainer bf16 or fp16, but for `full`."""
    values = imported(tmp_path, changed(QLORA, **keys)).values
    assert values["training"]["lora"]["dtype"] == dtype
    assert values["framework_options"].get("autocast") == autocast


def test_offload_takes_the_place_of_recomputing_beside_adapters_alone(tmp_path: Path) -> None:
    """`_apply_activation_checkpointing` of axolotl's loaders/model.py."""
    adapters = imported(tmp_path, changed(QLORA, activation_offloading=True)).values["training"]
    both = changed(RECIPE, activation_offloading=True, gradient_checkpointing=True)
    full = imported(tmp_path, both).values["training"]
    assert (adapters["recompute"], full["recompute"]) == ("none", "full")
    assert adapters["offload"] == full["offload"] == {"activations": "host"}


def test_fsdp_2_shards_and_offloads_all_three(tmp_path: Path) -> None:
    found = scenario(tmp_path, FSDP2)
    assert (found.framework, found.mesh.dp_shard) == ("fsdp2", 4)
    assert {found.training.offload.part(name)[0] for name in ("params", "gradients", "optimizer")} == {"host"}
    assert found.framework_options == {"attn_implementation": "flash_attention_2", "reshard_after_forward": True,
                                       "sync_gradients": "last"}


def test_embeddings_keep_states_in_32_bits_beside_8_bit_ones(tmp_path: Path) -> None:
    """transformers 5.23 `trainer.py` create_optimizer; frozen ones have none, and ZeRO's parameters are its own."""
    wide = scenario(tmp_path, changed(RECIPE, optimizer="paged_adamw_8bit"))
    assert wide.framework_options["wide_embedding_states"] is True
    for recipe in (changed(QLORA, optimizer="adamw_bnb_8bit"), RECIPE):
        assert "wide_embedding_states" not in scenario(tmp_path, recipe).framework_options


def test_adafactor_is_transformers(tmp_path: Path) -> None:
    """axolotl 067b021c core/builders/base.py hands `optimizer` on as `optim`."""
    assert scenario(tmp_path, changed(QLORA, optimizer="adafactor")).training.optimizer.name == "adafactor"


def test_adapters_under_fsdp_1_are_units_of_their_own(tmp_path: Path) -> None:
    """transformers 5.23 `distributed/fsdp.py` takes PEFT's policy, with and without original parameters."""
    for original in (False, True):
        recipe = QLORA + ("fsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_offload_params: true, "
                          f"fsdp_use_orig_params: {str(original).lower()}, "
                          "fsdp_transformer_layer_cls_to_wrap: Qwen3DecoderLayer}\n")
        found = scenario(tmp_path, recipe)
        assert (found.framework, found.training.method) == ("fsdp1", "qlora")
        assert found.framework_options["wrap"] == "layers_adapters"
        assert found.framework_options["use_orig_params"] is original
    part = imported(tmp_path, recipe.replace("Qwen3DecoderLayer", "MixtralSparseMoeBlock"))
    assert "units that are parts of a layer (MixtralSparseMoeBlock)" in str(part.refused[0])


def test_gradients_are_reduced_once_a_step(tmp_path: Path) -> None:
    """`no_sync` of accelerate 1.13.0 and 1.15.0 switches FSDP 2's reductions off but for the last microbatch."""
    assert scenario(tmp_path, FSDP2).framework_options["sync_gradients"] == "last"


def test_options_of_fsdp_1_that_the_schema_drops_have_no_effect(tmp_path: Path) -> None:
    """axolotl's `utils/schemas/fsdp.py` has neither, and passes on what it has (`utils/trainer.py` setup_fsdp_envs)."""
    first = RECIPE + "fsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_backward_prefetch: BACKWARD_PRE, " \
                     "sharding_strategy: NO_SHARD, mixed_precision_policy: fp32}\n"
    found = imported(tmp_path, first)
    found.expect_complete()
    assert found.values["framework_options"]["backward_prefetch"] == "NO_PREFETCH"
    assert "sharding_strategy" not in found.values["framework_options"]


ZERO = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "bf16": {"enabled": True},
        "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}


def with_deepspeed(folder: Path, config: dict[str, Any], **keys: Any) -> Imported:
    (folder / "mine.yaml").write_text(changed(RECIPE, deepspeed="configs/zero3.json", **keys), encoding="utf-8")
    (folder / "zero3.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    files = [str(folder / "mine.yaml"), str(folder / "zero3.json")]
    return import_recipe(files, Answers.of_options(4, None, "dgx-h100"))


def test_a_deepspeed_file_is_read_behind_the_recipe(tmp_path: Path) -> None:
    found = with_deepspeed(tmp_path, ZERO)
    found.expect_complete()
    assert parse_scenario(found.document()) == written("""\
name: mine
model: qwen3-8b
framework: zero3
topology: dgx-h100
environment: {expandable_segments: true}
mesh: {dp_shard: 4}
training:
  seq_len: 768
  micro_batch_size: 3
  global_batch_size: 24
  precision: {compute: bf16}
  optimizer: {name: adamw}
  offload: {optimizer: host}
framework_options: {attn_implementation: flash_attention_2}
""")
    assert check(parse_scenario(found.document())).problems == ()


@pytest.mark.parametrize(("keys", "told"), [
    ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps is 4, and the trainer's 2"),
    ({"bf16": {"enabled": False}, "fp16": {"enabled": True}}, "enables fp16, the recipe bf16"),
])
def test_a_deepspeed_file_must_agree_with_the_recipe(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    with pytest.raises(RankscopeError, match=told):
        with_deepspeed(tmp_path, {**ZERO, **keys}).expect_complete()


def test_version_1_is_the_default_of_fsdp(tmp_path: Path) -> None:
    found = scenario(tmp_path, changed(FSDP2, fsdp_version=None))
    assert found.framework == "fsdp1"
    assert found.training.precision.params == "auto"  # accelerate upcasts what it trains


def test_a_published_run_is_the_scenario_that_it_is_measured_by(tmp_path: Path) -> None:
    """The row of GPT-OSS with adapters, whose keys were translated by hand; its memory limit is of another card.

    The row leaves adapters in the base's format: autocast over experts is not simulated, and refused. It names no
    modules: its default are those of attention, which are all linear layers here.
    """
    rows = (ROOT / "tests/truth/measured/axolotl.jsonl").read_text(encoding="utf-8").splitlines()
    row = next(row for row in map(json.loads, rows) if row["id"] == "axolotl-gptoss20b-lora")["scenario"]
    text = changed(RECIPE, base_model="openai/gpt-oss-20b", sequence_len=4096, micro_batch_size=1,
                   gradient_accumulation_steps=8, sample_packing=True, activation_offloading=True, adapter="lora",
                   gradient_checkpointing=True, lora_target_linear=True, lora_r=8, lora_alpha=16,
                   optimizer="adamw_torch_8bit", use_kernels=True,
                   attn_implementation="kernels-community/vllm-flash-attn3",
                   plugins=["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"])
    found = imported(tmp_path, text, 1)
    found.expect_complete()
    training = {**found.values["training"], "optimizer": {"name": "adamw", "moments": "int8"}}
    assert training.pop("precision") == {"compute": "bf16", **row["training"].pop("precision")}
    row["training"]["lora"] |= {"dtype": "fp32", "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    assert training == row["training"]
    assert found.values["framework_options"] == row["framework_options"] | {"autocast": True}


@pytest.mark.parametrize(("keys", "widens", "autocast"), [
    ({"attn_implementation": "sdpa"}, True, None), ({"attn_implementation": "sdpa", "bf16": "full"}, True, False),
    ({"attn_implementation": "flash_attention_2"}, None, None)])
def test_norms_and_tables_are_in_fp32_without_flash_attention(tmp_path: Path, keys: dict[str, Any],
                                                              widens: bool | None, autocast: bool | None) -> None:
    options = imported(tmp_path, changed(RECIPE, **keys)).values["framework_options"]
    assert options.get("convert_embedding_modules_dtype") is widens
    assert options.get("autocast") is autocast


@pytest.mark.parametrize(("keys", "told"), [
    ({"deepspeed": "zero3.json"}, "DeepSpeed's configuration in another file, 'zero3.json': name it too"),
    ({"tensor_parallel_size": 2}, "matrices that are split over 2 ranks"),
    ({"unfrozen_parameters": ["^lm_head.weight$", "model.layers.3.mlp"]}, "trained by pattern"),
    ({"unfrozen_parameters": ["^lm_head.weight$"], "adapter": "lora", "lora_target_linear": True},
     "match no parameter: PEFT's begin with base_model.model."),
    ({"optimizer": "adopt_adamw"}, "the optimizer adopt_adamw"),
    ({"rl": "simpo"}, "training by simpo"),
    ({"processor_type": "AutoProcessor"}, "a model with images or sound"),
    ({"plugins": ["axolotl.integrations.kernels.KernelsPlugin"]}, "the plugin KernelsPlugin"),
    ({"experts_implementation": "scattermoe"}, "experts by scattermoe"),
    ({"load_in_8bit": True}, "a packed base that is trained in full"),
    ({"gradient_checkpointing": "unsloth"}, "checkpoints of kind unsloth"),
    ({"adapter": "llama-adapter"}, "adapters of kind llama-adapter"),
    ({"model_quantization_config": "Mxfp4Config"}, "stays in the format of its checkpoint"),
    ({"torch_compile": "auto"}, "layers by torch.compile"),
    ({"batch_flattening": "auto"}, "one row of unpadded samples"),
    ({"layer_offloading": True}, "layers whose parameters wait on the host"),
    ({"gpu_memory_limit": "20GiB"}, "spread over the GPUs"),
    ({"model_type": "AutoModelForSequenceClassification", "num_labels": 2}, "a model of class AutoModelForSeq"),
    ({"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}},
     "sync_each_batch: reductions after each microbatch"),
    ({"accelerator_config": {"split_batches": True}}, "shared out over the ranks"),
    ({"micro_batch_size": "many"}, "micro_batch_size: expected a whole number"),
    ({"micro_batchsize": 2}, "unknown key 'micro_batchsize'"),
])
def test_what_cannot_be_followed_is_refused_by_its_key(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    with pytest.raises(RankscopeError) as caught:
        imported(tmp_path, changed(RECIPE, **keys)).expect_complete()
    assert told in str(caught.value)


@pytest.mark.parametrize("keys", [{"expert_parallel_size": 4}, {"context_parallel_size": 2}, {"rl": "simpo"}])
def test_a_key_that_makes_it_another_layout_is_never_left_out(tmp_path: Path, keys: dict[str, Any]) -> None:
    (tmp_path / "mine.yaml").write_text(changed(RECIPE, **keys), encoding="utf-8")
    found = import_recipe([str(tmp_path / "mine.yaml")], Answers.of_options(4, None, "dgx-h100"), loose=True)
    assert [next(iter(keys)) in one.message for one in found.refused] == [True]


def test_the_number_of_gpus_is_asked_once(tmp_path: Path) -> None:
    with pytest.raises(RankscopeError) as caught:
        imported(tmp_path, RECIPE, None).expect_complete()
    assert [str(one) for one in caught.value.problems] == [
        f"{tmp_path / 'mine.yaml'}: the recipe leaves open: number of GPUs; answer with --gpus N"]


def test_gpus_are_shared_out_over_a_degree_that_is_refused_too(tmp_path: Path) -> None:
    """16 GPUs: 8 shards of 2 ranks each that split matrices."""
    with pytest.raises(RankscopeError) as caught:
        imported(tmp_path, FSDP2 + "dp_shard_size: 8\ntensor_parallel_size: 2\n").expect_complete()
    assert "split over 2 ranks" in str(caught.value)
    assert "are not the GPUs" not in str(caught.value)


def test_gpus_that_contradict_the_recipe_are_told(tmp_path: Path) -> None:
    with pytest.raises(RankscopeError, match="dp_shard_size 3"):
        imported(tmp_path, FSDP2 + "dp_shard_size: 3\n").expect_complete()


@pytest.mark.parametrize(("more", "told"), [
    ("", True), ("lora_qkv_kernel: false\n", False), ("trust_remote_code: true\n", False),
    (FSDP2.removeprefix(RECIPE), True), ("fsdp_version: 1\nfsdp_config: {use_orig_params: true}\n", False)])
def test_kernels_that_axolotl_switches_on_by_itself_are_told(tmp_path: Path, more: str, told: bool) -> None:
    left = imported(tmp_path, QLORA + more).left
    kernels = {"lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel"}
    assert kernels & {one.key for one in left if one.kind == "not modelled"} == (kernels if told else set())


def test_a_kernel_that_is_asked_for_has_an_effect(tmp_path: Path) -> None:
    keys = ("lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
    left = imported(tmp_path, changed(QLORA, **dict.fromkeys(keys, True))).left
    assert [one.kind for key in keys for one in left if one.key == key] == ["not modelled", "not modelled", "no effect"]
    assert all(one.key not in ("lora_mlp_kernel", "lora_embedding_kernel") or one.kind == "no effect" for one in left)


def test_the_command_makes_segments_expandable_and_its_module_does_not(tmp_path: Path) -> None:
    """`utils/__init__.py` set_pytorch_cuda_alloc_conf, which `cli/main.py` calls before any command."""
    (tmp_path / "mine.yaml").write_text(RECIPE, encoding="utf-8")
    found = []
    for line in ("axolotl train mine.yaml --launcher torchrun -- --nproc-per-node=4",
                 "export PYTORCH_ALLOC_CONF=expandable_segments:False\naxolotl train mine.yaml -- --num_processes 4",
                 "torchrun --nproc-per-node 4 -m axolotl.cli.train mine.yaml"):
        (tmp_path / "run.sh").write_text(line, encoding="utf-8")
        result = import_recipe([str(tmp_path / "mine.yaml"), str(tmp_path / "run.sh")],
                               Answers.of_options(topology="dgx-h100"))
        found.append(parse_scenario(result.document()).environment.expandable_segments)
    assert found == [True, False, False]


def test_workers_of_ray_are_the_ranks(tmp_path: Path) -> None:
    """`cli/train.py` do_cli: ScalingConfig(num_workers=cfg.ray_num_workers)."""
    text = RECIPE + "use_ray: true\nray_num_workers: 2\n"
    assert scenario(tmp_path, text, 2).mesh.dp_replicate == 2
    assert imported(tmp_path, text, None).values["mesh"] == {"dp_replicate": 2}
    assert "Ray starts 2 ranks: ray_num_workers" in str(imported(tmp_path, text, 8).wrong[0])
    assert [one.why for one in imported(tmp_path, RECIPE + "ray_num_workers: 2\n").left if one.key == "ray_num_workers"]


def test_another_file_of_deepspeed_than_the_recipe_names_is_told(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(changed(RECIPE, deepspeed="configs/zero3.json"), encoding="utf-8")
    (tmp_path / "zero1.json").write_text(json.dumps(ZERO), encoding="utf-8")
    found = import_recipe([str(tmp_path / "mine.yaml"), str(tmp_path / "zero1.json")],
                          Answers.of_options(4, None, "dgx-h100"))
    assert "deepspeed names configs/zero3.json, and" in str(found.wrong[0])


def test_units_keep_their_parameters_where_transformers_has_them_so(tmp_path: Path) -> None:
    found = imported(tmp_path, f"{RECIPE}fsdp_version: 1\nfsdp_config: {{auto_wrap_policy: TRANSFORMER_BASED_WRAP}}\n")
    assert found.values["framework_options"]["use_orig_params"] is True


@pytest.mark.parametrize(("keys", "compute"), [
    ({"bf16": None}, "bf16"), ({"bf16": None, "fp16": True}, "fp16"), ({"fp16": True}, "fp16"),
    ({"bf16": True, "fp16": True}, "bf16"), ({"bf16": None, "float16": True}, "bf16"), ({"bf16": False}, "fp32"),
    ({"bf16": False, "adapter": "lora", "load_in_8bit": True}, "fp16")])
def test_the_format_is_bf16_unless_the_recipe_says_otherwise(tmp_path: Path, keys: dict[str, Any],
                                                             compute: str) -> None:
    """`utils/schemas/config.py`: bf16 is auto by default; `utils/config/__init__.py` resolve_dtype."""
    assert imported(tmp_path, changed(RECIPE, **keys)).values["training"]["precision"]["compute"] == compute


def test_a_batch_alone_does_not_accumulate(tmp_path: Path) -> None:
    """`utils/schemas/training.py`: gradient_accumulation_steps is 1 by default, and goes before batch_size."""
    found = imported(tmp_path, changed(RECIPE, gradient_accumulation_steps=None, batch_size=12))
    assert found.values["training"]["global_batch_size"] == 3 * 4
    assert [one.kind for one in found.left if one.key == "batch_size"] == ["no effect"]
    both = imported(tmp_path, changed(RECIPE, batch_size=12))
    assert "only one of gradient_accumulation_steps and batch_size" in str(both.wrong[0])


def test_lengths_have_axolotls_defaults(tmp_path: Path) -> None:
    found = imported(tmp_path, changed(RECIPE, sequence_len=None, micro_batch_size=None))
    assert (found.values["training"]["seq_len"], found.values["training"]["micro_batch_size"]) == (512, 1)
    assert found.questions == ()


@pytest.mark.parametrize(("keys", "told"), [
    ({"adapter": "qlora"}, "qlora without load_in_4bit"),
    ({"adapter": "qlora", "load_in_8bit": True, "load_in_4bit": True}, "qlora beside load_in_8bit"),
    ({"base_model_config": "Qwen/Qwen3-4B"}, "the configuration of another model"),
    ({"dp_shard_size": 4}, "shards without fsdp_config"),
    ({"activation_offloading": True}, "activation_offloading requires gradient_checkpointing"),
    ({"activation_offloading": "legacy", "gradient_checkpointing": False}, "requires gradient_checkpointing"),
    ({"adapter": "lora", "lora_r": 8, "lora_target_linear": False}, "no modules to adapt"),
    ({"neftune_noise_alpha": 0}, "neftune_noise_alpha must be more than 0"),
])
def test_what_axolotl_does_not_take_is_told(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    with pytest.raises(RankscopeError, match=told):
        imported(tmp_path, changed(RECIPE, **keys)).expect_complete()


def test_falcon_h1_has_its_head_packed_and_mambas_own_parameters_in_fp32(tmp_path: Path) -> None:
    """`loaders/model.py` _set_quantization_config, _convert_embedding_modules_dtype."""
    keys = {"base_model": "tiiuae/Falcon-H1-3B-Base", "sample_packing": False, "lora_target_linear": False,
            "lora_target_modules": ["q_proj", "in_proj"]}
    options = scenario(tmp_path, changed(QLORA, **keys)).framework_options
    assert options["llm_int8_skip_modules"] == ["out_proj"]
    assert options["prepare_model_for_kbit_training"] == "cast_back"
    assert "llm_int8_skip_modules" not in scenario(tmp_path, QLORA).framework_options
    for more, told in (({"fsdp_version": 2, "fsdp_config": {"offload_params": True}}, "packed beside shards"),
                       ({"adapter": "lora", "load_in_4bit": False, "load_in_8bit": True}, "packed in 8 bits")):
        with pytest.raises(RankscopeError, match=told):
            imported(tmp_path, changed(QLORA, **keys, **more)).expect_complete()


def test_experts_beside_a_packed_base_are_cast_to_fp32(tmp_path: Path) -> None:
    """PEFT's preparation reaches parameters that bitsandbytes does not pack; beside 16 bits nothing is cast."""
    packed = changed(QLORA, base_model="mixtral-8x7b")
    assert imported(tmp_path, packed).values["framework_options"]["prepare_model_for_kbit_training"] == "cast_back"
    (problem,) = check(parse_scenario(imported(tmp_path, packed).document())).problems
    assert "experts that PEFT casts to fp32" in problem.message
    plain = changed(packed, adapter="lora", load_in_4bit=None, base_model="qwen1.5-moe-a2.7b")
    found = scenario(tmp_path, plain)
    assert found.framework_options == {"attn_implementation": "flash_attention_2", "autocast": True}
    assert "shared_expert_gate" in found.training.lora.target_modules


def test_modules_may_train_as_a_whole_beside_adapters(tmp_path: Path) -> None:
    """Copies of embedding and head; transformers gives an embedding states of 32 bits (create_optimizer)."""
    text = changed(QLORA, base_model="llama-3.2-1b", lora_modules_to_save=["embed_tokens", "lm_head"],
                   optimizer="adamw_bnb_8bit")
    found = scenario(tmp_path, text)
    assert found.training.lora.modules_to_save == ("embed_tokens", "lm_head")
    assert found.framework_options["wide_embedding_states"] is True
    with pytest.raises(RankscopeError, match="modules that train beside adapters, and are shared out"):
        imported(tmp_path, changed(FSDP2, adapter="lora", lora_target_linear=True,
                                   lora_modules_to_save=["lm_head"])).expect_complete()


@pytest.mark.parametrize(("keys", "told"), [
    ({"flash_attn_rms_norm": True}, "flash_attn_rms_norm: no longer supported"),
    ({"optimizer": "ao_adamw_8bit"}, "Unhandled optimizer: ao_adamw_8bit"),
    ({"optimizer": "lion_pytorch"}, "lion_32bit is transformers' name for it"),
    ({"s2_attention": True}, "s2_attention: no longer supported"),
    ({"flash_attn_fuse_mlp": True, "adapter": "lora", "lora_target_linear": True}, "Fused modules are not supported")])
def test_what_axolotl_stops_at_is_told_in_its_words(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    found = imported(tmp_path, changed(RECIPE, **keys))
    assert [told in one.message for one in found.wrong] == [True]
    assert found.refused == ()


def test_a_weight_decay_that_copies_gradients_is_written(tmp_path: Path) -> None:
    decayed = [imported(tmp_path, changed(RECIPE, optimizer=optimizer, weight_decay=0.1)) for optimizer in (
        "rmsprop", "lion_8bit")]
    assert [found.refused for found in decayed] == [(), ()]
    assert [found.values["training"]["optimizer"].get("weight_decay") for found in decayed] == [0.1, None]


def test_muon_runs_as_axolotl_lets_it(tmp_path: Path) -> None:
    """Over FSDP 2 alone; its own exchange of matrices is told; over whole parameters vectors have no optimizer."""
    found = imported(tmp_path, changed(FSDP2, optimizer="muon"))
    assert found.values["training"]["optimizer"] == {"name": "muon"}
    assert {one.key: one.kind for one in found.left}["DistMuon"] == "not modelled"
    with pytest.raises(RankscopeError, match="Muon of whole matrices"):
        imported(tmp_path, changed(RECIPE, optimizer="muon")).expect_complete()
    found = with_deepspeed(tmp_path, ZERO, optimizer="muon")
    assert ["Muon optimizer is currently incompatible with DeepSpeed" in one.message for one in found.wrong] == [True]


def test_fused_kernels_are_told(tmp_path: Path) -> None:
    text = changed(RECIPE, flash_attn_fuse_mlp=True, fused_attn_kernel=True)
    kinds = {one.key: one.kind for one in imported(tmp_path, changed(text, base_model="llama-2-7b")).left}
    assert (kinds["flash_attn_fuse_mlp"], kinds["fused_attn_kernel"]) == ("not modelled", "not modelled")
    assert {one.key: one.kind for one in imported(tmp_path, text).left}["flash_attn_fuse_mlp"] == "no effect"


def test_restarts_of_relora_are_told_and_not_counted(tmp_path: Path) -> None:
    found = imported(tmp_path, changed(QLORA, relora=True, jagged_restart_steps=150))
    found.expect_complete()
    assert {one.key: one.kind for one in found.left}["relora"] == "not modelled"


def test_experts_may_be_packed_as_they_are_read(tmp_path: Path) -> None:
    """monkeypatch/moe_quant.py; PEFT's preparation is left out then (loaders/model.py)."""
    text = changed(QLORA, base_model="zai-org/GLM-4.5-Air", quantize_moe_experts=True, lora_target_linear=None,
                   lora_target_modules=["q_proj", "v_proj"])
    found = scenario(tmp_path, text)
    assert found.framework_options == {"attn_implementation": "flash_attention_2", "autocast": True,
                                       "quantize_moe_experts": True}
    with pytest.raises(RankscopeError, match="lora_target_linear is not compatible with quantize_moe_experts"):
        imported(tmp_path, changed(text, lora_target_linear=True)).expect_complete()
    assert "quantize_moe_experts" in {one.key for one in imported(tmp_path, changed(
        text, base_model="qwen3-8b")).left}


def test_a_base_in_4_bits_is_packed_with_qlora_alone(tmp_path: Path) -> None:
    """`loaders/model.py` _set_quantization_config asks for qlora with load_in_4bit, and for lora with load_in_8bit."""
    found = imported(tmp_path, changed(RECIPE, adapter="lora", lora_r=8, load_in_4bit=True))
    assert found.values["training"]["method"] == "lora"
    assert [one.why for one in found.left if one.key == "load_in_4bit"] == ["read with qlora alone"]


@pytest.mark.parametrize(("key", "value", "kind"), [
    ("group_by_length", True, "not modelled"), ("group_by_length", False, "no effect"),
    ("ddp_find_unused_parameters", True, "not modelled"), ("ddp_find_unused_parameters", False, "no effect"),
    ("model_type", "Qwen3ForCausalLM", "no effect"), ("neftune_noise_alpha", 5, "not modelled")])
def test_what_is_left_out_depends_on_the_value(tmp_path: Path, key: str, value: object, kind: str) -> None:
    left = imported(tmp_path, changed(RECIPE, **{key: value})).left
    assert [one.kind for one in left if one.key == key] == [kind]


def test_no_key_is_in_two_lists(tmp_path: Path) -> None:
    more = "peft_autocast_adapter_dtype: true\nlora_r: 8\nexpert_parallel_size: 1\nlayer_offloading: false\n"
    left = imported(tmp_path, RECIPE + more).left
    assert len({one.key for one in left}) == len(left)


@pytest.mark.parametrize(("said", "length", "lengths"), [
    ("pretrain_multipack_attn: true\n", 1536, "packed"), ("", 1536, "packed"),
    ("pretrain_multipack_attn: false\n", 1536, None), ("pretrain_multipack_attn:\n", 1536, None)])
def test_a_pack_of_streamed_samples_may_be_one_sequence(tmp_path: Path, said: str, length: int,
                                                        lengths: str | None) -> None:
    """axolotl 067b021c utils/data/streaming.py: without it no sample has positions of its own."""
    text = changed(RECIPE, datasets=None, micro_batch_size=2, sample_packing=True, streaming=True, max_steps=9,
                   pretraining_dataset=[{"path": "some/texts"}]) + said
    found = imported(tmp_path, text)
    training = found.document().data["training"]
    assert (training["seq_len"], training.get("lengths")) == (length, lengths)
    assert training["micro_batch_size"] == 1
    assert not [one for one in found.left if one.key == "pretrain_multipack_attn"]


def test_keys_of_the_schema_are_not_called_misspelt(tmp_path: Path) -> None:
    """axolotl 067b021c utils/schemas/config.py, integrations/*/args.py."""
    found = imported(tmp_path, changed(RECIPE, simpo_gamma=0.5, kd_alpha=0.9, image_size=224, pad_to_multiple_of=64,
                                       quantization={"group_size": 32}, hf_mlflow_log_artifacts=True))
    found.expect_complete()
    kinds = {one.key: one.kind for one in found.left}
    assert {kinds[key] for key in ("simpo_gamma", "kd_alpha", "image_size", "quantization.group_size")} == {"no effect"}
    assert kinds["pad_to_multiple_of"] == "not modelled"
    refused = imported(tmp_path, changed(RECIPE, trainer_cls="a.Trainer"))
    assert "not yet: trainer_cls: a trainer of one's own" in str(refused.refused[0])


@pytest.mark.parametrize(("text", "kind", "reason"), [
    (RECIPE + "tf32: true\n", "no effect", "no product is of fp32, for which alone it is: they are in bf16"),
    (QLORA + "tf32: true\n", "no effect", "they are in bf16"),
    (FSDP2 + "tf32: true\n", "no effect", "they are in bf16"),
    (QLORA, "", ""),
    (changed(RECIPE, bf16=False, fp16=False, tf32=True), "not modelled", "products of fp32 run in TF32"),
    (changed(RECIPE, bf16=False, fp16=False, tf32=False), "no effect", "are timed at the rate of fp32"),
    (changed(RECIPE, bf16=False, fp16=False), "not modelled", "the default: products of fp32 run in TF32"),
    (changed(QLORA, bf16="full"), "not modelled", "products of adapters in fp32, which nothing casts"),
    (changed(QLORA, bf16="full", tf32=False), "no effect", "are timed at the rate of fp32")])
def test_tf32_is_of_products_in_fp32_alone(tmp_path: Path, text: str, kind: str, reason: str) -> None:
    """axolotl 067b021c utils/schemas/config.py:592: auto by default, which is on from Ampere."""
    told = [(one.kind, one.why) for one in imported(tmp_path, text).left if one.key == "tf32"]
    assert [found for found, _ in told] == ([kind] if kind else [])
    assert all(reason in why for _, why in told)


def test_names_of_the_model_and_of_its_fields(tmp_path: Path) -> None:
    """axolotl 067b021c utils/schemas/deprecated.py RemappedParameters: each key by two names; loaders/utils.py:201."""
    found = imported(tmp_path, changed(RECIPE, type_of_model="LlamaForCausalLM", model_config={
        "num_hidden_layers": 4, "rope_theta": 9.0, "router_aux_loss_coef": 0.1, "output_router_logits": False}))
    found.expect_complete()
    assert found.values["model"] == {"config": "qwen3-8b", "overrides": {"num_hidden_layers": 4}}
    kinds = {one.key: one.kind for one in found.left}
    assert kinds["type_of_model"] == kinds["model_config.rope_theta"] == "no effect"
    assert (kinds["model_config.router_aux_loss_coef"], kinds["model_config.output_router_logits"]) == (
        "not modelled", "no effect")
    other = imported(tmp_path, changed(RECIPE, type_of_model="AutoModelForSequenceClassification"))
    assert "type_of_model: a model of class AutoModelForSequenceClassification" in str(other.refused)
    older = imported(tmp_path, changed(RECIPE, overrides_of_model_config={"num_hidden_layers": 4}))
    assert older.values["model"]["overrides"] == {"num_hidden_layers": 4}


def test_arguments_of_a_packed_checkpoint_say_what_reads_them(tmp_path: Path) -> None:
    """axolotl 067b021c loaders/model.py:661."""
    kwargs = {"dequantize": True, "modules_to_not_convert": ["lm_head"]}
    alone = imported(tmp_path, changed(RECIPE, model_quantization_config_kwargs=kwargs))
    reasons = {one.why for one in alone.left if one.key.startswith("model_quantization_config_kwargs")}
    assert reasons == {"nothing reads it without model_quantization_config"}
    read = changed(RECIPE, model_quantization_config="Mxfp4Config", model_quantization_config_kwargs=kwargs)
    found = imported(tmp_path, read)
    found.expect_complete()
    assert "of layers that stay in few bits: none does" in {one.why for one in found.left}
    packed = imported(tmp_path, changed(read, load_in_4bit=True))
    assert "cannot be used together" in str(packed.wrong)


def test_plugins_that_log_and_targets_that_are_parameters(tmp_path: Path) -> None:
    """axolotl 067b021c integrations/swanlab, loaders/adapter.py:171: PEFT gets parameters in place of modules."""
    imported(tmp_path, changed(RECIPE, plugins=["axolotl.integrations.swanlab.SwanLabPlugin"])).expect_complete()
    text = changed(QLORA, lora_target_linear=False, lora_target_parameters=["mlp.experts.down_proj"])
    found = imported(tmp_path, text)
    assert not found.wrong
    assert "lora_target_parameters: parameters that are trained beside" in str(found.refused)


def test_weights_may_be_drawn_in_the_recipes_format(tmp_path: Path) -> None:
    """axolotl 067b021c loaders/model.py:816: in the format of the configuration, taken to be bf16."""
    imported(tmp_path, changed(RECIPE, reinit_weights=True)).expect_complete()
    other = imported(tmp_path, changed(RECIPE, reinit_weights=True, bf16=False, fp16=True))
    assert "reinit_weights: values that are drawn in the configuration's format" in str(other.refused)


def test_settings_of_bitsandbytes_are_of_four_bits(tmp_path: Path) -> None:
    """axolotl 067b021c loaders/model.py _set_quantization_config."""
    eight = changed(QLORA, load_in_4bit=False, load_in_8bit=True, adapter="lora",
                    bnb_config_kwargs={"bnb_4bit_quant_type": "fp4", "llm_int8_threshold": 3.0})
    found = imported(tmp_path, eight)
    found.expect_complete()
    assert found.values["training"]["quantization"]["format"] == "int8"
    four = imported(tmp_path, changed(QLORA, bnb_config_kwargs={"llm_int8_skip_modules": ["lm_head"]}))
    assert "llm_int8_skip_modules: layers that are not packed" in str(four.refused)
    packed = imported(tmp_path, changed(QLORA, group_by_length=True, debug=True))
    assert {one.key: one.why for one in packed.left if one.key in ("group_by_length", "debug")} == {
        "group_by_length": "which samples come into a pack", "debug": "messages"}


def test_transformers_takes_eager_attention_for_models_without_sdpa(tmp_path: Path) -> None:
    bare = RECIPE.replace("attn_implementation: flash_attention_2\n", "")
    without = bare.replace("qwen3-8b", "gpt-oss-20b")
    assert imported(tmp_path, without).values["framework_options"]["attn_implementation"] == "eager"
    assert "attn_implementation" not in imported(tmp_path, bare).values.get("framework_options", {})
    with pytest.raises(RankscopeError, match="sdp_attention: the model has no SDPA"):
        imported(tmp_path, without + "sdp_attention: true\n").expect_complete()


def test_bitsandbytes_in_8_bits_is_refused_under_fsdp_2_by_axolotls_own_rule(tmp_path: Path) -> None:
    """axolotl 067b021c utils/schemas/validation.py:1142 check_fsdp2_w_8bit_optimizer."""
    for optimizer, is_wrong in (("adamw_bnb_8bit", True), ("adamw_torch_8bit", False)):
        found = imported(tmp_path, changed(FSDP2, optimizer=optimizer))
        assert bool([one for one in found.wrong if "adamw_torch_8bit` instead" in one.message]) is is_wrong, optimizer


def test_keys_of_older_releases_are_passed_over_and_told(tmp_path: Path) -> None:
    """AxolotlInputConfig of 067b021c takes no keys but its own, and stops at none (pydantic's extra is ignore)."""
    told = imported(tmp_path, RECIPE + "eval_table_max_new_tokens: 128\nunsloth_rope: true\n")
    told.expect_complete()
    assert {one.key for one in told.left if one.kind == "not modelled" and "older releases" in one.why} == {
        "eval_table_max_new_tokens", "unsloth_rope"}


def test_a_model_that_is_named_after_one_that_is_built_in_is_asked_for(tmp_path: Path) -> None:
    found = imported(tmp_path, changed(RECIPE, base_model="me/Llama-3-Base-8B-SFT"))
    (asked,) = found.questions
    assert (asked.key, asked.where) == ("model", str(tmp_path / "mine.yaml:8"))
    assert "'me/Llama-3-Base-8B-SFT' is not built in, and by its name may be a llama-3-8b" in asked.text
    assert asked.option.endswith("such as llama-3-8b")
    answered = import_recipe([str(tmp_path / "mine.yaml")], Answers.of_options(4, None, "dgx-h100",
                                                                              {"model": "llama-3-8b"}))
    answered.expect_complete()


@pytest.mark.parametrize(("keys", "length"), [
    ({}, 512), ({"pad_to_sequence_len": True}, 512), ({"pad_to_sequence_len": False}, 500),
    ({"pad_to_multiple_of": 8}, 504), ({"sequence_len": 448}, 448)])
def test_samples_are_padded_in_steps_of_64(tmp_path: Path, keys: dict[str, Any], length: int) -> None:
    """067b021c core/builders/causal.py:386."""
    found = imported(tmp_path, changed(RECIPE, **{"sequence_len": 500, **keys}))
    assert found.values["training"]["seq_len"] == length
    found.expect_complete()


@pytest.mark.parametrize(("adapter", "listed"), [("lora", True), (None, False)])
def test_adapters_that_fsdp2_gathers_one_by_one_are_listed(tmp_path: Path, adapter: str | None, listed: bool) -> None:
    """axolotl makes a unit of each of their matrices, and the answer leaves that out."""
    rank, targets = (8, ["q_proj"]) if adapter else (None, None)
    text = changed(FSDP2, adapter=adapter, lora_r=rank, lora_target_modules=targets)
    left = [one for one in imported(tmp_path, text, 2).left if "_process_lora_module_for_fsdp" in one.why]
    assert [one.kind for one in left] == ["not modelled"] * listed
