"""Recipes with a single controller: who runs ahead of whom, and in which parts a step is trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from simcore.errors import InputError, NotYet
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe

BASE: Final = """\
grpo: {num_prompts_per_step: 64, num_generations_per_prompt: 8, async_grpo: null}
loss_fn: {reference_policy_kl_penalty: 0.0}
async_rl:
  sampler: {name: in_order, max_lookahead_versions: 1}
  min_groups_for_streaming_train: 64
  max_inflight_prompts: 64
  rollout_failure: {max_skipped_prompts: 0, native: {env_timeout_s: null}}
policy:
  model_name: Qwen/Qwen2.5-1.5B
  train_global_batch_size: 512
  train_micro_batch_size: 4
  logprob_batch_size: 4
  max_total_sequence_length: 512
  precision: bfloat16
  dtensor_cfg: {_v2: true, enabled: true, tensor_parallel_size: 1, context_parallel_size: 1}
  megatron_cfg: {enabled: false}
  optimizer: {name: torch.optim.AdamW, kwargs: {lr: 5e-6}}
  generation:
    backend: vllm
    vllm_cfg: {async_engine: true, max_model_len: 512}
    colocated: {enabled: false, resources: {gpus_per_node: 4, num_nodes: 1}}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""


def imported(folder: Path, text: str = "grpo: {seed: 1}", base: str = BASE) -> Imported:
    (folder / "base.yaml").write_text(base, encoding="utf-8")
    (folder / "mine.yaml").write_text(f"defaults: base.yaml\n{text}\n", encoding="utf-8")
    return import_recipe([str(folder / "mine.yaml")], Answers.of_options(None, None, "dgx-h100", {}))


@pytest.mark.parametrize(("sampler", "groups", "ahead", "chunks"), [
    ("name: in_order, max_lookahead_versions: 1", 64, True, 1),
    ("name: in_order, max_lookahead_versions: 0", 64, False, 1),
    ("name: windowed, max_staleness_versions: 1", 24, True, 3),
    ("name: ready_first", 64, True, 1),
])
def test_samplers_say_how_far_engines_run_ahead(tmp_path: Path, sampler: str, groups: int, ahead: bool,
                                                chunks: int) -> None:
    base = BASE.replace("name: in_order, max_lookahead_versions: 1", sampler)
    found = imported(tmp_path, base=base.replace("train: 64", f"train: {groups}"))
    found.expect_complete()
    assert (found.values["rl"]["asynchronous"], found.values["rl"]["chunks"]) == (ahead, chunks)


@pytest.mark.parametrize(("text", "kind", "told"), [
    ("async_rl: {min_groups_for_streaming_train: 65}", InputError, "num_prompts_per_step (64) must be >="),
    ("policy: {train_global_batch_size: 256}", InputError, "(512) must equal policy.train_global_batch_size (256)"),
    ("policy: {generation: {colocated: {enabled: true}}}", NotYet, "engines on the GPUs that train"),
    ("async_rl: {sampler: {name: custom}}", InputError, "another sampler than NeMo RL's"),
])
def test_what_the_release_refuses_of_a_controller_is_refused(tmp_path: Path, text: str, kind: type[Exception],
                                                             told: str) -> None:
    with pytest.raises(kind) as refused:
        imported(tmp_path, text).expect_complete()
    assert told in str(refused.value)


def test_nodes_of_teachers_do_not_train_and_their_distillation_is_refused(tmp_path: Path) -> None:
    """Four nodes of 8: half a node generates, one teaches (two agents share a model), and 20 GPUs train with tp 5."""
    base = BASE.replace("num_nodes: 1}\n", "num_nodes: 4}\n").replace("tensor_parallel_size: 1, c",
                                                                    "tensor_parallel_size: 5, c")
    block = "on_policy_distillation"

    def told(shared: str, nodes: int) -> list[str]:
        teachers = (f"{{enabled: true, default_teacher_cfg: {{num_nodes: {nodes}}}, "
                    "teacher_overrides: {b: {num_nodes: 2}}}")
        found = imported(tmp_path, "grpo: {seed: 1}\n"
                         f"{block}: {{enabled: true, teacher_model_by_agent_name: {{a: x, b: x}}, "
                         f"deduplicate_shared_teacher_checkpoints: {shared}, non_colocated_teachers: {teachers}}}",
                         base)
        with pytest.raises((InputError, NotYet)) as refused:
            found.expect_complete()
        return [problem.message for problem in refused.value.problems
                if "teach" in problem.message or "multiple" in problem.message]

    teachers = f"{block}.non_colocated_teachers"
    assert set(told("true", 1)) == {f"not yet: {key}: distillation of teachers in GRPO" for key in (
        f"{block}.enabled", f"{block}.teacher_model_by_agent_name.a", f"{block}.teacher_model_by_agent_name.b",
        f"{block}.deduplicate_shared_teacher_checkpoints", f"{teachers}.enabled",
        f"{teachers}.default_teacher_cfg.num_nodes", f"{teachers}.teacher_overrides.b.num_nodes")}
    assert any(message.startswith("4 GPUs are no multiple of") for message in told("false", 1))
    assert any("32 GPUs, of which 4 generate and 32 teach" in message for message in told("true", 4))
