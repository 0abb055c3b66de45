"""Megatron's arguments of a scenario: what argparse has by default is not written, and other layers are refused."""

from __future__ import annotations

import pytest

from recipes.round_trip import read_back
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.recipes.conversion.converting import convert

PLAIN = """\
name: mine
model: {MODEL}
framework: megatron
topology: dgx-h100
mesh: {dp_shard: 4, tp: 2, etp: 1}
training: {seq_len: 512, global_batch_size: 64}
"""


def scenario(model: str, more: str = "") -> Scenario:
    return parse_scenario(parse_document(PLAIN.replace("{MODEL}", model) + more, "mine.yaml"))


@pytest.mark.parametrize("model", ["qwen3-8b", "qwen3-30b-a3b", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v3",
                                   "deepseek-v2", "deepseek-v2-lite", "moonlight-16b-a3b",
                                   "nemotron-3-nano-30b-a3b", "qwen2.5-7b", "gpt-oss-20b"])
def test_models_are_written_by_their_layers(model: str) -> None:
    asked = scenario(model)
    made = convert(asked, "megatron")
    made.expect_complete()
    assert read_back(made, asked).training.seq_len == 512


def test_defaults_are_not_written() -> None:
    text = convert(scenario("llama-3.1-8b"), "megatron").text
    assert "--tensor-model-parallel-size 2\n" in text
    assert "--pipeline-model-parallel-size" not in text
    assert text.endswith('torchrun --nproc-per-node 8 pretrain_gpt.py "${ARGUMENTS[@]}"\n')


def test_options_of_buffers_are_written() -> None:
    asked = scenario("llama-3.1-8b", "framework_options: {nccl_ub: true, num_buckets: 4}\n")
    made = convert(asked, "megatron")
    made.expect_complete()
    assert "--use-nccl-ub\n" in made.text
    assert read_back(made, asked).framework_options.items() >= {"nccl_ub": True, "num_buckets": 4}.items()


def test_layers_on_the_host_are_written_and_read() -> None:
    asked = scenario("llama-3.1-8b", "framework_options: {cpu_offloading_num_layers: 7}\n")
    asked = parse_scenario(asked.document.with_value(("training", "offload"), {"activations": "host"}, "here"))
    made = convert(asked, "megatron")
    made.expect_complete()
    assert "--cpu-offloading-num-layers 7\n" in made.text
    found = read_back(made, asked)
    assert found.training.offload.part("activations") == ("host", 1.0)
    assert found.framework_options["cpu_offloading_num_layers"] == 7


@pytest.mark.parametrize(("grads", "sent"), [("fp32", "auto"), ("bf16", "bf16"), ("fp32", "bf16")])
def test_megatron_fsdp_has_formats_of_gradients_of_its_own(grads: str, sent: str) -> None:
    text = PLAIN.replace("{MODEL}", "llama-3.1-8b").replace(
        "framework: megatron", "framework: megatron_fsdp\nframework_version: main 2026-08-22").replace(
        "{seq_len", f"{{precision: {{main_grads: {grads}, grad_reduce: {sent}}}, seq_len")
    asked = parse_scenario(parse_document(text, "mine.yaml"))
    made = convert(asked, "megatron")
    made.expect_complete()
    assert f"--megatron-fsdp-main-grads-dtype {grads}\n" in made.text
    assert ("--megatron-fsdp-grad-comm-dtype bf16\n" in made.text) == (sent == "bf16" != grads)
    assert read_back(made, asked).training.precision.main_grads == grads


def test_adapters_are_refused() -> None:
    made = convert(parse_scenario(parse_document(PLAIN.replace("{MODEL}", "llama-3.1-8b").replace(
        "{seq_len", "{method: lora, seq_len"), "mine.yaml")), "megatron")
    assert [one.message for one in made.refused] == [
        "not yet: training.method: lora: Megatron-LM's arguments have no adapters (--to bridge has)"]


@pytest.mark.parametrize(("options", "written"), [
    ("{use_distributed_optimizer: false}", {"--overlap-grad-reduce"}),
    ("{use_distributed_optimizer: false, overlap_grad_reduce: false}", set()),
    ("{use_distributed_optimizer: false, overlap_param_gather: false}", {"--overlap-grad-reduce"}),
    ("{overlap_grad_reduce: false}", {"--use-distributed-optimizer"}),
    ("{overlap_param_gather: false}", {"--use-distributed-optimizer", "--overlap-grad-reduce"}),
    ("{}", {"--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"})])
def test_parameters_are_gathered_only_with_the_distributed_optimizer(options: str, written: set[str]) -> None:
    """Megatron-LM main training/arguments.py:1024."""
    asked = scenario("llama-3.1-8b", f"framework_options: {options}\n")
    made = convert(asked, "megatron")
    made.expect_complete()
    said = {"--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"}
    assert said & set(made.text.split()) == written
    options_read = read_back(made, asked).framework_options
    assert options_read.get("overlap_grad_reduce") is ("--overlap-grad-reduce" in written)


def test_muon_over_whole_layers_gathers_nothing_ahead() -> None:
    asked = parse_scenario(scenario("llama-3.1-8b").document.with_value(
        ("training", "optimizer"), {"name": "dist_muon"}, "here"))
    made = convert(asked, "megatron")
    made.expect_complete()
    assert "--overlap-param-gather" not in made.text
