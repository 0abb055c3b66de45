"""Scripts of verl with a reward model: the scenario that a person would write, and what is refused by its key."""

from __future__ import annotations

from pathlib import Path

from recipes.verl.test_recipe import imported
from recipes.verl.test_rl import SCRIPT, WRITTEN
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.simulate import check

ANY = "    trainer.nnodes=2 $@\n"
REWARDED = SCRIPT.replace(ANY, f"""\
    reward_model.enable=True \\
    reward_model.model.path=sfairXC/FsfairX-LLaMA3-RM-v0.1\\
    reward_model.use_reward_loop=True \\
    reward_model.rollout.name=vllm \\
    reward_model.rollout.gpu_memory_utilization=0.4 \\
    reward_model.rollout.tensor_model_parallel_size=1 \\
    reward_model.rollout.prompt_length=2048 \\
    reward_model.rollout.response_length=1024 \\
    reward_model.num_workers=8 \\
    reward_model.model.fsdp_config.param_offload=True \\
    reward_model.micro_batch_size_per_gpu=32 \\
{ANY}""")
REWARD = """param_offload: true,
     reward: {model: llama-3-8b, tp: 1, gpu_memory_utilization: 0.4, max_num_seqs: 1024, max_num_batched_tokens: 8192}}
"""


def test_a_script_with_a_reward_model_is_the_written_scenario(tmp_path: Path) -> None:
    found = imported(tmp_path, REWARDED)
    found.expect_complete()
    written = WRITTEN.replace("param_offload: true}\n", REWARD)
    assert parse_scenario(found.document()) == parse_scenario(parse_document(written, "written.yaml"))
    assert not check(parse_scenario(found.document())).problems


def test_a_reward_model_that_only_the_shell_knows_is_asked(tmp_path: Path) -> None:
    found = imported(tmp_path, REWARDED.replace("sfairXC/FsfairX-LLaMA3-RM-v0.1\\", "$HOME/models/Mine \\"))
    assert [question.key for question in found.questions] == ["rl.reward.model"]
    assert "model" not in found.values["rl"]["reward"]


def test_what_another_reward_would_need_is_refused_or_wrong_by_its_key(tmp_path: Path) -> None:
    for argument, told in (
            ("reward_model.use_reward_loop=False", "a model of FSDP's, in the older worker"),
            ("reward_model.enable_resource_pool=True", "a reward model on GPUs of its own"),
            ("reward_model.rollout.name=sglang", "a reward model in sglang"),
            ("reward_model.rollout.free_cache_engine=False", "a reward model that does not sleep"),
            ("custom_reward_function.path=mine.py", "a function asks to generate")):
        lines = [line for line in REWARDED.splitlines() if argument.partition("=")[0] not in line]
        found = imported(tmp_path, "\n".join([*lines[:-1], f"    {argument} \\", lines[-1]]) + "\n")
        assert any(told in str(one) for one in found.refused), (told, [str(one) for one in found.refused])
    text = "".join(line for line in REWARDED.splitlines(keepends=True) if "rollout.name=vllm" not in line
                   or "reward_model" not in line)
    assert any("a mandatory value is missing" in str(one) for one in imported(tmp_path, text).wrong)
