"""Scripts of verl's PPO: the critic that a person would write, and what is refused by its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.verl.test_recipe import imported
from recipes.verl.test_rl import SCRIPT, WRITTEN
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.simulate import check

PPO = SCRIPT.replace("adv_estimator=grpo", "adv_estimator=gae").replace("    trainer.nnodes=2 $@\n", """\
    critic.optim.lr=1e-5 \\
    critic.model.use_remove_padding=True \\
    critic.model.path=Qwen/Qwen2.5-0.5B-Instruct \\
    critic.model.enable_gradient_checkpointing=True \\
    critic.ppo_micro_batch_size_per_gpu=5 \\
    critic.model.fsdp_config.param_offload=False \\
    critic.model.fsdp_config.optimizer_offload=True \\
    trainer.nnodes=2 $@
""")
CRITIC = """param_offload: true,
     critic: {micro_batch_size: 5, values_batch_size: 5, recompute: full, params: fp32, optimizer_offload: true}}"""


def test_a_script_of_ppo_is_the_written_scenario(tmp_path: Path) -> None:
    found = imported(tmp_path, PPO)
    found.expect_complete()
    written = WRITTEN.replace("param_offload: true}", CRITIC)
    assert parse_scenario(found.document()) == parse_scenario(parse_document(written, "written.yaml"))
    assert not check(parse_scenario(found.document())).problems


@pytest.mark.parametrize(("argument", "wanted"), [
    ("critic.model.path=Qwen/Qwen2.5-1.5B-Instruct", {"model": "Qwen/Qwen2.5-1.5B-Instruct"}),
    ("critic.ppo_mini_batch_size=32", {"global_batch_size": 160}),
    ("critic.forward_micro_batch_size_per_gpu=8", {"values_batch_size": 8}),
    ("critic.model.fsdp_config.model_dtype=bf16", {"params": "bf16"}),
    ("critic.model.enable_gradient_checkpointing=False", {"recompute": "none"})])
def test_the_critics_keys(tmp_path: Path, argument: str, wanted: dict[str, object]) -> None:
    lines = [line for line in PPO.splitlines() if argument.partition("=")[0] not in line]
    found = imported(tmp_path, "\n".join([*lines[:-1], f"    {argument} \\", lines[-1]]) + "\n")
    rl = parse_scenario(found.document()).rl
    assert rl is not None
    assert rl.critic is not None
    assert rl.critic.model_dump() | wanted == rl.critic.model_dump()


def test_sizes_by_tokens_are_the_next_that_divide(tmp_path: Path) -> None:
    """10 sequences of 1,536 tokens a rank, of which 32,768 tokens hold all; 40 are two parts of 20."""
    text = PPO.replace("critic.ppo_micro_batch_size_per_gpu=5", "critic.use_dynamic_bsz=True")
    rl = parse_scenario(imported(tmp_path, text).document()).rl
    assert rl is not None
    assert rl.critic is not None
    assert (rl.critic.micro_batch_size, rl.critic.values_batch_size) == (10, 20)


def test_without_its_path_the_critic_is_the_releases_own(tmp_path: Path) -> None:
    text = "".join(line for line in PPO.splitlines(keepends=True) if "critic.model.path" not in line)
    rl = parse_scenario(imported(tmp_path, text).document()).rl
    assert rl is not None
    assert rl.critic is not None
    assert rl.critic.model == "deepseek-ai/deepseek-llm-7b-chat"


def test_placeholders_of_both_models_are_asked_for(tmp_path: Path) -> None:
    actors, critics = (f"{at}.model.path=Qwen/Qwen2.5-0.5B-Instruct" for at in ("actor_rollout_ref", "critic"))
    assert actors in PPO
    text = PPO.replace(actors, "actor_rollout_ref.model.path=model_path")
    found = imported(tmp_path, text.replace(critics, "critic.model.path='<path_to_dsv3_config>'"))
    assert [(one.key, one.option.partition("such as ")[2]) for one in found.questions] == [
        ("model", ""), ("rl.critic.model", "deepseek-v3")]


def test_what_another_critic_would_need_is_refused_by_its_key(tmp_path: Path) -> None:
    for argument, told in (
            ("critic.strategy=fsdp2", "another value than the actor's fsdp"),
            ("actor_rollout_ref.actor.strategy=fsdp2", "a critic with fsdp beside an actor with fsdp2"),
            ("critic.model.lora_rank=8", "adapters of rank 8"),
            ("critic.ulysses_sequence_parallel_size=2", "another value than the actor's 1"),
            ("critic.model.fsdp_config.use_orig_params=True", "another value than the actor's False"),
            ("critic.optim.optimizer=Adam", "another value than the actor's AdamW"),
            ("critic.ppo_epochs=2", "passes over a step's sequences: 2"),
            ("critic.model.enable_activation_offload=True", "activations on the host"),
            ("actor_rollout_ref.actor.fsdp_config.reshard_after_forward=False", "FULL_SHARD beside an actor"),
            ("+actor_rollout_ref.model.override_config.attn_implementation=sdpa", "flash_attention_2 beside an actor"),
            ("actor_rollout_ref.actor.fsdp_config.forward_prefetch=True", "a critic with False beside an actor with")):
        found = imported(tmp_path, PPO.replace("    trainer.nnodes=2", f"    {argument} \\\n    trainer.nnodes=2"))
        assert any(told in str(one) for one in found.refused), (told, [str(one) for one in found.refused])


def test_generalised_advantages_without_a_critic_are_wrong(tmp_path: Path) -> None:
    text = PPO.replace("    trainer.nnodes=2", "    critic.enable=False \\\n    trainer.nnodes=2")
    assert any("critic.enable false" in str(one) for one in imported(tmp_path, text).wrong)


def test_a_critic_over_fsdp2_is_cut_as_the_actor(tmp_path: Path) -> None:
    lines = ("actor_rollout_ref.actor.strategy=fsdp2", "critic.strategy=fsdp2",
             *(f"{block}.fsdp_config.reshard_after_forward=True" for block in (
                 "actor_rollout_ref.actor", "critic.model")))
    found = imported(tmp_path, PPO.replace("    trainer.nnodes=2", "".join(
        f"    {one} \\\n" for one in lines) + "    trainer.nnodes=2"))
    assert [str(one) for one in found.refused] == []
    assert found.values["framework"] == "fsdp2"
    assert found.values["framework_options"]["reshard_after_forward"] is True
