"""GaLore and APOLLO in recipes of transformers' Trainer (TRL's), axolotl and LLaMA-Factory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcore.errors import RankscopeError
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.simulate import check

TRL: dict[str, Any] = {
    "model_name_or_path": "llama-3.2-3b", "dataset_name": "d", "bf16": True, "max_length": 1024, "packing": False,
    "per_device_train_batch_size": 1, "eos_token": "<eos>", "optim": "galore_adamw",
    "optim_target_modules": ["attn", "mlp"]}
AXOLOTL: dict[str, Any] = {
    "base_model": "llama-3.2-3b", "datasets": [{"path": "d", "type": "alpaca"}], "sequence_len": 1024, "bf16": True,
    "micro_batch_size": 1, "gradient_accumulation_steps": 1, "optimizer": "apollo_adamw",
    "optim_target_modules": "all_linear"}
FACTORY: dict[str, Any] = {
    "model_name_or_path": "llama-3.2-3b", "stage": "sft", "do_train": True, "finetuning_type": "full", "bf16": True,
    "cutoff_len": 1000, "per_device_train_batch_size": 2, "template": "llama3", "optim": "adamw_torch",
    "use_galore": True}
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ZERO = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto"}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(values: dict[str, Any], gpus: int = 1) -> Imported:
    Path("mine.yaml").write_text(json.dumps(values, indent=1), "utf-8")
    return import_recipe(["mine.yaml"], Answers.of_options(gpus, topology="dgx-h100"))


def optimizer(values: dict[str, Any], gpus: int = 1) -> dict[str, Any]:
    """The optimizer of the scenario, which is simulated."""
    found = imported(values, gpus)
    found.expect_complete()
    assert check(parse_scenario(found.document())).problems == ()
    return dict(found.values["training"]["optimizer"])


@pytest.mark.parametrize(("values", "expected"), [
    (TRL, {"name": "galore", "low_rank": {"target_modules": ["attn", "mlp"]}}),
    (TRL | {"optim_args": "rank=64, update_proj_gap=100, scale=0.10, proj_type=right"},
     {"name": "galore", "low_rank": {"target_modules": ["attn", "mlp"], "rank": 64, "proj_type": "right"}}),
    (TRL | {"optim": "apollo_adamw", "optim_args": "proj=svd,rank=1,scale_type=tensor,scale=128.0",
            "optim_target_modules": "all-linear"},
     {"name": "apollo", "low_rank": {"target_modules": "all-linear", "rank": 1, "proj": "svd",
                                     "scale_type": "tensor"}}),
    (AXOLOTL, {"name": "apollo", "low_rank": {"target_modules": "all-linear"}}),
    (AXOLOTL | {"optim_args": {"rank": 32, "scale_type": "tensor"}},
     {"name": "apollo", "low_rank": {"target_modules": "all-linear", "rank": 32, "scale_type": "tensor"}}),
    (FACTORY, {"name": "galore", "low_rank": {"rank": 16, "target_modules": LINEARS}}),
    (FACTORY | {"galore_rank": 128, "galore_target": "mlp,self_attn", "galore_proj_type": "full"},
     {"name": "galore", "low_rank": {"rank": 128, "target_modules": ["mlp", "self_attn"], "proj_type": "full"}}),
    (FACTORY | {"use_galore": False, "use_apollo": True, "apollo_proj": "svd", "apollo_scale_type": "tensor",
                "apollo_scale_front": True, "apollo_update_interval": 100},
     {"name": "apollo", "low_rank": {"rank": 16, "target_modules": LINEARS, "proj": "svd",
                                     "scale_type": "tensor"}}),
])
def test_recipes_become_the_optimizer_of_a_scenario(values: dict[str, Any], expected: dict[str, Any]) -> None:
    assert optimizer(values) == expected


@pytest.mark.parametrize("values", [TRL | {"optim": "galore_adamw_layerwise"}, FACTORY | {"galore_layerwise": True}])
def test_layer_by_layer_is_an_optimizer_inside_backward_of_one_process(values: dict[str, Any]) -> None:
    assert imported(values).values["framework_options"]["optimizer_in_bwd"] is True
    assert optimizer(values)["name"] == "galore"
    (problem,) = check(parse_scenario(imported(values, 2).document())).problems
    assert "Layer-wise galore does not support DDP at this time" in problem.message


@pytest.mark.parametrize(("values", "told"), [
    ({key: TRL[key] for key in TRL if key != "optim_target_modules"}, "You need to define `optim_target_modules`"),
    (TRL | {"optim_args": "rank=many"}, "expected a whole number, got rank=many"),
    (TRL | {"optim_args": "ranks=8"}, "not yet: optim_args: ranks of galore"),
    (TRL | {"optim_target_modules": ".*mlp.*"}, "modules by a pattern"),
    (TRL | {"optim": "galore_adamw_8bit"}, "the optimizer galore_adamw_8bit"),
    (AXOLOTL | {"optimizer": "q_galore_adamw8bit"}, "the optimizer q_galore_adamw8bit"),
    ({key: FACTORY[key] for key in FACTORY if key != "optim"}, "Unknown optim: adamw_torch_fused"),
    (FACTORY | {"optim": "adamw_8bit"}, "not yet: optim: galore with the moments of adamw_8bit"),
    (FACTORY | {"use_apollo": True}, "Cannot use GaLore, APOLLO or BAdam together."),
    (FACTORY | {"finetuning_type": "lora"}, "Cannot use LoRA with GaLore, APOLLO or BAdam together."),
    (FACTORY | {"deepspeed": ZERO}, "GaLore and APOLLO are incompatible with DeepSpeed yet."),
    (FACTORY | {"use_galore": False, "use_badam": True}, "not yet: use_badam: BAdam"),
    (FACTORY | {"use_galore": False, "use_adam_mini": True}, "not yet: use_adam_mini: Adam-mini"),
])
def test_what_cannot_be_followed_is_refused_by_name(values: dict[str, Any], told: str) -> None:
    with pytest.raises(RankscopeError) as raised:
        imported(values, 2).expect_complete()
    assert told in str(raised.value)
