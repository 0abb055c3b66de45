"""Towers that are transformers' own modules under Megatron-Core, beside Qwen 2.5 VL's, by Bridge's own model."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from operators.megatron.test_vision import averaged, expect_balance, plan_of, program_of, spelled, told
from simcore.errors import NotYet, RankscopeError
from simcore.models.blocks import LayerKind
from simcore.models.vision_blocks import RowLayer
from simcore.operators.megatron.ops.context import Context
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.operators.megatron.vision.pooled import attention_biases
from simcore.placement.plan import Plan
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.program.tile import AMOUNT, LAYER, OP, SLOT
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import HIDDEN, Op, Tape

TRUTH: dict[str, Any] = json.loads((Path(__file__).parents[2] / "truth/models/bridge-whole-towers-main-2026-08-22.json")
                                   .read_text(encoding="utf-8"))
SIZED = {"image_height": 56, "image_width": 84}
OF_ONE_SIZE: dict[str, Any] = {"image_height": None}
LANGUAGE = ["model.language_model", "lm_head"]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The small Ministral 3 that Bridge was asked about, whose text_config does not share head and embedding."""
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps({**TRUTH["ministral"]["fields"], "tie_word_embeddings": False}), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The small Gemma 3 that Bridge was asked about."""
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(TRUTH["gemma"]["fields"]), encoding="utf-8")
    return str(path)


def test_parameters_are_those_of_bridges_model(config: str, pooled: str) -> None:
    """Whole and cut over tp, and those whose gradients are averaged over it."""
    for name, model, sized in (("ministral", config, SIZED), ("gemma", pooled, OF_ONE_SIZE)):
        truth = TRUTH[name]
        for mesh, which in (({}, "whole"), ({"tp": 2}, "parallel")):
            mine = {key: count for key, count in spelled(plan_of(model, mesh, **sized)).items()
                    if name != "gemma" or "output_layer" not in key}  # it is the embedding's
            theirs = [row.replace("vision_tower.post_layernorm.", "") for row in truth[which]["parameters"]]
            assert mine == told(theirs), (name, which)
        shapes = dict(row.split() for row in truth["parallel"]["parameters"])
        elements = sum(prod(map(int, shapes[name].split("x"))) for name in truth["parallel"]["averaged"])
        assert averaged(model, {"tp": 2}, **sized) == 4 * elements > 0, name


def test_biases_of_attention_allocate_what_bridges_code_does() -> None:
    """Every event but those of single positions."""
    truth = TRUTH["biases"]
    run = LayerWorkload(truth["batch"], truth["seq"], "bf16", {}, options=MegatronOptions())
    c = Context(Tape({}, {}), run, LayerKind("vision_projector", "gemma3", 8))
    made = attention_biases(c)
    mine = [row[3] for row in c.tape.cut().rows if row[0] in (Op.ALLOC, Op.FREE)]
    theirs = [size for size in truth["events"] if abs(size) >= truth["seq"] ** 2]
    falling = len(mine) - 5  # names are dropped when the function returns, in whatever order
    assert mine[:falling] == theirs[:falling]
    assert sorted(mine[falling:]) == sorted(theirs[falling:])
    assert sum(tensor.nbytes for tensor in made) == sum(mine) == 2 * 2 * truth["batch"] * truth["seq"] ** 2


@pytest.mark.parametrize("given", [
    {}, {"micro_batch_size": 2}, {"frozen": ["model.vision_tower"]}, {"frozen": LANGUAGE[:1]},
    {"frozen": ["model.vision_tower", "model.multi_modal_projector"]}, {"method": "lora", "lora": {"rank": 8}}],
    ids=str)
def test_a_step_with_biases_ends_with_what_it_began_with(pooled: str, given: dict[str, Any]) -> None:
    expect_balance(pooled, OF_ONE_SIZE | given, {}, {"tp": 2}, {"pp": 2})


def test_every_stage_makes_biases_of_its_own(pooled: str) -> None:
    """Biases made in each microbatch, as on the first stage; they stay until its backward is over."""
    for stage in (0, 1):
        program = program_of(pooled, {"pp": 2}, stage=stage, **OF_ONE_SIZE)
        for name in ("local_attention_bias", "global_attention_bias"):
            slot = program.tables.slots[name, "activation"]
            rows = program.columns[program.columns[:, SLOT] == slot]
            made, dropped = (rows[rows[:, OP] == op, AMOUNT] for op in (Op.ALLOC, Op.FREE))
            assert len(made) == len(dropped) == 4, stage
            assert set(made) == {2 * 64 ** 2} == set(-dropped), stage


def test_what_biases_are_not_served_with(pooled: str) -> None:
    for mesh, given, told_so in (({"cp": 2}, {}, "does not support"),
                                 ({}, {"recompute": "full"}, "run again with a bias"),
                                 ({}, {"options": {"attention_backend": "flash"}}, "automatic or fused")):
        with pytest.raises(RankscopeError, match=told_so):
            program_of(pooled, mesh, **OF_ONE_SIZE | given)


@pytest.mark.parametrize("given", [
    {}, {"micro_batch_size": 2}, {"recompute": "full"}, {"frozen": ["model.vision_tower"]}, {"frozen": LANGUAGE},
    {"frozen": ["model.vision_tower", "model.multi_modal_projector"]}, {"frozen": [*LANGUAGE, "model.vision_tower"]},
    {"method": "lora", "lora": {"rank": 8}}], ids=str)
def test_a_step_ends_with_what_it_began_with(config: str, given: dict[str, Any]) -> None:
    expect_balance(config, SIZED | given, {}, {"pp": 2}, {"tp": 2})


def test_queries_are_not_multiplied_in_place_twice(config: str) -> None:
    with pytest.raises(NotYet, match="attention's core of ministral3 recomputed"):
        program_of(config, {}, **SIZED, recompute=["core_attn"])


def _kept(program: Program, plan: Plan) -> int:
    """Bytes of a layer of the tower that outlive its forward, its output left out."""
    blocks = {one: plan.graph.kinds[plan.graph.layers[one].kind].block for one in plan.layers}
    layer = next(one for one, block in blocks.items() if isinstance(block, RowLayer))
    rows = program.columns[(program.phase == Phase.FORWARD) & (program.microbatch == 0)]
    mine = (rows[:, OP] <= Op.FREE) & (rows[:, LAYER] == layer) & (rows[:, SLOT] != HIDDEN)
    return int(rows[mine, AMOUNT].sum())


def test_a_trained_layer_keeps_what_transformers_layer_has_left_in_the_log(config: str) -> None:
    """All that it has allocated and not freed but its output; the kernel of a GPU rounds rows up to 32 for its sums."""
    name = "vision-trained-mistral3-torch-2.13.0-transformers-5.23.0.json"
    row = json.loads((Path(__file__).parents[2] / "truth/tape" / name).read_text(encoding="utf-8"))
    measured = next(section["events"] for section in row["sections"] if section["at"] == "layer 0")
    vision, (height, width) = row["case"]["fields"]["vision_config"], row["case"]["sides"]
    assert {**vision, "model_type": "pixtral"} == TRUTH["ministral"]["fields"]["vision_config"]
    patches, sized = height * width // 14**2, {"image_height": height, "image_width": width}
    rounded = 4 * vision["num_attention_heads"] * (-(-patches // 32) * 32 - patches)
    out = 2 * patches * vision["hidden_size"]
    assert _kept(program_of(config, {}, **sized), plan_of(config, {}, **sized)) == sum(measured) - out + rounded
    frozen = ["model.vision_tower", "model.multi_modal_projector"]
    assert _kept(program_of(config, {}, **sized, frozen=frozen), plan_of(config, {}, **sized)) == 0
