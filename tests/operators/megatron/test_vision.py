"""Vision towers under Megatron-Core: parameters by Bridge's own model, what parts keep, what comes and goes."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import small
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.memory.ledger import running
from simcore.models.graph import build, model_config
from simcore.models.placed_blocks import DeepMerger, PlacedLayer, PlacedMerger, PlacedPatches
from simcore.models.vision_blocks import VisionPart
from simcore.pipeline.schedule import actions
from simcore.placement.plan import Plan, place
from simcore.program.lower import lower
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.program.record_layers import Workload
from simcore.program.tile import AMOUNT, LAYER, OP, SLOT
from simcore.recording.tape import HIDDEN, Op
from simcore.simulate import simulate

TRUTH: dict[str, Any] = json.loads((Path(__file__).parents[2] / "truth/models/bridge-vision-main-2026-08-22.json")
                                   .read_text(encoding="utf-8"))
SAVED: dict[str, Any] = json.loads((Path(__file__).parents[2] / "truth/models/"
                                    "bridge-images-saved-main-2026-08-22.json").read_text(encoding="utf-8"))["saved"]
TOWER = ["model.visual.patch_embed", "model.visual.pos_embed", "model.visual.blocks"]
PROJECTION = ["model.visual.merger", "model.visual.deepstack_merger_list"]
LANGUAGE = ["model.language_model", "lm_head"]
SIDE = 64
PATCHES, TOKENS = (SIDE // 16) ** 2, (SIDE // 32) ** 2


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The small model that Bridge was asked about, as a configuration of Hugging Face's."""
    text = TRUTH["text"]
    fields = {"model_type": "qwen3_vl", "tie_word_embeddings": False, "vision_config": TRUTH["vision"], "text_config": {
        "model_type": "qwen3_vl_text", "num_hidden_layers": text["num_layers"], "hidden_size": text["hidden_size"],
        "intermediate_size": text["ffn_hidden_size"], "num_attention_heads": text["num_attention_heads"],
        "num_key_value_heads": text["num_query_groups"], "head_dim": text["kv_channels"],
        "vocab_size": text["vocab_size"]}}
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    return str(path)


def asked(config: Any, mesh: dict[str, int], **given: Any) -> Any:
    keys: dict[str, Any] = {"images": 1, "image_height": SIDE, "options": {"overlap_grad_reduce": False}} | given
    return small.scenario("megatron", mesh, model=config, version="main 2026-08-22", **keys)


def plan_of(config: Any, mesh: dict[str, int], *, rank: int = 0, **given: Any) -> Plan:
    job, table = prepare(asked(config, mesh, **given))
    return place(job.graph, job.mesh, table, rank)


def program_of(config: Any, mesh: dict[str, int], *, stage: int = 0, **given: Any) -> Program:
    count = (mesh.get("pp", 1) + 2) * given.get("micro_batch_size", 1)
    scenario = asked(config, mesh, microbatches=count, **given)
    job, table = prepare(scenario)
    plan = place(job.graph, job.mesh, table, stage * mesh.get("tp", 1) * mesh.get("dp_shard", 1))
    batch = scenario.training.micro_batch_size
    work = Workload(batch, scenario.training.seq_len // mesh.get("cp", 1), 1 << 16,
                    images=batch * scenario.training.images)
    return lower(plan, work, actions(table.schedule, plan.stage, scenario.num_microbatches), hooks_of(table))


def spelled(plan: Plan, *, frozen: bool = False) -> Counter[str]:
    """Last module, name and shape of each parameter of a rank; `frozen`: of those without a gradient."""
    found = Counter[str]()
    for layer in plan.layers:
        for placed in plan.of_layer(layer):
            if not (placed.spec.is_buffer or (frozen and placed.trainable)):
                found[f"{'.'.join(placed.spec.name.split('.')[-2:])} {'x'.join(map(str, placed.used_shape))}"] += 1
    return found


def told(rows: list[str]) -> Counter[str]:
    """The same of Bridge's names, which are longer."""
    return Counter(f"{'.'.join(name.split('.')[-2:])} {shape}" for name, shape in map(str.split, rows))


def test_parameters_are_those_of_bridges_model(config: str) -> None:
    """Whole, cut over tp, on a later pipeline stage, and without gradients where recipes freeze all but the mergers."""
    assert spelled(plan_of(config, {})) == told(TRUTH["whole"])
    assert spelled(plan_of(config, {"tp": 2})) == told(TRUTH["parallel"])
    assert spelled(plan_of(config, {"pp": 2}, rank=1)) == told(TRUTH["later"])
    assert spelled(plan_of(config, {}, frozen=[*TOWER, *LANGUAGE]), frozen=True) == told(TRUTH["frozen"])


def test_a_model_has_as_many_parameters_as_in_transformers_layers() -> None:
    fields = model_config("qwen3-vl-8b", None, "")
    assert build(fields, "megatron").count() == build(fields, "hf").count()


@pytest.fixture(scope="module")
def predicting(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A small Qwen 3.5 that predicts one token more."""
    vision = {key: value for key, value in TRUTH["vision"].items() if key != "deepstack_visual_indexes"}
    fields = {"model_type": "qwen3_5", "tie_word_embeddings": False, "vision_config": vision, "text_config": {
        "model_type": "qwen3_5_text", "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 128,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 1024,
        "linear_key_head_dim": 16, "linear_value_head_dim": 24, "linear_num_key_heads": 4,
        "linear_num_value_heads": 8}}
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    return {"config": str(path), "overrides": {"mtp_num_layers": 1}}


@pytest.mark.parametrize("given", [{}, {"recompute": "full"}, {"frozen": [*TOWER, *LANGUAGE, "mtp.layers"]}], ids=str)
def test_a_model_without_features_predicts_further_tokens(predicting: dict[str, Any], given: dict[str, Any]) -> None:
    expect_balance(predicting, given, {}, {"tp": 2}, {"pp": 2})
    tied = {**predicting, "overrides": {"mtp_num_layers": 1, "tie_word_embeddings": True}}
    expect_balance(tied, {"method": "lora", "lora": {"rank": 8}}, {}, {"tp": 2}, {"pp": 2})
    if "frozen" not in given:  # the tied head is no module of its own
        expect_balance(tied, given, {}, {"tp": 2})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small Qwen 2.5 VL, whose tower is transformers' own."""
    text = {"model_type": "qwen2_5_vl_text", "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 128,
            "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1024}
    vision = {"model_type": "qwen2_5_vl", "depth": 3, "hidden_size": 96, "intermediate_size": 160, "num_heads": 4,
              "out_hidden_size": 256, "window_size": 56, "fullatt_block_indexes": [1]}
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps({"model_type": "qwen2_5_vl", "tie_word_embeddings": False, "text_config": text,
                                "vision_config": vision}), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("given", [
    {}, {"micro_batch_size": 2}, {"recompute": "full"}, {"frozen": ["model.visual"]}, {"frozen": LANGUAGE},
    {"frozen": [*LANGUAGE, "model.visual.blocks", "model.visual.patch_embed"]},
    {"method": "lora", "lora": {"rank": 8}}], ids=str)
def test_a_tower_of_transformers_modules_ends_with_what_it_began_with(whole: str, given: dict[str, Any]) -> None:
    expect_balance(whole, {"image_height": 112} | given, {}, {"pp": 2}, {"tp": 2})


def averaged(config: str, mesh: dict[str, int], **given: Any) -> int:
    """Bytes of gradients that are copied behind the step's reductions, to be averaged over tp."""
    program = program_of(config, mesh, **given)
    rows = program.columns[program.columns[:, OP] == Op.ALLOC]
    return sum(int(row[AMOUNT]) for row in rows
               if program.owner(row[LAYER], row[SLOT])[0].endswith("averaged_gradients"))


def test_gradients_of_transformers_modules_are_averaged_over_tp(config: str, whole: str) -> None:
    """All in fp32, in one copy (finalize_model_grads.py:473); none of a tower that is cut, frozen, or alone."""
    sized = {"image_height": 112}
    plan = plan_of(whole, {}, **sized)
    placed = [one for layer in plan.layers for one in plan.of_layer(layer) if one.trainable]
    tower, merger = (sum(one.local for one in placed if one.spec.component in parts)
                     for parts in (("vision_tower", "projector"), ("projector",)))
    assert averaged(whole, {"tp": 2}, **sized) == 4 * tower > 0
    assert averaged(whole, {"tp": 2}, **sized, frozen=["model.visual.blocks", "model.visual.patch_embed"]) == 4 * merger
    assert averaged(whole, {}, **sized) == averaged(config, {"tp": 2}) == 0
    assert averaged(whole, {"tp": 2}, **sized, frozen=["model.visual"]) == 0


@pytest.mark.parametrize("given", [
    {}, {"recompute": "full"}, {"recompute": ["core_attn"]}, {"micro_batch_size": 2}, {"frozen": TOWER},
    {"frozen": [*TOWER, *PROJECTION]}, {"frozen": [*TOWER, *LANGUAGE]}, {"frozen": LANGUAGE}, {"frozen": PROJECTION},
    {"method": "lora", "lora": {"rank": 8}}], ids=str)
def test_a_step_ends_with_what_it_began_with(config: Any, given: dict[str, Any]) -> None:
    """On one rank, cut over tp and over cp, and on each of two stages."""
    expect_balance(config, given, {"tp": 2, "cp": 2}, {}, {"tp": 2}, {"pp": 2})


def expect_balance(config: Any, given: dict[str, Any], *meshes: dict[str, int]) -> None:
    for mesh in meshes:
        for stage in range(mesh.get("pp", 1)):
            program = program_of(config, mesh, stage=stage, **given)
            program.check()
            total = running(program)
            assert int(total[-1]) == int(total[program.phase == Phase.BUILD].max()), (mesh, stage)


@cache
def _kept_by(config: str, block: type, *, frozen: bool) -> int:
    """Bytes of a part of the tower that outlive its forward, its output left out."""
    given: dict[str, Any] = {"frozen": TOWER + PROJECTION} if frozen else {}
    program = program_of(config, {}, **given)
    plan = plan_of(config, {})
    layer = next(one for one in plan.layers if isinstance(plan.graph.kinds[plan.graph.layers[one].kind].block, block))
    rows = program.columns[(program.phase == Phase.FORWARD) & (program.microbatch == 0)]
    mine = (rows[:, OP] <= Op.FREE) & (rows[:, LAYER] == layer) & (rows[:, SLOT] != HIDDEN)
    return int(rows[mine, AMOUNT].sum())


def test_a_trained_layer_keeps_what_its_operators_save(config: str) -> None:
    """By the sources, bytes of a patch of width w, in heads of d, with an MLP of f.

    Norms and their statistics, and the residual between; q, k, v, and what the rotation keeps of each of q and k: cos
    and sin of a head in fp32; attention's output, one number a head; the sum that GELU reads, and its output.
    """
    w, f, heads = (TRUTH["vision"][name] for name in ("hidden_size", "intermediate_size", "num_heads"))
    norms, d = 2 * (2 * w + 8) + 2 * w, w // heads
    attention = 3 * 2 * w + 2 * 2 * 4 * d + 2 * w + 4 * heads
    assert _kept_by(config, PlacedLayer, frozen=False) == PATCHES * (norms + attention + 2 * 2 * f)
    assert _kept_by(config, PlacedLayer, frozen=True) == 0


def test_patches_rotation_and_features_keep_what_bridges_code_saves(config: str) -> None:
    """Patches what is told to the byte; of a rotated head of the tower cos and sin; of features the mask alone.

    The mask is a byte a token, the same for all layers, and not counted.
    """
    assert _kept_by(config, PlacedPatches, frozen=False) == sum(SAVED["patches"])
    assert sum(SAVED["rotation of the tower"]) == PATCHES * 2 * 4 * 24
    assert sum(SAVED["rotation of the decoder"]) == 32 * 2 * 2 * 24
    assert (SAVED["features"], SAVED["features of two sequences"]) == ([32], [64])


def test_mergers_keep_their_norm_and_both_products(config: str) -> None:
    """A merger of features keeps squares of patches; features themselves die when the model's forward is over."""
    w = 4 * TRUTH["vision"]["hidden_size"]
    square = 2 * w + 8 + 2 * w + 2 * w  # normed, its statistics; GELU's input and output
    assert _kept_by(config, DeepMerger, frozen=False) == TOKENS * square
    assert _kept_by(config, DeepMerger, frozen=True) == 0
    assert _kept_by(config, PlacedMerger, frozen=False) == PATCHES * 8 + TOKENS * 3 * 2 * w


def test_every_part_of_the_tower_is_on_the_first_stage(config: str) -> None:
    for rank, there in ((0, True), (1, False)):
        plan = plan_of(config, {"pp": 2}, rank=rank)
        kinds = [plan.graph.kinds[plan.graph.layers[layer].kind] for layer in plan.layers]
        assert any(isinstance(kind.block, VisionPart) for kind in kinds) is there


def test_fused_rotation_is_taken_back_by_one_provider_and_refused_by_another_model(config: str, whole: str) -> None:
    """Bridge 067f987d models/gpt_provider.py:230, which makes Qwen 2.5 VL's language model; Qwen3-VL has its own."""
    fused, apart = (simulate(asked(whole, {}, image_height=112, options={"apply_rope_fusion": on}))
                    for on in (True, False))
    assert apart.status == "ok"
    assert [one.what for one in fused.assumptions if one not in apart.assumptions] == ["apply_rope_fusion"]
    assert (fused.ranks, fused.time) == (apart.ranks, apart.time)
    refused = simulate(asked(config, {}, options={"apply_rope_fusion": True}))
    assert refused.status == "illegal"
    assert "not supported for Qwen3-VL" in refused.problems[0].message
