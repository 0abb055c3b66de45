"""The layout of the pipeline is made anew where a launch changes stages, as Bridge's launchers do."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.bridge.test_recipe import imported
from recipes.looked_into import messages, value
from simcore.errors import InputError
from simcore.frameworks.megatron.pipeline_layout import num_chunks
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.bridge.named import launch_of
from simcore.simulate import check

LAYOUT = "framework_options.pipeline_model_parallel_layout"
V3 = "deepseek_v3_pretrain_1024gpu_h100_bf16_config"
RUN = "torchrun --nnodes 128 --nproc-per-node 8 scripts/training/run_recipe.py --recipe {} {}"
PERFORMANCE = "python scripts/performance/run_script.py -ng 1024 -mr {} {}"


@pytest.mark.parametrize(("words", "ends"), [
    ("-pp 8 -vp 2", [5, 4, 3]), ("-pp 1 -vp 1", None),
    ("-pp 8 model.virtual_pipeline_model_parallel_size=null", [9, 8, 7]),
    ("-pp 4 -vp 2 model.pipeline_model_parallel_layout='Et*8|(t*8|)*6t*5mL'", None)])
def test_a_recipe_with_a_function_for_its_layout_calls_it_again(tmp_path: Path, words: str,
                                                                ends: list[int] | None) -> None:
    """recipes/deepseek/h100/deepseek_v3.py:50: 61 layers in chunks of 16, 8 or 4, the last with what is left."""
    layout = value(imported(tmp_path, RUN.format(V3, words)), LAYOUT)
    if ends is None:
        assert layout == ("Et*8|(t*8|)*6t*5mL" if "layout" in words else None)
        return
    assert [len(layout[0]), len(layout[1]), len(layout[-1])] == ends
    assert sum(chunk.count("decoder") for chunk in layout) == 61
    assert layout[-1][-2:] == ["mtp", "loss"]


def test_its_place_says_who_made_it(tmp_path: Path) -> None:
    found = imported(tmp_path, RUN.format(V3, "-pp 8 -vp 2"))
    assert messages(found) == ""
    origin = str(found.origins["framework_options", "pipeline_model_parallel_layout"])
    assert origin.startswith(f"{tmp_path}/run.sh:1 -pp (made for it by _get_deepseek_v3_pipeline_layout: ")


def test_stages_without_a_layout_are_refused_as_upstream() -> None:
    with pytest.raises(InputError, match=r"Invalid PP and VP size: 32 and 4: .* for 1 x 1, 4 x 1, 4 x 2, 4 x 4, 8 x 1"):
        launch_of(RUN.format(V3, "-pp 32"), "run.sh")
    launch_of(RUN.format("kimi_k2_pretrain_512gpu_h100_bf16_config", "-pp 2 -vp 8"), "run.sh")


def test_the_performance_launcher_keeps_deepseeks_layout_and_lets_kimis_go(tmp_path: Path) -> None:
    """scripts/performance/utils/overrides.py:600-624."""
    kept = launch_of(PERFORMANCE.format("deepseek_v3_pretrain_256gpu_b200_fp8mx_config", "-pp 32 -vp 1"), "run.sh")
    made = launch_of(PERFORMANCE.format("deepseek_v3_pretrain_256gpu_b200_fp8mx_config", "-pp 8 -vp 1"), "run.sh")
    assert num_chunks(kept.document.data["model"]["pipeline_model_parallel_layout"]) == 16
    assert num_chunks(made.document.data["model"]["pipeline_model_parallel_layout"]) == 8
    kimi = launch_of(PERFORMANCE.format("kimi_k2_pretrain_256gpu_b200_bf16_config", "-pp 32"), "run.sh")
    assert kimi.document.data["model"]["pipeline_model_parallel_layout"] is None


@pytest.mark.parametrize(("words", "left"), [
    ("-pp 4", [10, 10]), ("-pp 16", [None, None]), ("-pp 1", [None, None]), ("-vp 2", [10, 10]),
    ("-pp 16 model.num_layers_in_first_pipeline_stage=8", [8, None]),
    ("-pp 16 model.num_layers_in_first_pipeline_stage=8 model.num_layers_in_last_pipeline_stage=8", [8, 8])])
def test_layers_of_the_ends_that_do_not_fit_are_let_go(words: str, left: list[int | None]) -> None:
    """GLM-4.5 has 92 layers, of which 10 are on the first and on the last stage; those that are given stay."""
    model = launch_of(RUN.format("glm45_355b_pretrain_128gpu_h100_bf16_config", words), "run.sh").document.data["model"]
    assert [model[f"num_layers_in_{end}_pipeline_stage"] for end in ("first", "last")] == left


@pytest.mark.parametrize(("said", "rule"), [
    ("p2p", "DSAttention context parallelism currently supports cp_comm_type=allgather only"),
    ("allgather", "an indexer of keys")])
def test_an_exchange_that_glm_5_cannot_have_is_no_default(tmp_path: Path, said: str, rule: str) -> None:
    words = f"glm51_sft_416gpu_h100_bf16_config model.cp_comm_type={said} model.context_parallel_size=2"
    assert rule in str(check(parse_scenario(imported(tmp_path, words).document())))
