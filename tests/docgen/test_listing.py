"""Lists of what is there are read off the code's own tables."""

from __future__ import annotations

import pytest

from simcore.docgen.listing import examples, frameworks, machines, models, option_lines, options
from simcore.docgen.served import served
from simcore.errors import InputError
from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.hardware.topology import topology_names
from simcore.inputs.shipped import example
from simcore.models.graph import known_presets


def test_every_model_machine_and_framework_is_listed() -> None:
    assert [record["name"] for record in models()] == list(known_presets())
    assert [record["name"] for record in machines()] == list(topology_names())
    assert [record["name"] for record in frameworks()] == list(known_frameworks())


def test_lists_stand_without_stored_answers_of_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of answers is made again later than a framework or a model is added: nothing fails until then."""
    stored = {name: {**entry, "answers": {key: words for key, words in entry["answers"].items() if key != "zero0"}}
              for name, entry in served().items() if name != "qwen3-8b"}
    monkeypatch.setattr("simcore.docgen.listing.served", lambda: stored)
    [new] = [record for record in frameworks() if record["name"] == "zero0"]
    assert (new["methods"], new["models"]) == ([], 0)
    assert len(models()) == len(known_presets()) - 1


def test_a_model_has_its_size_its_repository_and_its_methods() -> None:
    [found] = [record for record in models() if record["name"] == "qwen3-8b"]
    assert (found["family"], found["parameters"], found["layers"]) == ("qwen3", 8_190_735_360, 36)
    assert found["repository"] == "Qwen/Qwen3-8B"
    assert "Qwen/Qwen3-8B-Base" in found["other_names"]
    assert found["methods"]["megatron"] == ["full", "lora"]


def test_a_machine_has_its_memory_and_its_price() -> None:
    found = {record["name"]: record for record in machines()}
    assert found["dgx-h100"] == {"name": "dgx-h100", "gpu": "NVIDIA H100 80GB HBM3", "usable_gib": 79.11,
                                 "gpus_per_node": 8, "usd_per_gpu_hour": 2.95}
    assert found["v100-16gb"]["usd_per_gpu_hour"] is None


def test_every_option_has_a_line_and_every_line_an_option() -> None:
    names = {name for framework in known_frameworks() for implementation in framework_adapter(
        framework).implementations for name in framework_adapter(framework).options(implementation)}
    assert set(option_lines()) == names
    assert list(option_lines()) == sorted(option_lines())
    assert max(map(len, option_lines().values())) <= 76


def test_options_have_values_and_the_default_of_the_table() -> None:
    found = {record["name"]: record for record in options("megatron")}
    assert found["moe_token_dispatcher_type"]["values"] == ["alltoall", "flex", "allgather"]
    assert found["moe_token_dispatcher_type"]["default"] == "alltoall"
    assert found["use_distributed_optimizer"]["default"] == "true"
    assert found["bucket_size"]["values"] == ["null", "integer"]
    assert {record["name"]: record["layers"] for record in options("fsdp2")}["packed_experts"] == ["kempnerforge"]
    assert set(found) == set(framework_adapter("megatron").options("megatron"))


def test_an_unknown_framework_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown framework 'fsdp3': .*did you mean 'fsdp2'"):
        options("fsdp3")


def test_every_example_has_a_title_a_question_and_runs_by_its_name() -> None:
    for record in examples():
        assert record["title"]
        assert record["question"].endswith("?") or "." in record["question"], record["name"]
        assert record["files"]
        assert example(record["name"]).is_dir()
