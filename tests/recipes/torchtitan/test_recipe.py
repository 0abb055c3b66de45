"""Job configurations of torchtitan become the scenarios that a person would write, and every key is accounted for."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT
from recipes.torchtitan.scenario_text import WRITTEN
from samples_of_recipes import SAMPLES
from simcore.errors import RankscopeError
from simcore.inputs.document import Document, parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.inputs.training import Recompute
from simcore.models.graph import build, model_config
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.recipes.reader import Reader
from simcore.recipes.torchtitan.flavors import FLAVORS
from simcore.simulate import check, simulate

SAMPLE = SAMPLES["torchtitan"].text
PUBLISHED = """\
[model]
name = "llama3"
flavor = "8B"
%(converters)s
[optimizer]
name = "AdamW"
implementation = "fused"
[training]
local_batch_size = %(batch)d
seq_len = %(length)d
dtype = "float32"
mixed_precision_reduce = "float32"
[parallelism]
data_parallel_shard_degree = -1
context_parallel_degree = %(cp)d
[activation_checkpoint]
mode = "%(mode)s"
selective_ac_option = "op"
[compile]
enable = %(compile)s
components = %(components)s
[quantize.linear.float8]
filter_fqns = ["output"]
enable_fsdp_float8_all_gather = %(gather)s
"""
"""Keys of the runs of Llama 3.1 8B on torchtitan's page of benchmarks."""
WITHOUT_FILES = {"checkpoint": {"load": "none", "save": "none"}}
"""Runs on torchtitan's page have random values; peaks are those of steps."""
FP8 = 'converters = ["quantize.linear.float8"]'
EAGER = {"converters": "", "batch": 2, "length": 8192, "cp": 1, "mode": "selective", "compile": "false",
         "components": '["model"]', "gather": "false"}
RUNS: dict[str, tuple[int, dict[str, Any]]] = {
    "torchtitan-llama31-8b-8g-eager": (8, EAGER),
    "torchtitan-llama31-8b-128g-compile": (128, EAGER | {"compile": "true"}),
    "torchtitan-llama31-8b-8g-cp2-s65536": (8, EAGER | {"converters": FP8, "batch": 1, "length": 65536, "cp": 2,
                                                        "mode": "full", "compile": "true"}),
    "torchtitan-llama31-8b-h200-64g": (64, EAGER | {"converters": FP8, "compile": "true", "gather": "true",
                                                    "components": '["model", "loss"]'}),
}
STAGES = """\
[model]
name = "llama3"
flavor = "405B"
converters = ["float8"]
[training]
local_batch_size = 32
seq_len = 8192
dtype = "float32"
mixed_precision_reduce = "float32"
[optimizer]
name = "AdamW"
implementation = "fused"
[parallelism]
tensor_parallel_degree = 8
pipeline_parallel_degree = 8
pipeline_parallel_schedule = "Interleaved1F1B"
[activation_checkpoint]
mode = "full"
[compile]
enable = true
components = ["model"]
[float8]
filter_fqns = ["output"]
"""
SAVED = """\
{"job": {"config_file": null, "dump_folder": "./outputs", "description": "default job", "print_config": false,
"save_config_file": null, "custom_config_module": ""},
"profiling": {"enable_profiling": false, "save_traces_folder": "profile_traces", "profile_freq": 10,
"profiler_active": 1, "profiler_warmup": 3, "enable_memory_snapshot": false, "save_memory_snapshot_folder":
"memory_snapshot"},
"metrics": {"log_freq": 10, "enable_tensorboard": false, "disable_color_printing": false, "save_tb_folder": "tb",
"save_for_all_ranks": false, "enable_wandb": false},
"model": {"name": "llama3", "flavor": "debugmodel", "hf_assets_path": "./tests/assets/tokenizer", "tokenizer_path":
null, "converters": [], "print_after_conversion": false},
"optimizer": {"name": "AdamW", "lr": 0.0008, "beta1": 0.9, "beta2": 0.95, "eps": 1e-08, "weight_decay": 0.1,
"implementation": "fused", "early_step_in_backward": false},
"lr_scheduler": {"warmup_steps": 200, "total_steps": null, "decay_ratio": null, "decay_type": "linear",
"min_lr_factor": 0.0},
"training": {"dataset": "c4_test", "dataset_path": null, "local_batch_size": 8, "global_batch_size": -1, "seq_len":
2048, "max_norm": 1.0, "steps": 10000, "enable_cpu_offload": false, "dtype": "float32", "mixed_precision_param":
"bfloat16", "mixed_precision_reduce": "float32", "gc_freq": 50, "gc_debug": false, "dataloader": {"num_workers": 0,
"persistent_workers": false, "pin_memory": false, "prefetch_factor": null}},
"parallelism": {"data_parallel_replicate_degree": 1, "data_parallel_shard_degree": -1, "fsdp_reshard_after_forward":
"default", "tensor_parallel_degree": 1, "disable_loss_parallel": false, "enable_async_tensor_parallel": false,
"pipeline_parallel_degree": 1, "module_fqns_per_model_part": null, "pipeline_parallel_first_stage_less_layers": 1,
"pipeline_parallel_last_stage_less_layers": 1, "pipeline_parallel_layers_per_stage": null,
"pipeline_parallel_schedule": "1F1B", "pipeline_parallel_schedule_csv": "", "pipeline_parallel_microbatch_size": 1,
"pipeline_parallel_expert_parallel_overlap": true, "context_parallel_degree": 1, "context_parallel_load_balancer":
"headtail", "context_parallel_rotate_method": "allgather", "expert_parallel_degree": 1,
"expert_tensor_parallel_degree": 1, "expert_parallel_comm_backend": "standard"},
"checkpoint": {"enable": false, "enable_ft_dataloader_checkpoints": true, "folder": "checkpoint", "interval": 500,
"initial_load_path": null, "initial_load_model_only": true, "initial_load_in_hf": false,
"initial_load_in_hf_quantized": false, "last_save_model_only": true, "last_save_in_hf": false, "export_dtype":
"float32", "async_mode": "disabled", "keep_latest_k": 10, "load_step": -1, "exclude_from_loading": [],
"enable_first_step_checkpoint": false, "create_seed_checkpoint": false, "load_only": false},
"activation_checkpoint": {"mode": "selective", "selective_ac_option": "2",
"per_op_sac_force_recompute_mm_shapes_by_fqns": ["moe.router.gate"], "early_stop": false, "memory_budget": 0.5,
"visualize_memory_budget_pareto": false, "preserve_rng_state": true, "determinism_check": "default", "debug":
false},
"compile": {"enable": false, "components": ["model", "loss"], "backend": "inductor"},
"quantize": {"linear": {"float8": {"enable_fsdp_float8_all_gather": false,
"precompute_float8_dynamic_scale_for_fsdp": false, "recipe_name": null, "filter_fqns": [], "emulate": false}, "mx":
{"mxfp8_dim1_cast_kernel_choice": "triton", "recipe_name": "mxfp8_cublas", "filter_fqns": ["output"]}},
"grouped_mm": {"float8": {"fqns": []}, "mx": {"recipe_name": "mxfp8", "fqns": []}}},
"comm": {"init_timeout_seconds": 300, "train_timeout_seconds": 100, "trace_buf_size": 20000, "save_traces_folder":
"comm_traces", "save_traces_file_prefix": "rank_", "mode": "default"},
"memory_estimation": {"enable": false, "disable_fake_mode": false},
"fault_tolerance": {"enable": false, "process_group": "gloo", "process_group_timeout_ms": 10000, "replica_id": 0,
"group_size": 0, "min_replica_size": 1, "semi_sync_method": null},
"experimental": {"custom_import": "", "custom_args_module": ""},
"validation": {"enable": false, "dataset": "c4_validation", "dataset_path": null, "local_batch_size": 8, "seq_len":
2048, "freq": 10, "steps": -1, "dataloader": {"num_workers": 0, "persistent_workers": false, "pin_memory": false,
"prefetch_factor": null}},
"debug": {"seed": null, "deterministic": false, "deterministic_warn_only": false, "moe_force_load_balance": false}}
"""
"""Configuration that torchtitan 0.2.2 saves of a run with defaults alone (`config/job_config.py` JobConfig.to_dict)."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(text: str, gpus: int | None = 16, topology: str = "dgx-h100", name: str = "mine.toml",
             **settings: Any) -> Imported:
    Path(name).write_text(text, encoding="utf-8")
    return import_recipe([name], Answers.of_options(gpus, None, topology, settings))


def changed(old: str, new: str) -> str:
    assert SAMPLE.count(old) == 1
    return SAMPLE.replace(old, new)


def scenario(found: Imported) -> Scenario:
    found.expect_complete()
    return parse_scenario(found.document())


def refusal(text: str, gpus: int = 16) -> str:
    """Messages of a recipe: the reader's, or the engine's."""
    name = "mine.json" if text.startswith("{") else "mine.toml"
    try:
        problems = check(scenario(imported(text, gpus, name=name))).problems
    except RankscopeError as error:
        return "\n".join(map(str, error.problems))
    return "\n".join(f"{one.where}: {one.message}" for one in problems)


def published(name: str) -> dict[str, Any]:
    lines = (ROOT / "tests/truth/measured/torchtitan.jsonl").read_text(encoding="utf-8").splitlines()
    found: dict[str, Any] = next(run for run in map(json.loads, lines) if run["id"] == name)["scenario"]
    return found


# ---- recipe and scenario --------------------------------------------------------------------------------------------
def test_a_recipe_is_the_scenario_that_a_person_would_write() -> None:
    assert scenario(imported(SAMPLE)) == parse_scenario(parse_document(WRITTEN, "mine.yaml"))


@pytest.mark.parametrize("name", RUNS)
def test_a_published_run_is_its_scenario(name: str) -> None:
    """Kernel, repeated keys and units of releases before 0.2 are no keys of a recipe: --set gives them."""
    gpus, values = RUNS[name]
    truth = published(name)
    beside = {f"framework_options.{key}": value for key, value in truth["framework_options"].items()
              if key in ("wrap", "set_last_reshard", "sdpa_backend", "repeat_kv")}
    found = imported(PUBLISHED % values, gpus, truth["topology"]).with_settings(beside)
    assert scenario(found) == parse_scenario(Document("mine.toml", truth | {"name": "mine"} | WITHOUT_FILES))


@pytest.mark.parametrize(("components", "option"), [('["loss"]', "loss"), ('["model"]', "model"),
                                                    ('["model", "loss"]', True)])
def test_what_is_compiled(components: str, option: object) -> None:
    read = scenario(imported(PUBLISHED % (EAGER | {"compile": "true", "components": components})))
    assert read.framework_options["compile"] == option


def test_a_flavor_with_flex_attention_says_so() -> None:
    recipe = (PUBLISHED % EAGER).replace('flavor = "8B"', 'flavor = "8B_flex"')
    assert scenario(imported(recipe)).framework_options["attn"] == "flex"


def test_a_published_run_on_stages_is_its_scenario() -> None:
    truth = published("torchtitan-llama31-405b-512g-interleaved")
    beside = {f"framework_options.{key}": value for key, value in truth["framework_options"].items()
              if key != "compile"}
    recipe = staged("pipeline_parallel_microbatch_size = 4")
    found = imported(recipe, 512, truth["topology"]).with_settings(beside | {"model": truth["model"]})
    assert scenario(found) == parse_scenario(Document("mine.toml", truth | {"name": "mine"} | WITHOUT_FILES))


@pytest.mark.parametrize(("block", "load", "save"), [
    ("", "none", "none"), ("enable = false", "none", "none"), ("enable = true", "none", "sharded"),
    ('enable = true\ninitial_load_path = "a"', "sharded", "sharded"),
    ("enable = true\ninitial_load_in_hf = true", "sharded", "sharded"),
    ("enable = true\nload_only = true\ninitial_load_in_hf = true", "sharded", "none"),
    ("enable = false\ninitial_load_in_hf = true", "none", "none")])
def test_files_are_read_and_written_where_checkpoints_are_on(block: str, load: str, save: str) -> None:
    read = scenario(imported(f"{PUBLISHED % EAGER}[checkpoint]\n{block}\n")).checkpoint
    assert (read.load, read.save) == (load, save)


def test_a_run_that_writes_its_first_values_alone_is_refused() -> None:
    told = refusal(f"{PUBLISHED % EAGER}[checkpoint]\nenable = true\ncreate_seed_checkpoint = true\n")
    assert "checkpoint.create_seed_checkpoint: a run that writes its first values and ends" in told


def test_a_model_made_on_the_meta_device_is_not_whole_on_the_host() -> None:
    found = imported(PUBLISHED % EAGER + "[checkpoint]\nenable = true\ninitial_load_in_hf = true\n")
    host = simulate(scenario(found), timed=False).host
    assert host is not None
    load = next(phase for phase in host.phases if phase.phase == "load")
    assert "whole model" not in load.by_owner


def test_a_copy_that_waits_on_the_host_is_told() -> None:
    found = imported(PUBLISHED % EAGER + '[checkpoint]\nenable = true\nasync_mode = "async"\n')
    assert [(one.kind, one.key) for one in found.left if "async" in one.key] == [
        ("not modelled", "checkpoint.async_mode")]


def test_what_it_saves_as_json_is_read_alike() -> None:
    values = tomllib.loads(SAMPLE)
    values["training"]["dataset_path"] = None
    found = imported(json.dumps(values, indent=2), name="mine.json")
    assert scenario(found) == scenario(imported(SAMPLE))
    assert found.origins[("training", "micro_batch_size")].where.startswith("mine.json:")


def test_every_key_of_the_release_is_known() -> None:
    text = SAVED.replace('"debugmodel"', '"8B"').replace('"selective_ac_option": "2"', '"selective_ac_option": "op"')
    found = imported(text, name="mine.json")
    assert scenario(found).training.recompute == scenario(imported(SAMPLE)).training.recompute
    assert [one.key for one in found.left if one.kind != "no effect"] == []
    whole = json.loads(SAVED)
    assert len(found.used) + len(found.left) == sum(1 for _ in Reader(Document("mine.json", whole)).all())


def test_defaults_of_the_release_are_those_of_a_file_that_says_nothing() -> None:
    """Checkpointing apart, whose default is refused."""
    short = '[model]\nflavor = "8B"\n[training]\n[activation_checkpoint]\nmode = "none"\n'
    saved = SAVED.replace('"debugmodel"', '"8B"').replace('"mode": "selective"', '"mode": "none"')
    beside = {"training.precision.params": "fp32", "training.precision.grad_reduce": "fp32",
              "training.optimizer.implementation": "fused"}
    assert scenario(imported(saved, name="mine.json")) == scenario(imported(short).with_settings(beside))


def test_a_balancer_that_is_null_is_not_the_default() -> None:
    values = json.loads(SAVED)
    values["parallelism"]["context_parallel_load_balancer"] = None
    assert "null: sequences" not in refusal(json.dumps(values))
    values["parallelism"]["context_parallel_degree"] = 2
    assert "null: sequences that are not balanced" in refusal(json.dumps(values))


def test_what_it_leaves_open_is_asked_at_once() -> None:
    assert {one.key for one in imported(SAMPLE, None, "").questions} == {"topology", "mesh.dp_shard"}


def test_origins_name_line_and_key() -> None:
    origins = {".".join(map(str, path)): str(origin) for path, origin in imported(SAMPLE).origins.items()}
    assert origins["training.global_batch_size"] == "mine.toml:16 training.global_batch_size"
    assert origins["model"] == "mine.toml:6: qwen3 14B (torchtitan 0.2.2 models/qwen3/__init__.py)"
    assert origins["mesh.dp_shard"].startswith("--gpus 16: GPUs over the other degrees: 16 / (pipeline_parallel_degree")


# ---- defaults -------------------------------------------------------------------------------------------------------
def test_what_a_recipe_leaves_out_is_the_releases_default() -> None:
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nsteps = 3\n[activation_checkpoint]\nmode = "none"\n'
    found = scenario(imported(text))
    training = found.training
    assert (training.seq_len, training.micro_batch_size, training.global_batch_size) == (2048, 8, 128)
    assert training.recompute == "none"


def test_checkpointing_of_every_second_layer_is_the_default() -> None:
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nsteps = 3\n'
    for more, size in (("", 2), ('[activation_checkpoint]\nmode = "selective"\n', 2),
                       ('[activation_checkpoint]\nselective_ac_option = "3"\n', 3)):
        assert scenario(imported(text + more)).training.recompute == Recompute(mode="every", num_layers=size)
    assert "selective checkpointing most" in refusal(text + '[activation_checkpoint]\nselective_ac_option = "most"\n')


def test_every_layer_is_the_same_as_full() -> None:
    found = scenario(imported(changed('selective_ac_option = "op"', 'selective_ac_option = "1"')))
    assert found.training.recompute == "full"


def test_a_global_batch_of_minus_one_is_one_batch_of_every_rank() -> None:
    found = scenario(imported(changed("global_batch_size = 48", "global_batch_size = -1")))
    assert found.training.global_batch_size == 3 * 16


def test_an_empty_table_says_nothing() -> None:
    text = '[model]\nflavor = "8B"\n[training]\n[quantize.linear]\n[activation_checkpoint]\nmode = "none"\n'
    found = imported(text)
    assert {one.key for one in found.left if one.kind != "default"} == {"training", "quantize.linear"}
    assert "unknown key 'trainings'" in refusal(text + "[trainings]\n")
    assert scenario(found).model == "llama-3.1-8b"


# ---- stages ---------------------------------------------------------------------------------------------------------
def staged(more: str, batch: str = "local_batch_size = 32") -> str:
    return STAGES.replace("local_batch_size = 32", batch).replace("pipeline_parallel_degree = 8\n",
                                                                  f"pipeline_parallel_degree = 8\n{more}\n")


def test_stages_follow_from_the_layers_of_each() -> None:
    pipeline = scenario(imported(staged("pipeline_parallel_layers_per_stage = 4"), 512)).training.pipeline
    assert pipeline.virtual_stages == 4  # (126 + 2) / 4 = 32 stages on 8 ranks
    pipeline = scenario(imported(staged("pipeline_parallel_layers_per_stage = 1"), 512)).training.pipeline
    assert pipeline.virtual_stages == 16  # the embedding and the output count as a layer each
    assert "makes 26 stages of 126 layers" in refusal(staged("pipeline_parallel_layers_per_stage = 5"), 512)
    assert "makes 8 stages of 126 layers" in refusal(staged("pipeline_parallel_layers_per_stage = 16"), 512)


def test_a_microbatch_of_stages_is_not_the_local_batch() -> None:
    found = scenario(imported(staged("pipeline_parallel_microbatch_size = 4"), 512)).training
    assert (found.micro_batch_size, found.global_batch_size) == (4, 256)


def test_several_schedules_in_a_step_are_refused() -> None:
    both = staged("", "local_batch_size = 32\nglobal_batch_size = 512")
    assert "mine.toml:7: not yet: training.global_batch_size: several schedules" in refusal(both, 512)


# ---- refusals -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("old", "new", "message"), [
    ("seq_len = 256", "seq_length = 256", "mine.toml:17: unknown key 'training.seq_length'"),
    ('name = "qwen3"', 'name = "flux"', "mine.toml:5: not yet: model.name: flux: a model that is not simulated"),
    ('flavor = "14B"', 'flavor = "15B"', "mine.toml:6: not yet: model.flavor: 15B: no flavor of torchtitan 0.2.2"),
    ('flavor = "14B"', 'flavor = "4B"', "Parameter 'output.weight' is shared with a parameter already managed"),
    ("converters = []", 'converters = ["mx"]', "mine.toml:7: not yet: model.converters: converter mx"),
    ("converters = []", 'converters = ["quantize.linear.float8"]', "blocks that are not compiled"),
    ("[debug]", "[experimental]\ncustom_import = 'os'\n[debug]", "experimental.custom_import: code of one's own, os"),
    ("[debug]", "[fault_tolerance]\nenable = true\n[debug]", "not yet: fault_tolerance.enable: torchft"),
    ("tensor_parallel_degree = 1", "tensor_parallel_degree = 3", "--gpus 16: 16 GPUs are no multiple of"),
    ("tensor_parallel_degree = 1", "tensor_parallel_degree = 2\ncontext_parallel_degree = 2",
     "mine.toml:31: not yet: tensor parallelism of torchtitan's Qwen3 beside context parallelism"),
    ("shard_degree = -1", "shard_degree = 0", "mine.toml:29: parallelism.data_parallel_shard_degree 0: expected"),
    ("size = 48", "size = 0", "mine.toml:16: training.global_batch_size 0: expected -1, or"),
    ("shard_degree = -1", "shard_degree = 4", "--gpus 16: the recipe is for 8 GPUs: parallelism.data_parallel_shard_"
                                              "degree is 4 (mine.toml:29)"),
    ('"allgather"', '"alltoall"\ncontext_parallel_degree = 2', "keys and values exchanged by alltoall"),
    ('mixed_precision_param = "bfloat16"', 'mixed_precision_param = "half"', "mine.toml:20: not yet: training.mixed_"),
])
def test_what_is_not_simulated_is_refused_by_name(old: str, new: str, message: str) -> None:
    assert message in refusal(changed(old, new))


@pytest.mark.parametrize(("more", "message"), [
    ("pipeline_parallel_first_stage_less_layers = 0", "a first stage that counts as 0 layers more"),
    ('pipeline_parallel_schedule_csv = "a.csv"', "a schedule that is read from a file"),
    ("module_fqns_per_model_part = [['tok_embeddings']]", "stages that are listed module by module"),
])
def test_what_stages_do_not_serve_is_refused_by_name(more: str, message: str) -> None:
    assert message in refusal(staged(more), 512)


def test_scales_are_read_or_refused_by_name() -> None:
    one = STAGES.replace('["output"]', '["output"]\nrecipe_name = "%s"')
    assert scenario(imported(one % "rowwise", 512)).framework_options["fp8_recipe"] == "rowwise"
    assert "recipe_name: products in fp8 with scales rowwise_with_gw_hp" in refusal(one % "rowwise_with_gw_hp", 512)


def test_other_linears_in_fp8_are_refused() -> None:
    assert 'float8.filter_fqns: products in fp8 in other linears' in refusal(
        STAGES.replace('["output"]', '["output", "wk"]'), 512)
    assert "model.converters: products in fp8 in other linears" in refusal(
        STAGES.replace('filter_fqns = ["output"]', 'emulate = false'), 512)


def test_the_configuration_of_later_releases_is_refused_by_name() -> None:
    text = json.dumps({"model_spec": {"name": "llama3", "flavor": "8B", "model": {"dim": 4096}},
                       "training": {"max_context_length": 8192}})
    assert "model_spec.flavor: the configuration of a release after 0.2.2" in refusal(text)


@pytest.mark.parametrize(("word", "resharded"), [("never", False), ("always", True), ("default", None)])
def test_when_parameters_are_sharded_again(word: str, resharded: bool | None) -> None:
    found = imported(changed('"always"', f'"{word}"'))
    assert found.values["framework_options"].get("reshard_after_forward") is resharded


@pytest.mark.parametrize(("name", "flavor"), [(name, flavor) for name in FLAVORS for flavor in FLAVORS[name]
                                              if not flavor.startswith("debugmodel")])
def test_a_flavor_of_a_published_model_has_its_sizes(name: str, flavor: str) -> None:
    turned = {"no_rope_layers"} if name == "llama4" else set()  # the published ones leave out others
    multi_token = {"num_nextn_predict_layers"} if flavor == "671B" else set()
    assert set(FLAVORS[name][flavor].changed()) == multi_token | turned


def test_flavors_have_the_sizes_of_torchtitan() -> None:
    found = imported('[model]\nname = "deepseek_v3"\nflavor = "debugmodel"\n[training]\n[activation_checkpoint]\n'
                     'mode = "none"\n')
    assert found.values["model"] == {"config": "deepseek-v2-lite", "overrides": {
        "hidden_size": 256, "num_hidden_layers": 6, "intermediate_size": 1024, "moe_intermediate_size": 256,
        "n_routed_experts": 8, "num_experts_per_tok": 3, "vocab_size": 2048}}
    asked = imported(SAMPLE, model="qwen3-8b").with_settings({"model": "qwen3-8b"})
    assert scenario(asked).model == "qwen3-8b"


def test_flavors_of_llama_4_are_those_that_torchtitan_builds() -> None:
    """Parameters on the meta device, and which of the first five layers rotate (0.2.2 `models/llama4`)."""
    built = {"debugmodel": 15_017_216, "17bx16e": 107_769_861_120, "17bx128e": 400_711_848_960}
    for name, count in built.items():
        for ending, turned in (("", [1] * 5), ("_irope", [0, 1, 1, 1, 0])):
            flavor = FLAVORS["llama4"][name + ending]
            fields = model_config(flavor.preset, flavor.changed(), "")
            assert build(fields, "torchtitan").count() == count, name
            assert fields["no_rope_layers"][:5] == turned, name


ASYNC = "tensor_parallel_degree = 8\nenable_async_tensor_parallel = true\n"


def test_asynchronous_tensor_parallelism_fuses_nothing_in_this_release() -> None:
    """Measured: Inductor's pass over a compiled block of 0.2.2 finds no group with symmetric memory."""
    text = STAGES.replace("tensor_parallel_degree = 8\n", ASYNC)
    assert text != STAGES
    found = imported(text, 512)
    said = next(one for one in found.left if one.key == "parallelism.enable_async_tensor_parallel")
    assert "fuses no product" in said.why
    assert "async_tp" not in scenario(found).framework_options


def test_asynchronous_tensor_parallelism_without_compile_stops_as_upstream_does() -> None:
    text = STAGES.replace("tensor_parallel_degree = 8\n", ASYNC).replace("enable = true", "enable = false")
    assert "Async TP requires 'model'" in refusal(text, 512)
