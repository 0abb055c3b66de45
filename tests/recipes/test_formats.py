"""Samples of every format are recognised and become legal scenarios, and no key of one is silent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from recipes.accounts import keys_of, unaccounted
from samples_of_recipes import SAMPLES
from simcore.inputs.scenario import parse_scenario
from simcore.inputs.yaml_parser import dotted
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_files, import_recipe
from simcore.recipes.launch.arguments import Override
from simcore.recipes.reader import Reader
from simcore.recipes.recipe_file import read_files
from simcore.recipes.registry import format_of, known_formats
from simcore.simulate import check

ANSWERS = Answers.of_options(16, 256, "dgx-h100")
SCRIPTS = {"openrlhf"}
"""Formats of which there are scripts alone, whose keys are looked through in `tests/recipes/openrlhf`."""
NAMES = [one.name for one in known_formats() if one.name not in SCRIPTS]


def imported(folder: Path, name: str) -> Imported:
    settings = SAMPLES[name].settings
    return import_recipe([SAMPLES[name].write(folder)], answers(name)).with_settings(settings)


def answers(name: str) -> Answers:
    return replace(ANSWERS, settings=SAMPLES[name].settings)


def accounted(found: Imported) -> Iterator[str]:
    yield from found.used
    yield from (one.key for one in found.left)
    for problem in (*found.unknown, *found.refused, *found.wrong):
        yield problem.message.partition("unknown key '")[2].partition("'")[0]
    yield from (problem.message.removeprefix("not yet: ").partition(":")[0] for problem in found.refused)


def test_every_format_has_a_sample() -> None:
    assert {*SAMPLES} == {*NAMES}
    assert {one.name for one in known_formats()} - {*SAMPLES} == SCRIPTS


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_recognised_and_is_a_legal_scenario(tmp_path: Path, name: str) -> None:
    found = format_of(read_files([SAMPLES[name].write(tmp_path)]))
    assert found is not None
    assert found[0].name == name
    result = imported(tmp_path, name)
    result.expect_complete()
    assert check(parse_scenario(result.document())).problems == ()


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_in_one_list_that_is_printed(tmp_path: Path, name: str) -> None:
    files = read_files([SAMPLES[name].write(tmp_path)])
    result = imported(tmp_path, name)
    assert [line for line in unaccounted(result, keys_of(files)) if name != "megatron" or "why" not in line] == []
    given = {one.key for one in result.left if ":" in one.where}  # others are defaults
    assert {*result.used, *given} == {key for _, key in keys_of(files)}


@pytest.mark.parametrize("name", NAMES)
def test_every_key_that_a_launch_sets_is_in_one_list(tmp_path: Path, name: str) -> None:
    file = read_files([SAMPLES[name].write(tmp_path)])[0]
    overrides = [Override(one.path, one.value, f"run.sh:{number}")
                 for number, one in enumerate(Reader(file.document).all(), 1)
                 if all(isinstance(part, str) for part in one.path)]
    launched = replace(file, overrides=tuple(overrides))
    result = import_files([launched], answers(name)).with_settings(SAMPLES[name].settings)
    found = [line for line in unaccounted(result, keys_of([launched])) if name != "megatron" or "why" not in line]
    assert found == []
    assert sum(where.startswith("run.sh:") for where, _ in keys_of([launched])) == len(overrides)


@pytest.mark.parametrize("name", NAMES)
def test_a_misspelt_key_is_never_silent(tmp_path: Path, name: str) -> None:
    sample = SAMPLES[name]
    document = read_files([sample.write(tmp_path)])[0].document
    lines = sample.text.splitlines(keepends=True)
    for path in (one.path for one in Reader(document).all()):
        line, key = document.lines[path] - 1, str(path[-1])
        changed = re.sub(rf"\b{re.escape(key)}(\"?:| =)", rf"{key}_x\1", lines[line], count=1)
        if changed == lines[line]:
            continue  # a value of a list
        text = "".join([*lines[:line], changed, *lines[line + 1:]])
        (tmp_path / sample.name).write_text(text, encoding="utf-8")
        result = import_recipe([str(tmp_path / sample.name)], answers(name), name)
        assert dotted((*path[:-1], f"{key}_x")) in {*accounted(result)}


@pytest.mark.parametrize("name", NAMES)
def test_every_key_of_the_scenario_has_an_origin(tmp_path: Path, name: str) -> None:
    result = imported(tmp_path, name)
    for path in (one.path for one in Reader(result.document()).all()):
        assert any(path[:length] in result.origins for length in range(len(path) + 1)), path


@pytest.mark.parametrize(("name", "key", "value", "kind", "why"), [
    ("megatron", "MODEL_ARGS.--clip-grad", 1.0, "no effect", "fixed time of a step"),
    ("megatron", "MODEL_ARGS.--clip-grad", 0, "not modelled", "fixed time of a step"),
    ("megatron", "MODEL_ARGS.--clip-grad", -1, "not modelled", "fixed time of a step"),
    ("bridge", "optimizer.clip_grad", 0.5, "no effect", "fixed time of a step"),
    ("bridge", "optimizer.clip_grad", 0.0, "not modelled", "fixed time of a step"),
    ("automodel", "clip_grad_norm.max_norm", 0.0, "no effect", "whatever it says"),
    ("torchtitan", "training.max_norm", -2.0, "no effect", "whatever it says"),
    ("nemo_rl", "policy.max_grad_norm", 0.7, "no effect", "both are timed"),
    ("verl", "optim.clip_grad", 0.0, "no effect", "whatever it says"),
    ("trl", "max_grad_norm", 0.0, "no effect", "whatever it says"),
    ("trl", "max_grad_norm", None, "no effect", "compares it with 0, and stops"),
    ("axolotl", "max_grad_norm", 0.0, "no effect", "whatever it says"),
    ("axolotl", "max_grad_norm", None, "no effect", "says nothing"),
    ("llamafactory", "max_grad_norm", -1.0, "no effect", "whatever it says"),
    ("deepspeed", "gradient_clipping", 0.0, "no effect", "whatever it says"),
])
def test_a_clip_that_is_switched_off_is_listed_by_what_the_framework_does(
        tmp_path: Path, name: str, key: str, value: object, kind: str, why: str) -> None:
    """Megatron multiplies no gradients at 0 and below; the others take a norm and multiply whatever the value is."""
    file = read_files([SAMPLES[name].write(tmp_path)])[0]
    launched = replace(file, overrides=(Override(tuple(key.split(".")), value, "run.sh:1"),))
    left = import_files([launched], answers(name)).with_settings(SAMPLES[name].settings).left
    assert [(one.kind, why in one.why) for one in left if one.where == "run.sh:1"] == [(kind, True)]


@pytest.mark.parametrize(("name", "key", "value", "kind"), [
    ("megatron", "MODEL_ARGS.--log-params-norm", True, "not modelled"),
    ("megatron", "MODEL_ARGS.--timing-log-level", 2, "not modelled"),
    ("megatron", "MODEL_ARGS.--timing-log-level", 0, "no effect"),
    ("megatron", "MODEL_ARGS.--check-for-large-grads", True, "not modelled"),
    ("megatron", "MODEL_ARGS.--no-check-for-nan-in-loss-and-grad", True, "no effect"),
    ("megatron", "MODEL_ARGS.--log-max-attention-logit", True, "not modelled"),
    ("megatron", "MODEL_ARGS.--rerun-mode", "report_stats", "not modelled"),
    ("megatron", "MODEL_ARGS.--empty-unused-memory-level", 0, "no effect"),
    ("bridge", "logger.log_params_norm", True, "not modelled"),
    ("bridge", "logger.log_params_norm", False, "no effect"),
    ("bridge", "logger.timing_log_level", 1, "not modelled"),
    ("bridge", "logger.timing_log_level", -1, "no effect"),
    ("bridge", "ddp.check_for_nan_in_grad", True, "not modelled"),
    ("bridge", "model.log_max_attention_logit", True, "not modelled"),
    ("deepspeed", "wall_clock_breakdown", True, "not modelled"),
    ("deepspeed", "comms_logger.enabled", True, "not modelled"),
    ("deepspeed", "comms_logger.enabled", False, "no effect"),
    ("llamafactory", "moe_aux_loss_coef", 0.0, "no effect"),
    ("axolotl", "model_config.output_router_logits", True, "not modelled"),
    ("axolotl", "model_config.output_router_logits", False, "no effect"),
    ("trl", "include_num_input_tokens_seen", True, "not modelled"),
    ("llamafactory", "include_num_input_tokens_seen", "no", "no effect"),
])
def test_statistics_for_which_a_step_takes_longer_are_not_without_effect(tmp_path: Path, name: str, key: str,
                                                                         value: object, kind: str) -> None:
    file = read_files([SAMPLES[name].write(tmp_path)])[0]
    launched = replace(file, overrides=(Override(tuple(key.split(".")), value, "run.sh:1"),))
    left = import_files([launched], answers(name)).with_settings(SAMPLES[name].settings).left
    assert [one.kind for one in left if one.where == "run.sh:1"] == [kind]


@pytest.mark.parametrize(("name", "key", "near"), [
    ("trl", "warmup_step", "warmup_steps"), ("llamafactory", "eval_step", "eval_steps"),
    ("axolotl", "wandb_entitty", "wandb_entity")])
def test_a_pattern_fits_no_misspelt_key(tmp_path: Path, name: str, key: str, near: str) -> None:
    file = read_files([SAMPLES[name].write(tmp_path)])[0]
    launched = replace(file, overrides=(Override((key,), 1, "run.sh:1"),))
    [problem] = import_files([launched], answers(name)).with_settings(SAMPLES[name].settings).unknown
    assert f"unknown key '{key}'" in problem.message
    assert near in problem.message
