"""Optimizers of transformers by their names: what a scenario says, and what upstream stops at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.huggingface.optimizers import OPTIMIZERS
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.simulate import check

RECIPE: dict[str, Any] = {"model_name_or_path": "llama-3.2-3b", "dtype": "bfloat16", "dataset_name": "some/answers"}
ZERO: dict[str, Any] = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"},
                        "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
HOST: dict[str, Any] = {**ZERO, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
FSDP2: dict[str, Any] = {
    "distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 8,
    "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}
BNB: dict[str, Any] = {"implementation": "bitsandbytes"}
NAMES: dict[str, dict[str, Any]] = {
    "lion_32bit": {"name": "lion", **BNB}, "lion_8bit": {"name": "lion", **BNB, "moments": "int8"},
    "paged_lion_8bit": {"name": "lion", **BNB, "moments": "int8", "paged": True},
    "ademamix": {"name": "ademamix", **BNB}, "paged_ademamix_32bit": {"name": "ademamix", **BNB, "paged": True},
    "rmsprop": {"name": "rmsprop", "implementation": "foreach"}, "rmsprop_bnb": {"name": "rmsprop", **BNB},
    "rmsprop_bnb_8bit": {"name": "rmsprop", **BNB, "moments": "int8"},
    "adagrad": {"name": "adagrad", "implementation": "foreach"}}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(*values: dict[str, Any]) -> Imported:
    paths = ["mine.yaml", *(f"beside{index}.yaml" for index in range(1, len(values)))]
    for path, one in zip(paths, values, strict=True):
        Path(path).write_text(json.dumps(one, indent=1), "utf-8")
    return import_recipe(paths, Answers.of_options(8, None, "dgx-h100"))


def refusal(*values: dict[str, Any]) -> str:
    """Problems of a recipe, or of the scenario that it becomes."""
    found = imported(*values)
    if found.refused or found.wrong:
        return " ".join(map(str, (*found.refused, *found.wrong)))
    return " ".join(map(str, check(parse_scenario(found.document())).problems))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_transformers_is_the_optimizer_that_it_makes(name: str) -> None:
    found = imported({**RECIPE, "optim": name})
    found.expect_complete()
    assert found.values["training"]["optimizer"] == NAMES[name] == OPTIMIZERS[name]
    assert check(parse_scenario(found.document())).problems == ()


@pytest.mark.parametrize(("values", "told"), [
    (({"optim": "lion_8bit"}, FSDP2), "does not have a sharding strategy registered"),
    (({"optim": "lion_32bit"}, HOST), "adamw_mode, an unexpected keyword argument"),
    (({"optim": "adagrad"}, HOST), "adamw_mode, an unexpected keyword argument"),
    (({"optim": "adagrad"}, ZERO), "keeps the states of whole parameters"),
    (({"optim": "rmsprop", "optim_args": "centered=true"},), "a centered RMSprop"),
    (({"optim": "rmsprop_bnb", "optim_args": "alpha=0.9"},), "handed over as texts"),
    (({"optim": "lion_8bit"}, {**ZERO, "optimizer": {"type": "Lion", "params": {"torch_adam": True}}}),
     "takes no such argument")])
def test_what_upstream_stops_at_and_what_is_not_counted(values: tuple[dict[str, Any], ...], told: str) -> None:
    recipe, *beside = values
    assert told in refusal({**RECIPE, **recipe}, *beside)


@pytest.mark.parametrize("beside", [(), (FSDP2,), (ZERO,)])
@pytest.mark.parametrize("name", ["sgd", "rmsprop"])
def test_weight_decay_that_a_copy_of_gradients_takes_is_written(name: str, beside: tuple[dict[str, Any], ...]) -> None:
    found = imported({**RECIPE, "optim": name, "weight_decay": 0.1}, *beside)
    found.expect_complete()
    assert found.values["training"]["optimizer"]["weight_decay"] == 0.1
    assert check(parse_scenario(found.document())).problems == ()
    plain = imported({**RECIPE, "optim": name, "weight_decay": 0.0}, *beside)
    assert "weight_decay" not in plain.values["training"]["optimizer"]


def test_weight_decay_that_a_kernel_takes_is_read() -> None:
    for optim in ("lion_8bit", "rmsprop_bnb_8bit", "ademamix"):
        assert refusal({**RECIPE, "optim": optim, "weight_decay": 0.1}) == ""


def test_other_optimizers_on_the_host_are_deepspeeds_adam() -> None:
    for optim in ("lion_8bit", "rmsprop", "ademamix_8bit"):
        found = imported({**RECIPE, "optim": optim}, HOST)
        assert found.values["training"]["optimizer"]["name"] == "adamw", optim


@pytest.mark.parametrize(("zero", "kind", "optimizer"), [
    (ZERO, "Lion", {"name": "lion", "implementation": "fused"}), (HOST, "lion", {"name": "lion"}),
    (HOST, "Adagrad", {"name": "adagrad"})])
def test_an_optimizer_of_deepspeeds_configuration(zero: dict[str, Any], kind: str, optimizer: dict[str, Any]) -> None:
    found = imported(RECIPE, {**zero, "optimizer": {"type": kind, "params": {"lr": 1e-4}}})
    found.expect_complete()
    assert found.values["training"]["optimizer"] == optimizer
    assert check(parse_scenario(found.document())).problems == ()


def test_rmsprop_takes_its_momentum_of_optim_args() -> None:
    found = imported({**RECIPE, "optim": "rmsprop", "optim_args": "momentum=0.9, alpha=0.95"})
    assert found.values["training"]["optimizer"]["momentum"] == 0.9
