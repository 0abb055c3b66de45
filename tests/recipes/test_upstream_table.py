"""The table of upstream's recipes: the page has what is stored, and what is stored adds up."""

from __future__ import annotations

import re
from typing import Any

import pytest

from recipes.jobs import IMAGES, OTHER, TEXT, job_of
from recipes.upstream import OUTCOMES
from recipes.upstream_table import PAGE, filled, reasons, rule_of, stored, table

ROWS = stored()


def test_the_page_has_what_is_stored() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page, ROWS), "run: PYTHONPATH=tests python -m recipes.upstream_table --page"
    assert table(ROWS) in page
    for theirs in (True, False):
        assert reasons(ROWS, "Bridge", theirs=theirs) in page


def test_what_upstream_refuses_itself_is_told_apart_with_its_rule() -> None:
    """Every rule of theirs names a file of upstream."""
    theirs, ours = (reasons(ROWS, "Bridge", theirs=which) for which in (True, False))
    assert all(re.search(r"`[\w/]+\.py(:\d+)?`", line) for line in theirs.splitlines()[2:])
    for words in ("world_size (", "training.global_batch_size: expected a multiple", "fp8 by mxfp8", "in fp4",
                  "should be divisible by pipeline_model_parallel_size", "has no build_schedule_plan"):
        assert words in theirs
        assert words not in ours
    assert not rule_of("model.moe_paged_stash: pages of experts' activations")


def test_another_count_is_another_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    more: list[dict[str, Any]] = [{**row, "counts": {**row["counts"], "refused": 1 + row["counts"].get("refused", 0)}}
                                  for row in ROWS]
    assert filled(page, more) != page


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_row_says_where_its_recipes_are_and_what_became_of_each(row: dict[str, Any]) -> None:
    assert all(re.fullmatch(r"[0-9a-f]{8}|v[0-9.]+", part["commit"]) for part in row["of"])
    assert {*row["counts"]} <= {*OUTCOMES}
    assert sum(row["counts"].values()) > 0
    assert row["counts"].get("traceback", 0) == 0
    counted = [sum(row["jobs"][kind][place] for kind in (TEXT, IMAGES)) for place in (0, 1)]
    assert counted[0] <= counted[1] <= sum(row["counts"].values())
    assert all(answered <= every for answered, every in row["jobs"].values())
    if "loose" in row:
        assert sum(row["loose"].values()) == sum(row["counts"].values())
    assert max(row["why"].values(), default=0) <= sum(row["counts"].values())


@pytest.mark.parametrize(("path", "text", "said", "job"), [
    ("/0/examples/llm_finetune/qwen/qwen3_8b_squad.yaml", "", "", TEXT),
    ("/0/examples/vlm_finetune/gemma4/gemma4_4b.yaml", "", "", IMAGES),
    ("/0/examples/qwen2-vl/lora-7b.yaml", "base_model: a\nprocessor_type: AutoProcessor\n", "", IMAGES),
    ("/0/examples/mimo/mimo-7b-qlora.yml", "", "", TEXT),
    ("/0/qwen35_vl_9b_sft_8gpu_h100_bf16_config.sh", "", "", IMAGES),
    ("/0/ministral3_8b_sft_2gpu_h100_bf16_config.sh", "", "", IMAGES),
    ("/0/examples/llm_finetune/mistral/ministral3_3b_squad.yaml", "", "", TEXT),
    ("/0/tests/functional_tests/test_cases/gpt/one/model_config.yaml", "", "", TEXT),
    ("/0/tests/functional_tests/test_cases/gpt/one/model_config.yaml", "", "not yet: generation of text", OTHER),
    ("/0/examples/sglang_multiturn/config/gsm8k_multiturn_grpo.yaml", "", "", OTHER),
    ("/0/examples/sglang_multiturn/run_qwen2.5-3b_gsm8k_multiturn.sh", "", "", TEXT),
    ("/0/tests/functional_tests/test_cases/hybrid/one/model_config.yaml", "A: 1\nMODE: inference\n", "", OTHER),
    ("/0/tests/functional_tests/test_cases/gpt-nemo/t5-nemo_220m/model_config.yaml", "", "", OTHER),
    ("/0/tests/functional_tests/test_cases/gpt-nemo/llama3-nemo_8b/model_config.yaml", "", "", TEXT),
    ("/0/tests/functional_tests/test_cases/bert/one/model_config.yaml", "", "", OTHER),
    ("/0/examples/modelopt/qa_grpo_math_megatron.yaml", "", "", TEXT),
    ("/0/examples/configs/evals/mmlu.yaml", "", "", OTHER),
    ("/0/wan_14b_sft_8gpu_h100_bf16_config.sh", "", "", OTHER)])
def test_the_job_of_a_recipe_is_told_by_its_path_its_keys_and_its_refusals(path: str, text: str, said: str,
                                                                         job: str) -> None:
    assert job_of(path, text, [said]) == job
