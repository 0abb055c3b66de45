"""GRPO recipes of NeMo RL whose engine is SGLang: what the server is told, and what is refused by its key."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from recipes.nemo_rl.test_recipe import GRPO, imported
from simcore.inputs.generation import Generation
from simcore.inputs.scenario import parse_scenario
from simcore.simulate import check

SERVER: Final = "sglang_server_config: {needs_offload: true, cpu_weight_backup: true, num_gpus: 8}"
OVER: Final = """\
policy:
  generation:
    backend: sglang
    max_new_tokens: 500
    sglang_cfg: {tp_size: 2, dp_size: 1, pp_size: 1, ep_size: 1, context_length: 512, max_running_requests: null,
                 mem_fraction_static: 0.6, disable_cuda_graph: false, disable_piecewise_cuda_graph: true,
                 attention_backend: triton, %s,
                 sglang_router_config: {use_external_router: false}}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""


def generation(tmp_path: Path, text: str) -> Generation:
    found = imported(tmp_path, GRPO, text)
    found.expect_complete()
    scenario = parse_scenario(found.document())
    assert not check(scenario).problems
    assert scenario.generation is not None
    return scenario.generation


def test_an_engine_is_what_the_server_is_told(tmp_path: Path) -> None:
    """Kernels that are asked for never reach it; prompts are what answers leave of a sequence."""
    asked = generation(tmp_path, OVER % SERVER)
    assert asked == Generation(engine="sglang", tp=2, max_model_len=512, gpu_memory_utilization=0.6,
                               enforce_eager=False, sleep_level=1, colocated=True)


@pytest.mark.parametrize(("server", "level"), [
    ("sglang_server_config: {needs_offload: true, cpu_weight_backup: false}", 2),
    ("sglang_server_config: {needs_offload: false, cpu_weight_backup: true}", 0)])
def test_what_is_released_while_the_policy_trains(tmp_path: Path, server: str, level: int) -> None:
    assert generation(tmp_path, OVER % server).sleep_level == level


@pytest.mark.parametrize(("old", "new", "told"), [
    ("dp_size: 1", "dp_size: 2", "an engine over copies: 2"),
    ("disable_piecewise_cuda_graph: true", "disable_piecewise_cuda_graph: false", "graphs of prompts in pieces"),
    ("context_length: 512", "context_length: 512, chunked_prefill_size: 4096", "a setting of SGLang that is not"),
    ("context_length: 512", "context_length: 512, kv_cache_dtype: fp8_e4m3", "a cache in fp8_e4m3")])
def test_what_is_refused_by_its_key(tmp_path: Path, old: str, new: str, told: str) -> None:
    found = imported(tmp_path, GRPO, (OVER % SERVER).replace(old, new))
    assert any(told in problem.message for problem in found.refused), found.refused


def test_sglangs_own_share_of_memory_is_not_described(tmp_path: Path) -> None:
    found = imported(tmp_path, GRPO, (OVER % SERVER).replace("mem_fraction_static: 0.6", "mem_fraction_static: null"))
    assert any("mem_fraction_static: expected a number" in problem.message for problem in found.wrong)
