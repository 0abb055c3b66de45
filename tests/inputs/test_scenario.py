"""A scenario: its defaults, its bounds, and the words in which mistakes are told."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from simcore.errors import InputError
from simcore.inputs.bounds import BATCH
from simcore.inputs.document import parse_document
from simcore.inputs.loading import load
from simcore.inputs.scenario import MAX_RANKS, Scenario, parse_scenario, scenario_schema

HEAD = "name: a\nmodel: m\nframework: f\ntopology: t\n"  # four lines: what a test adds starts on line 5
FULL: dict[str, Any] = {
    "name": "full", "workload": "grpo", "model": {"config": "config.json", "overrides": {"num_hidden_layers": 12}},
    "implementation": "hf", "framework": "fsdp2", "framework_version": "2.9.1",
    "topology": {"file": "dgx-h100", "num_nodes": 2, "gpus_per_node": 4, "power_limit": "500 W"},
    "mesh": {"pp": 2, "dp_replicate": 1, "dp_shard": 4, "cp": 2, "tp": 1, "ep": 4, "etp": 1},
    "training": {
        "method": "qlora", "seq_len": 2048, "micro_batch_size": 2, "global_batch_size": 16, "num_tokens": 10**12,
        "images": 3, "image_height": 448, "image_width": 616, "num_samples": None, "num_epochs": None,
        "dataset_size": None,
        "lengths": {"mean": 900, "max": 2048, "seed": 0, "draws": 1000, "distribution": "lognormal", "sigma": 1.0},
        "packed_length": None, "scored_tokens": None, "logprob_chunk_size": None, "sequence_parallel": False,
        "recompute": {"mode": "block", "num_layers": 2, "modules": ["moe"]},
        "pipeline": {"schedule": "1f1b", "virtual_stages": 2, "layers": [6, 6]}, "loss": "te_inplace",
        "routing": {"seed": 0, "draws": 1000, "concentration": 1.0},
        "precision": {"params": "fp32", "experts": "fp8", "compute": "bf16", "grad_reduce": "fp32",
                      "main_grads": "fp32"},
        "optimizer": {"name": "adamw", "implementation": "te", "master": "fp32", "moments": "bf16", "paged": True,
                      "momentum": None, "weight_decay": None, "low_rank": None},
        "offload": {"params": "host", "optimizer": {"space": "nvme", "fraction": 0.5}, "gradients": "none",
                    "activations": "none"},
        "frozen": ["model.embed_tokens", "*norm*"],
        "lora": {"rank": 16, "alpha": 32.0, "dropout": 0.1, "dropout_position": "pre", "use_dora": True,
                 "use_rslora": True, "target_modules": ["q_proj"], "exclude_modules": [],
                 "expert_adapters": "auto", "dtype": "bf16", "modules_to_save": []},
        "quantization": {"format": "nf4", "block_size": 64, "double_quant": True},
    },
    "rl": {"trainer": "nemo_rl", "version": "auto", "prompts": 2, "generations": 8, "logprob_batch_size": 1,
           "reference": "none",
           "generated_prompts": 6, "prompt_tokens": 512, "mean_tokens": 900,
           "asynchronous": False, "steps_ahead": 1, "on_policy_ratio": False, "refit_buffer": 0.3, "refit_bucket": 2048,
           "param_offload": False, "optimizer_offload": False,
           "chunks": 1, "epochs": 2, "layered_summon": False, "sync_reference": False, "reference_params": "auto",
           "gather_for_generation": True,
           "critic": {"model": "qwen3-0.6b", "micro_batch_size": 2, "global_batch_size": 16, "values_batch_size": 4,
                      "mesh": {"pp": 1, "dp_replicate": 1, "dp_shard": 8, "cp": 1, "tp": 2, "ep": 1, "etp": None},
                      "sequence_parallel": True, "implementation": "auto", "framework_options": {},
                      "recompute": "full", "params": "fp32", "param_offload": True, "optimizer_offload": False},
           "reward": {"model": "llama-3-8b", "tp": 2, "gpu_memory_utilization": 0.4, "max_num_seqs": 64,
                      "max_num_batched_tokens": 4096, "enforce_eager": False}},
    "teacher": {"model": "qwen3-32b", "implementation": "auto", "mesh": {
        "pp": 2, "dp_replicate": 1, "dp_shard": 2, "cp": 1, "tp": 4, "ep": 1, "etp": None}, "sequence_parallel": True,
        "top_k": 32, "framework_options": {}},
    "generation": {"engine": "vllm", "version": "0.12.0", "colocated": True, "tp": 4, "engines": 1,
                   "expert_parallel": False, "gpu_memory_utilization": 0.7, "max_model_len": 2048, "max_num_seqs": 256,
                   "max_num_batched_tokens": 8192, "chunked_prefill": True, "profiles_images": True,
                   "kv_cache_memory": "20 GiB", "block_size": None, "quantization": "auto",
                   "unquantized": [], "kv_dtype": "auto", "ssm_dtype": "fp32", "mamba_cache_mode": "auto",
                   "prefix_caching": False, "num_speculative_tokens": 0, "accepted_tokens": 0, "enforce_eager": True,
                   "max_loras": 1, "max_lora_rank": 32, "sleep_level": 1},
    "framework_options": {"reshard_after_forward": None, "wrap": "layers_root"},
    "checkpoint": {"load": "rank0", "save": "sharded", "merge": "host", "export": "job"},
    "evaluation": {"micro_batch_size": 4, "seq_len": 2048, "sequences": 64, "keep_logits": True,
                   "accumulation_steps": 2, "generate_tokens": 16},
    "environment": {"cublas_workspace_config": ":4096:8", "expandable_segments": True},
    "limits": {"usable_memory": "79 GiB", "max_fill": 0.92},
}  # fmt: skip


def parse(text: str) -> Scenario:
    return parse_scenario(parse_document(text, "f.yaml"))


def told(text: str) -> list[str]:
    with pytest.raises(InputError) as refused:
        parse(HEAD + text)
    return [str(problem) for problem in refused.value.problems]


def test_defaults() -> None:
    scenario = parse(HEAD + "training: {seq_len: 128}")
    assert scenario.world_size == scenario.num_microbatches == 1
    assert scenario.training.global_batch_size is None
    assert scenario.mesh.etp is None
    assert scenario.training.precision.model_dump() == {
        "params": "auto", "experts": "auto", "compute": "bf16", "grad_reduce": "auto", "main_grads": "auto"
    }  # fmt: skip
    assert (scenario.rl, scenario.generation, scenario.swept) == (None, None, False)


def test_every_key_of_the_interface() -> None:
    scenario = parse(json.dumps(FULL))
    assert scenario.normalised() == FULL
    assert scenario.world_size == 2 * 4 * 2
    assert scenario.num_microbatches == 16 // (2 * 4)
    assert scenario.training.recompute != "none"


@pytest.mark.parametrize(
    "text",
    [
        "recompute: full", "recompute: [moe, layernorm]", "recompute: {mode: per_op}", "lengths: packed",
        "routing: {imbalance: 1.3}", "routing: {capacity_factor: 1.0}", "sequence_parallel: true",
        "lora: {alpha: 32}", "offload: {activations: host}", "pipeline: {layers: auto}", "optimizer: {name: sgd}",
    ],
)  # fmt: skip
def test_other_spellings_of_the_interface(text: str) -> None:
    written = parse_document(text, "f").data
    normalised = parse(f"{HEAD}training: {{seq_len: 128, {text}}}").normalised()["training"]
    for key, value in written.items():
        if isinstance(value, dict):
            assert {inner: normalised[key][inner] for inner in value} == value
        else:
            assert normalised[key] == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training: {seq_len: .nan}", ["f.yaml:5: training.seq_len: expected a whole number, got nan"]),
        ("training:\n  seq_len: NaN", ["f.yaml:6: training.seq_len: expected a whole number, got 'NaN'"]),
        ("training: {seq_len: 1}\nmesh:\n  tp: true", ["f.yaml:7: mesh.tp: expected a whole number, got true"]),
        ("training: {seq_len: 1}\nmesh:\n  tp: 0", ["f.yaml:7: mesh.tp: expected at least 1, got 0"]),
        ("training: {seq_len: 1}\nmesh: {tp: '8'}", ["f.yaml:6: mesh.tp: expected a whole number, got '8'"]),
        ("training: {seq_len: 1}\nmesh: {tp: 2.0}", ["f.yaml:6: mesh.tp: expected a whole number, got 2.0"]),
        ("training: {seq_len: 1}\nmesh: {tp: 1000000000000000000000000000000}",
         ["f.yaml:6: mesh.tp: expected at most 1048576, got 1000000000000000000000000000000"]),
        ("training: {seq_len: 1}\nmesh: {tp: -1e400}", ["f.yaml:6: mesh.tp: expected a whole number, got -inf"]),
        ("training: {seq_len: 1}\nmesh: {tensor: 2}",
         ["f.yaml:6: unknown key 'mesh.tensor'; the keys here are pp, dp_replicate, dp_shard, cp, tp, ep, etp"]),
        ("training:\n  seq_len: 1\n  precision:\n    computes: bf16",
         ["f.yaml:8: unknown key 'training.precision.computes'; did you mean 'compute'?"]),
        ("training: {seq_len: 1}\nmesh.tp: 2",
         ["f.yaml:6: unknown key 'mesh.tp': blocks are nested, write mesh: {tp: ...}"]),
        ("training: {seq_len: 1}\ntraining.precision.compute: bf16",
         ["f.yaml:6: unknown key 'training.precision.compute': blocks are nested, write "
          "training: {precision: {compute: ...}}"]),
        ("training: {seq_len: 1}\ntrainning: {}", ["f.yaml:6: unknown key 'trainning'; did you mean 'training'?"]),
        ("training: {seq_len: 1, offload: {params: {space: host, part: 1}}}",
         ["f.yaml:5: unknown key 'training.offload.params.part'; the keys here are space, fraction"]),
        ("training: {seq_len: 1}\nframework_version: 2.10",
         ["f.yaml:6: framework_version: expected text in quotes, got 2.1"]),
        ("training: {seq_len: 1, precision: {compute: bf61}}",
         ["f.yaml:5: training.precision.compute: expected 'auto', 'fp32', 'bf16', 'fp16', 'fp8', 'fp4' "
          "(did you mean 'bf16'?), got 'bf61'"]),
        ("training: {seq_len: 1, lora: {alpha: .inf}}",
         ["f.yaml:5: training.lora.alpha: expected a finite number, got inf"]),
        ("training: {seq_len: 1}\nframework_options: {a: [.nan]}",
         ["f.yaml:6: framework_options: expected finite numbers, got nan at a.0"]),
        ("training: {seq_len: 1, routing: {imbalance: 2, seed: 1}}",
         ["f.yaml:5: unknown key 'training.routing.seed': it does not go with the other keys here"]),
        ("training: {seq_len: 1}\nmesh: {dp_shard: 1048576, dp_replicate: 1048576}",
         ["f.yaml:6: mesh: expected at most 4194304 ranks, got 1099511627776"]),
    ],
)  # fmt: skip
def test_a_mistake_is_told_where_it_is(text: str, expected: list[str]) -> None:
    assert told(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "recompute: ful", "recompute: {mode: uniform, num_layers: 0}", "recompute: [1]", "recompute: null",
        "lengths: {mean: 9, max: 3}", "lengths: {mean: 9}", "routing: {}",
        "routing: {imbalance: 0.5}", "sequence_parallel: 1", "offload: {params: [host]}",
        "offload: {params: {space: host, fraction: 1.5}}", "method: dora", "num_tokens: 1.5", "lora: {rank: 0}",
        "lora: {target_modules: all}", "lora: {dropout: 1}", "quantization: {block_size: 0}", "global_batch_size: 0",
        "micro_batch_size: true", "optimizer: null", "pipeline: {layers: [1.5]}", 'recompute: ["a\\e[0m"]',
    ],
)  # fmt: skip
def test_wrong_values_are_refused_with_their_key(text: str) -> None:
    messages = told(f"training: {{seq_len: 128, {text}}}")
    assert len(messages) == 1
    assert messages[0].startswith(f"f.yaml:5: training.{text.partition(':')[0]}")


@pytest.mark.parametrize(("text", "told_words"), [
    ("num_tokens: 5, num_samples: 5", "num_tokens and num_samples: expected one of them"),
    ("num_samples: 5, num_epochs: 1, dataset_size: 2", "num_samples and num_epochs: expected one of them"),
    ("num_epochs: 1", "num_epochs: expected dataset_size beside it"),
    ("dataset_size: 7", "dataset_size: expected num_epochs beside it"),
    ("num_epochs: 0, dataset_size: 7", "num_epochs: expected"), ("num_samples: 0", "num_samples: expected"),
    ("num_epochs: .nan, dataset_size: 7", "num_epochs: expected")])
def test_a_run_has_one_length(text: str, told_words: str) -> None:
    (message,) = told(f"training: {{seq_len: 128, {text}}}")
    assert told_words in message


@pytest.mark.parametrize(("text", "share"), [("92%", 0.92), ("0.92", 0.92), ("100 %", 1.0), ("1", 1.0)])
def test_a_share_is_a_number_or_a_percentage(text: str, share: float) -> None:
    assert parse(HEAD + f"training: {{seq_len: 1}}\nlimits: {{max_fill: {text}}}").limits.max_fill == share


@pytest.mark.parametrize("text", ["0%", "101%", "-5%", "9x%", "92"])
def test_shares_that_are_refused(text: str) -> None:
    (message,) = told(f"training: {{seq_len: 1}}\nlimits: {{max_fill: {text}}}")
    assert message.startswith("f.yaml:6: limits.max_fill: expected ")


def test_all_problems_are_told_together() -> None:
    messages = told("training: {seq_len: x}\nmesh: {tp: 0, eep: 2}\nlimits: {max_fill: 2}\nfoo: 1")
    assert [message.split(": ")[0].removeprefix("f.yaml:") for message in messages] == ["6", "6", "5", "7", "8"]


def test_missing_keys_are_told() -> None:
    with pytest.raises(InputError) as refused:
        parse("framework: f\n")
    missing = {problem.message.split(":")[0] for problem in refused.value.problems}
    assert missing == {"name", "model", "topology", "training"}


@pytest.mark.parametrize("name", ['"a\\u0007"', '"a\\nb"', '""', "x" * 201, "null", "[a]", "7"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"^f.yaml:1: name: expected "):
        parse(f"name: {name}\n" + HEAD.partition("\n")[2] + "training: {seq_len: 1}")


@pytest.mark.parametrize("usable", ["auto", "80 GB", "79.5 GiB"])
def test_memory_with_unit(usable: str) -> None:
    assert parse(f"{HEAD}training: {{seq_len: 1}}\nlimits: {{usable_memory: {usable}}}").limits.usable_memory == usable


@pytest.mark.parametrize("usable", ["80", "80 GX", "0 B", "lots", "-1 GiB"])
def test_memory_without_a_known_unit(usable: str) -> None:
    assert "limits.usable_memory: expected" in told(f"training: {{seq_len: 1}}\nlimits: {{usable_memory: {usable}}}")[0]


def test_a_batch_that_does_not_divide_shows_its_numbers() -> None:
    text = "training:\n  seq_len: 1\n  micro_batch_size: 3\n  global_batch_size: 100\n"
    text += "mesh: {dp_shard: 4, dp_replicate: 2}"
    (message,) = told(text)
    assert message.startswith("f.yaml:8: training.global_batch_size: ")
    assert all(number in message for number in ("24", " 3 ", " 2 ", " 4)", "100"))


def test_context_parallel_ranks_share_a_batch() -> None:
    scenario = parse(HEAD + "training: {seq_len: 1, global_batch_size: 6}\nmesh: {dp_shard: 3, cp: 4, tp: 5, pp: 7}")
    assert scenario.num_microbatches == 2


def test_places() -> None:
    scenario = parse(HEAD + "training:\n  seq_len: 1\n")
    assert scenario.where("training", "seq_len") == "f.yaml:6"
    assert scenario.where("training", "lora", "rank") == "f.yaml:5"
    made = Scenario.model_validate(scenario.normalised())
    assert made.where("training", "seq_len") == "training.seq_len"
    assert made == scenario
    with pytest.raises(InputError) as refused:
        _ = Scenario.model_validate({**made.normalised(), "training": {"seq_len": 1, "global_batch_size": 3},
                                     "mesh": {"dp_shard": 2}}).num_microbatches  # fmt: skip
    assert refused.value.problems[0].where == "training.global_batch_size"


def test_frozen_and_picklable() -> None:
    scenario = parse(HEAD + "training: {seq_len: 1}")
    with pytest.raises(ValidationError):
        scenario.mesh.tp = 2
    again = pickle.loads(pickle.dumps(scenario))  # noqa: S301
    assert again == scenario
    assert again.where("training") == "f.yaml:5"


def test_defaults_are_not_shared_with_the_normalised_form() -> None:
    scenario = parse(HEAD + "training: {seq_len: 1}")
    scenario.normalised()["framework_options"]["x"] = 1
    assert scenario.normalised()["framework_options"] == {}


def mappings(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all mappings whose keys are closed here."""
    if isinstance(value, dict) and path[-1:] not in (("overrides",), ("framework_options",)):
        yield path
        for key, inner in value.items():
            yield from mappings(inner, (*path, key))


@settings(deadline=None)
@given(st.data())
def test_a_random_key_edit_is_always_noticed(data: st.DataObject) -> None:
    edited = copy.deepcopy(FULL)
    inner = edited
    for key in (path := data.draw(st.sampled_from(sorted(mappings(FULL))))):
        inner = inner[key]
    key = data.draw(st.sampled_from(sorted(inner)))
    at = data.draw(st.integers(0, len(key)))
    letter = data.draw(st.sampled_from("abz_- 1"))
    new = data.draw(st.sampled_from([key[:at] + letter + key[at:], key[:at] + key[at + 1 :], key.upper()]))
    assume(new not in inner)
    assume(path or new != "sweep")
    inner[new] = inner.pop(key)
    with pytest.raises(InputError) as refused:
        parse(json.dumps(edited))
    assert any(f"unknown key {'.'.join((*path, new))!r}" in problem.message for problem in refused.value.problems)


degrees = st.integers(1, 2**10)


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    axes = st.sets(st.sampled_from(["dp_replicate", "dp_shard", "cp", "ep", "etp"]))
    mesh = {axis: draw(degrees) for axis in draw(axes)}
    assume(math.prod(mesh.get(axis, 1) for axis in ("dp_replicate", "dp_shard", "cp")) <= MAX_RANKS)
    training: dict[str, Any] = {"seq_len": draw(st.integers(1, 2**20)), "micro_batch_size": draw(st.integers(1, 64))}
    if draw(st.booleans()):
        per_pass = training["micro_batch_size"] * mesh.get("dp_replicate", 1) * mesh.get("dp_shard", 1)
        assume(per_pass <= BATCH)
        training["global_batch_size"] = per_pass * draw(st.integers(1, min(16, BATCH // per_pass)))
    training |= draw(st.fixed_dictionaries({}, optional={key: st.just(FULL["training"][key]) for key in (
        "lengths", "recompute", "pipeline", "routing", "offload", "lora", "optimizer")}))  # fmt: skip
    letters = st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cn", "Zl", "Zp"))
    names = st.text(letters, min_size=1, max_size=40)
    top = {"name": draw(names), "model": draw(names), "framework": "fsdp2", "topology": "t", "training": training}
    return {**top, "mesh": mesh}


@settings(deadline=None)
@given(scenarios())
def test_normalised_round_trips(tmp_path_factory: pytest.TempPathFactory, written: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "again.json"
    path.write_text(json.dumps(written), encoding="utf-8")
    (scenario,) = load(path)
    path.write_text(json.dumps(scenario.normalised()), encoding="utf-8")
    (again,) = load(path)
    assert again.normalised() == scenario.normalised()
    assert again == scenario
    assert again.num_microbatches == scenario.num_microbatches


LEAVES = [("mesh", "tp"), ("training", "seq_len"), ("training", "global_batch_size"), ("training", "lora", "rank")]


@settings(deadline=None)
@given(st.sampled_from(LEAVES), st.sampled_from([True, "8", 2.5, 0, -1, 10**30, float("nan"), float("inf"), [], {}]))
def test_no_whole_number_is_guessed(key_path: tuple[str, ...], value: object) -> None:
    document = parse_document(json.dumps(FULL), "f.yaml").with_value(key_path, value, "here:3")
    with pytest.raises(InputError) as refused:
        parse_scenario(document)
    assert [problem.where for problem in refused.value.problems] == ["here:3"]


def test_schema_names_every_key() -> None:
    schema = scenario_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert set(schema["properties"]) == {*FULL, "search", "sweep"}
    assert schema["additionalProperties"] is False
    assert set(schema["$defs"]["Training"]["properties"]) == set(FULL["training"])
    blocks = [schema, *schema["$defs"].values()]
    assert all("description" in field for block in blocks for field in block["properties"].values())
    json.dumps(schema)


@pytest.mark.parametrize(("written", "tokens"), [("1e9", 10**9), ("1.5e12", 15 * 10**11), ("1_000", 1000), ("7", 7)])
def test_a_run_is_as_long_as_people_write_it(written: str, tokens: int) -> None:
    text = ("name: a\nmodel: llama-tiny\nframework: fsdp2\ntopology: dgx-h100\n"
            f"training: {{seq_len: 8, num_tokens: {written}}}")
    asked = parse_scenario(parse_document(text, "f.yaml")).training.num_tokens
    assert (asked, type(asked)) == (tokens, int)


def test_an_engine_wants_to_know_how_long_sequences_are() -> None:
    with pytest.raises(InputError, match=r"generation\.max_model_len: expected a whole number of tokens"):
        parse_scenario(parse_document(json.dumps({
            "name": "s", "workload": "serve", "model": "llama-tiny", "topology": "dgx-h100"}), "s.json"))
