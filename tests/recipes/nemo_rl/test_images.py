"""Images of a recipe of NeMo RL whose model has a vision tower: written or asked, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.results.report import Report
from simcore.simulate import simulate

QWEN: Final = "Qwen/Qwen2.5-VL-3B-Instruct"
GRPO: Final = """\
grpo: {num_prompts_per_step: 8, num_generations_per_prompt: 16}
loss_fn: {reference_policy_kl_penalty: 0.01}
policy:
  model_name: MODEL
  train_global_batch_size: 128
  train_micro_batch_size: 1
  logprob_batch_size: 4
  max_total_sequence_length: 2048
  precision: bfloat16
  dtensor_cfg: {enabled: false}
  megatron_cfg: {enabled: true, tensor_model_parallel_size: 1, pipeline_model_parallel_size: 1,
                 context_parallel_size: 1, apply_rope_fusion: true, optimizer: {optimizer: adam, bf16: true}}
  generation:
    backend: vllm
    max_new_tokens: 1024
    vllm_cfg: {tensor_parallel_size: 1, max_model_len: 2048, gpu_memory_utilization: 0.6}
    vllm_kwargs: {KWARG}
data: {train: {dataset_name: DATA}, default: {processor: PROCESSOR}}
cluster: {gpus_per_node: 2, num_nodes: 1}
"""


def recipe(folder: Path, *, model: str = QWEN, data: str = "clevr-cogent", processor: str = "vlm_hf_data_processor",
           kwarg: str = "mm_processor_cache_gb: 0", workers: str = "megatron", switches: str = "", sees: bool = False,
           **settings: Any) -> Imported:
    changed = {"apply_rope_fusion: true,": f"apply_rope_fusion: true, {switches + ',' * bool(switches)}",
               "  precision: bfloat16\n": "  precision: bfloat16\n" + "  is_vlm: true\n" * sees, "MODEL": model,
               "DATA": data, "PROCESSOR": processor, "KWARG": kwarg}
    text = GRPO
    for old, new in changed.items():
        text = text.replace(old, new)
    if workers != "megatron":
        more = workers.removeprefix("dtensor")
        text = text.replace("dtensor_cfg: {enabled: false}", f"dtensor_cfg: {{enabled: true, _v2: true{more}}}")
        text = text.replace(
            "megatron_cfg: {enabled: true", "megatron_cfg: {enabled: false")
    (folder / "mine.yaml").write_text(text, encoding="utf-8")
    answers = {f"training.{name}": value for name, value in settings.items()}
    return import_recipe([str(folder / "mine.yaml")], Answers.of_options(None, None, "dgx-h100", answers)
                         ).with_settings(answers)


def refused(found: Imported) -> str:
    return "; ".join(problem.message for problem in found.refused)


def simulated(found: Imported) -> Report:
    found.expect_complete()
    report = simulate(parse_scenario(found.document()))
    assert report.status == "ok", report.problems
    return report


def test_samples_of_known_data_have_one_image_and_others_are_asked(tmp_path: Path) -> None:
    for data in ("clevr-cogent", "geometry3k", "refcoco"):
        found = recipe(tmp_path, data=data)
        assert found.values["training"]["images"] == 1, data
        assert [question.key for question in found.questions] == ["training.image_height"], data
    assert [question.key for question in recipe(tmp_path, data="mmpr-tiny").questions] == [
        "training.images", "training.image_height"]


def test_text_alone_and_limits_of_images_are_refused_beside_a_tower_alone(tmp_path: Path) -> None:
    alone: dict[str, Any] = {"data": "OpenMathInstruct-2", "processor": "math_hf_data_processor"}
    assert "a vision tower that is given text alone" in refused(recipe(tmp_path, **alone))
    assert "dataset_name: samples with a video and its sound" in refused(recipe(tmp_path, data="daily-omni"))
    for kwarg in ("language_model_only: true", "limit_mm_per_prompt: {image: 0}", "limit_mm_per_prompt: {video: 1}"):
        assert "an engine with other limits of images than vLLM's defaults" in refused(recipe(tmp_path, kwarg=kwarg))
        text = recipe(tmp_path, model="Qwen/Qwen2.5-1.5B", kwarg=kwarg, **alone)
        assert not text.refused, kwarg
        assert not text.questions, kwarg


def test_limits_of_images_change_nothing_where_videos_are_as_large(tmp_path: Path) -> None:
    assert not recipe(tmp_path, kwarg="limit_mm_per_prompt: {image: 1}").refused
    assert "other limits of images" in refused(recipe(tmp_path, model="google/gemma-3-4b-it",
                                                      kwarg="limit_mm_per_prompt: {image: 1}"))


def test_a_profile_run_that_leaves_images_out_reads_no_limits(tmp_path: Path) -> None:
    found = recipe(tmp_path, kwarg="skip_mm_profiling: true, limit_mm_per_prompt: {image: 2}")
    assert not found.refused
    assert found.values["generation"]["profiles_images"] is False
    assert "profiles_images" not in recipe(tmp_path, kwarg="skip_mm_profiling: false").values["generation"]


def test_switches_that_freeze_the_towers_of_nemotron_omni(tmp_path: Path) -> None:
    omni, skips = "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16", "skip_mm_profiling: true"
    switches = "freeze_vision_model: true, freeze_vision_projection: true, freeze_sound_encoder: false"
    found = recipe(tmp_path, model=omni, kwarg=skips, switches=switches)
    assert found.values["training"]["frozen"] == ["vision_model", "vision_projector"]
    assert "frozen" not in recipe(tmp_path, model=omni, kwarg=skips).values["training"]
    assert "frozen parts of another tower" in refused(recipe(tmp_path, switches="freeze_vision_model: true"))


def test_a_policy_that_sees_has_a_tower(tmp_path: Path) -> None:
    assert not recipe(tmp_path, sees=True).refused
    assert "images for a model of which no tower is known" in refused(recipe(tmp_path, model="Qwen/Qwen2.5-1.5B",
                                                                             sees=True))


def test_terms_of_the_loss_inside_the_text_s_configuration_change_nothing(tmp_path: Path) -> None:
    """Other fields there are refused by name."""
    text = GRPO.replace("MODEL", f"{QWEN}\n  hf_config_overrides: {{text_config: {{FIELD}}}}")
    for field, refusal in (("router_aux_loss_coef: 0.0", ""), ("num_hidden_layers: 2", "not yet: policy.hf_config_"
                           "overrides.text_config.num_hidden_layers: fields of a configuration inside")):
        (tmp_path / "mine.yaml").write_text(text.replace("FIELD", field).replace(
            "PROCESSOR", "vlm_hf_data_processor").replace("KWARG", "mm_processor_cache_gb: 0").replace(
            "DATA", "refcoco"), encoding="utf-8")
        found = import_recipe([str(tmp_path / "mine.yaml")], Answers.of_options(None, None, "dgx-h100", {}))
        assert refused(found).startswith(refusal), field
        assert bool(found.refused) == bool(refusal), field
        assert found.values["model"] == QWEN, field


def test_rotation_by_time_row_and_column_is_not_fused(tmp_path: Path) -> None:
    assert recipe(tmp_path).values["framework_options"]["apply_rope_fusion"] is False
    text = recipe(tmp_path, model="Qwen/Qwen2.5-1.5B")
    assert text.values["framework_options"]["apply_rope_fusion"] is True


def test_a_step_on_images_by_megatron(tmp_path: Path) -> None:
    """Four times the pixels: passes of log-probabilities and training take longer, generation as long."""
    small, large = (simulated(recipe(tmp_path, image_height=height)) for height in (448, 896))
    took = [{phase.phase: phase.seconds for phase in report.phases} for report in (small, large)]
    for phase in ("logprob", "reference", "training"):
        assert took[1][phase] > took[0][phase], phase
    assert took[1]["generation"] == took[0]["generation"]


def test_workers_of_dtensor_train_a_tower_and_freeze_none(tmp_path: Path) -> None:
    report = simulated(recipe(tmp_path, workers="dtensor", image_height=448))
    assert "vision tower" in {one.what for one in report.assumptions}
    assert report.ranks[0].at_rest["vision_tower"].optimizer_bytes > 0
    frozen = "automodel_kwargs: {freeze_config: {freeze_vision_tower: true, freeze_language_model: false}}"
    assert "a vision tower that is frozen by workers of DTensor" in refused(
        recipe(tmp_path, workers=f"dtensor, {frozen}"))
