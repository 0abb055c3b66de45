"""From a scenario to a job, and everything that is refused before anything is simulated."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout, InputError, NotYet, RankscopeError
from simcore.frameworks.registry import known_frameworks
from simcore.frameworks.setup import prepare
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario


def test_frameworks_are_files() -> None:
    assert known_frameworks() == (
        "automodel", "ddp", "fsdp1", "fsdp2", "megatron", "megatron_fsdp", "zero0", "zero1", "zero2", "zero3")


@pytest.mark.parametrize(("name", "implementation"), [("fsdp2", "hf"), ("automodel", "automodel"),
                                                      ("megatron", "megatron")])
def test_a_framework_brings_its_implementation(name: str, implementation: str) -> None:
    job, table = small.prepared(name)
    assert (job.graph.implementation, table.name) == (implementation, name)


@pytest.mark.parametrize(("mesh", "etp"), [({"tp": 2}, 2), ({"tp": 2, "etp": 1}, 1), ({}, 1)])
def test_omitted_expert_tensor_parallelism_is_the_frameworks(mesh: dict[str, int], etp: int) -> None:
    assert small.prepared("megatron", mesh)[0].mesh.etp == etp


def test_lora_freezes_what_was_there() -> None:
    job, _ = small.prepared("fsdp2", method="lora", lora={"rank": 4, "target_modules": ["q_proj"]})
    assert job.graph.count(trainable=True) == job.graph.count("adapters") == 4 * (256 + 256)


def given(**changed: Any) -> str:
    base = {"name": "x", "model": small.TINY, "framework": "fsdp2", "topology": "dgx-h100", "training": {"seq_len": 64}}
    with pytest.raises((InputError, NotYet)) as refused:
        prepare(parse_scenario(parse_document(json.dumps(base | changed), "x.json")))
    return str(refused.value)


@pytest.mark.parametrize(("changed", "told"), [
    ({"framework": "fsdp"}, "unknown framework 'fsdp'"), ({"framework": "fsdp"}, "did you mean 'fsdp2'?"),
    ({"framework_version": "torch 1.0"}, "expected one of torch 2.13, got 'torch 1.0'"),
    ({"implementation": "jax"},
     "expected auto or one of autoep, automodel, hf, hf4, hub, kempnerforge, llmfoundry, megatron, torchtitan, got "
     "'jax'"),
    ({"model": "gpt-2"}, "unknown model 'gpt-2'"),
    ({"framework_options": {"x": 1}}, "unknown option 'x'")])
def test_what_is_not_known_is_refused(changed: dict[str, Any], told: str) -> None:
    assert told in given(**changed)


@pytest.mark.parametrize(("training", "told"), [
    ({"offload": {"activations": "host"}}, "on the host"),
    ({"pipeline": {"virtual_stages": 2}}, "virtual stages"),
    ({"pipeline": {"schedule": "dualpipe"}}, "schedule dualpipe"),
    ({"routing": {"seed": 0}}, "routing"),
    ({"precision": {"compute": "fp8"}}, "compute in fp8")])
def test_what_is_not_served_is_named_and_never_ignored(training: dict[str, Any], told: str) -> None:
    text = given(training={"seq_len": 64, **training})
    assert "not yet" in text
    assert told in text


@pytest.mark.parametrize(("framework", "targets", "told"), [
    ("automodel", "[q_proj, v_proj]", "matched by target_modules q_proj, v_proj: '*q_proj', '*v_proj' are, since a "
                                      "target is compared with the whole path of a module ["),
    ("fsdp2", "[query, value]", "matched by target_modules query, value: its modules are q_proj, k_proj, v_proj, ")])
def test_targets_that_match_nothing_are_told_with_their_line_and_the_way_out(framework: str, targets: str,
                                                                             told: str) -> None:
    text = (f"name: s\nmodel: llama-3.2-1b\nframework: {framework}\ntopology: dgx-h100\nmesh: {{dp_shard: 4}}\n"
            f"training:\n  method: lora\n  seq_len: 64\n  lora:\n    rank: 8\n    target_modules: {targets}\n")
    with pytest.raises(IllegalLayout) as refused:
        prepare(parse_scenario(parse_document(text, "s.yaml")))
    assert str(refused.value).startswith("s.yaml:11: ")
    assert told in str(refused.value)
    assert "PEFT" not in str(refused.value)


def test_everything_unserved_is_told_at_once() -> None:
    text = given(training={"seq_len": 64, "pipeline": {"schedule": "dualpipe"}, "method": "lora",
                           "lora": {"dtype": "fp8"}})
    assert text.count("not yet") == 2


def test_a_base_in_4_bits_is_for_qlora_alone() -> None:
    assert "quantization: changes nothing with method lora" in given(
        training={"seq_len": 64, "method": "lora", "quantization": {"double_quant": False}})


@pytest.mark.parametrize(("framework", "kind", "told"), [
    ("megatron", IllegalLayout, "bitsandbytes packs torch.nn.Linear"),
    ("megatron_fsdp", IllegalLayout, "bitsandbytes packs torch.nn.Linear"),
    ("fsdp1", IllegalLayout, "write use_orig_params"),
    ("automodel", NotYet, "qlora of a model with experts under automodel")])
def test_who_has_no_base_in_4_bits_says_why(framework: str, kind: type[RankscopeError], told: str) -> None:
    with pytest.raises(kind, match=told):
        small.prepared(framework, method="qlora")


def test_a_model_has_no_more_positions_than_it_learned() -> None:
    with pytest.raises(InputError, match="seq_len: expected at most 1024, the positions that the model has learned, "
                                         "got 2048"):
        small.prepared("megatron", model="gpt2", seq_len=2048)
    assert small.prepared("megatron", model="gpt2", seq_len=1024)


def test_experts_of_a_packed_base_are_said_to_stay_whole() -> None:
    _, table = small.prepared("ddp", method="qlora")
    assert table.default("quantization of experts") == "none: they stay in 16 bits"
    _, dense = small.prepared("ddp", model="llama-tiny", method="qlora")
    assert dense.default("quantization of experts") is None


def test_a_field_that_the_scenario_overrides_is_named_by_its_line() -> None:
    text = ("name: a\nmodel:\n  config: gpt2\n  overrides:\n    n_layer: 2\n    activation_function: relu2\n"
            "framework: megatron\ntopology: dgx-h100\ntraining: {seq_len: 64, global_batch_size: 1}\n")
    for given, line in ((text, 6), (text.replace("function: relu2", "function: gelu\n    n_embd: 0"), 7)):
        with pytest.raises(InputError) as found:
            prepare(parse_scenario(parse_document(given, "a.yaml")))
        assert found.value.problems[0].where == f"a.yaml:{line}"
    asked = parse_document(text, "a.yaml").with_value(("model", "overrides", "activation_function"), "relu", "--set x")
    with pytest.raises(InputError, match=r"--set x: model configuration: activation_function: expected gelu_new or"):
        prepare(parse_scenario(asked))
