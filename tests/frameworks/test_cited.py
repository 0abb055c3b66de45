"""Rules of Megatron are cited where the version that refuses has them."""

from __future__ import annotations

import pytest

from simcore.frameworks.cited import cited
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.simulate import check

MAIN = "main 2026-08-22"


@pytest.mark.parametrize(("rule", "version", "told"), [
    ("core 0.16.1 parallel_state.py:792", "", "core 0.16.1 parallel_state.py:792"),
    ("core 0.16.1 parallel_state.py:792", MAIN, f"Megatron-LM {MAIN} core parallel_state.py:881"),
    ("core 0.16.1 transformer_config.py:1371, transformer_block.py:175", MAIN,
     f"Megatron-LM {MAIN} core transformer/transformer_config.py:2306, transformer/transformer_block.py:176"),
    ("core 0.16.1 ssm/mamba_block.py:172", MAIN, f"Megatron-LM {MAIN} core ssm/mamba_block.py"),
    ("transformers 5.23 a.py:12", MAIN, "transformers 5.23 a.py:12")])
def test_lines_are_those_of_the_version(rule: str, version: str, told: str) -> None:
    assert cited(rule, version) == told


def test_a_refusal_on_main_names_mains_line() -> None:
    text = ("{name: a, framework: megatron, framework_version: main 2026-08-22, topology: dgx-h100, "
            "model: qwen3-30b-a3b, mesh: {dp_shard: 6, ep: 8, etp: 1}, "
            "training: {seq_len: 64, micro_batch_size: 1, global_batch_size: 6}}")
    scenario = parse_scenario(parse_document(text, "a.yaml"))
    (problem,) = check(scenario).problems
    assert problem.rule == f"Megatron-LM {MAIN} core parallel_state.py:881"
    (older,) = check(scenario.model_copy(update={"framework_version": "auto"})).problems
    assert older.rule == "core 0.16.1 parallel_state.py:792"
