"""Nemotron Omni under Megatron-Core: parameters by Bridge's own model, and what comes and goes of its towers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.errors import IllegalLayout
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.memory.ledger import running
from simcore.models.graph import build, model_config
from simcore.models.radio_blocks import RadioLayer, RadioProjector
from simcore.models.vision_blocks import VisionPart
from simcore.pipeline.schedule import actions
from simcore.placement.plan import Plan, place
from simcore.program.lower import lower
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.program.record_layers import Workload
from simcore.program.tile import AMOUNT, LAYER, OP, SLOT
from simcore.recording.tape import HIDDEN, Op

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/models/bridge-omni-main-2026-08-22.json").read_text(
    encoding="utf-8"))
PUBLISHED = 33_015_546_816
"""Parameters, by the card of Megatron-Bridge 067f987d (examples/model_verification_cards)."""
TOWERS = ["vision_model", "sound_encoder"]
SIDE = 64
PATCHES, PREFIX, WIDTH = (SIDE // 16) ** 2, 10, 1280


def fields_of(silent: bool = False) -> dict[str, Any]:
    """The small decoder that Bridge was asked about, behind the published model's towers."""
    text = TRUTH["text"]
    return {"model_type": "nemotron_h_omni", "projector_hidden_size": 20480, "vision_config": {"model_type": "radio"},
            "audio_config": TRUTH["sound"], "text_config": {
                "model_type": "nemotron_h", "hidden_size": text["hidden_size"], "hybrid_override_pattern": "M*-",
                "num_attention_heads": text["num_attention_heads"], "num_key_value_heads": text["num_query_groups"],
                "head_dim": text["kv_channels"], "vocab_size": text["vocab_size"], "n_groups": text["mamba_num_groups"],
                "mamba_num_heads": text["mamba_num_heads"], "mamba_head_dim": text["mamba_head_dim"],
                "ssm_state_size": text["mamba_state_dim"], "intermediate_size": text["ffn_hidden_size"]},
            **({"has_sound": False, "video_temporal_patch_size": 1} if silent else {})}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of its configuration with a tower of two layers, which is as good where steps are looked at."""
    path = tmp_path_factory.mktemp("model") / "config.json"
    fields = fields_of()
    fields["vision_config"] |= {"num_hidden_layers": 2}
    fields["text_config"] |= {"hybrid_override_pattern": "M*-M"}
    path.write_text(json.dumps(fields), encoding="utf-8")
    return path


def asked(config: Path, mesh: dict[str, int], **given: Any) -> Any:
    keys: dict[str, Any] = {"images": 1, "image_height": SIDE, "options": {"overlap_grad_reduce": False}} | given
    return small.scenario("megatron", mesh, model=str(config), version="main 2026-08-22", **keys)


def plan_of(config: Path, mesh: dict[str, int], **given: Any) -> Plan:
    job, table = prepare(asked(config, mesh, **given))
    return place(job.graph, job.mesh, table, 0)


def program_of(config: Path, mesh: dict[str, int], *, stage: int = 0, **given: Any) -> Program:
    count = (mesh.get("pp", 1) + 2) * given.get("micro_batch_size", 1)
    scenario = asked(config, mesh, microbatches=count, **given)
    job, table = prepare(scenario)
    plan = place(job.graph, job.mesh, table, stage * mesh.get("tp", 1) * mesh.get("dp_shard", 1))
    batch = scenario.training.micro_batch_size
    work = Workload(batch, scenario.training.seq_len // mesh.get("cp", 1), 1 << 16,
                    images=batch * scenario.training.images)
    return lower(plan, work, actions(table.schedule, plan.stage, scenario.num_microbatches), hooks_of(table))


def spelled(plan: Plan, *, frozen: bool = False) -> Counter[str]:
    """Last module, name and shape of each of a rank's parameters in towers; `frozen`: of those without a gradient."""
    found = Counter[str]()
    for layer in plan.layers:
        is_tower = isinstance(plan.graph.kinds[plan.graph.layers[layer].kind].block, VisionPart)
        for placed in plan.of_layer(layer) if is_tower else ():
            if not (placed.spec.is_buffer or (frozen and placed.trainable)):
                name = f"{plan.graph.layers[layer].path}.{placed.spec.name}".split(".")
                found[f"{_last(name)} {'x'.join(map(str, placed.used_shape))}"] += 1
    return found


def told(rows: list[str]) -> Counter[str]:
    """The same of Bridge's names, which are longer."""
    found = Counter[str]()
    for count, name, shape in map(str.split, rows):
        if "language_model." not in name:
            found[f"{_last(name.split('.'))} {shape}"] += int(count)
    return found


def _last(name: list[str]) -> str:
    """Last module of a parameter and its name; a place in a list is no module."""
    is_list = name[-2].isdigit() or name[-2] in ("*", "patch_generator", "vision_model")
    return name[-1] if is_list else ".".join(name[-2:])


def test_parameters_of_towers_are_those_of_bridges_model(tmp_path: Path) -> None:
    """Whole, cut over tp, frozen as recipes do, and without sound and videos."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields_of()), encoding="utf-8")
    assert spelled(plan_of(path, {}, frozen=TOWERS)) == told(TRUTH["whole"])
    assert spelled(plan_of(path, {"tp": 2}, frozen=TOWERS)) == told(TRUTH["parallel"])
    assert spelled(plan_of(path, {}, frozen=TOWERS), frozen=True) == told(TRUTH["frozen"])
    path.write_text(json.dumps(fields_of(silent=True)), encoding="utf-8")
    assert spelled(plan_of(path, {}, frozen=TOWERS[:1])) == told(TRUTH["silent"])


def test_parameters_of_a_tower_of_tiles_are_those_of_bridges_model(tmp_path: Path) -> None:
    """Whole, and cut over tp."""
    path = tmp_path / "config.json"
    fields = {**fields_of(), "model_type": "nemotron_h_vl"}
    del fields["audio_config"]
    path.write_text(json.dumps(fields), encoding="utf-8")
    keys: dict[str, Any] = {"image_height": None, "seq_len": 512}
    assert spelled(plan_of(path, {}, **keys)) == told(TRUTH["tiles"])
    assert spelled(plan_of(path, {"tp": 2}, **keys)) == told(TRUTH["split"])


def test_a_model_has_as_many_parameters_as_bridge_counts() -> None:
    fields = model_config("nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16", None, "")
    assert build(fields, "megatron").count() == build(fields, "hf").count() == PUBLISHED


def test_a_step_ends_with_what_it_began_with(config: Path) -> None:
    """On one rank, cut over tp and over cp, and on each of two stages; frozen, or with adapters in the tower too."""
    lora = {"method": "lora", "lora": {"rank": 8}}
    for given in ({}, {"recompute": "full"}, {"micro_batch_size": 2}, {"images": 2},
                  {"frozen": [*TOWERS, "vision_projector"]}, {"frozen": [*TOWERS, "language_model"]}, lora,
                  {"frozen": TOWERS[1:]}, {"frozen": TOWERS[1:], "images": 3},
                  {"frozen": [*TOWERS[1:], "language_model"]}):
        keys = given if "lora" in given or "frozen" in given else {"frozen": TOWERS, **given}
        for mesh in ({}, {"tp": 2}, {"pp": 2}, {"tp": 2, "cp": 2}):
            for stage in range(mesh.get("pp", 1)):
                program = program_of(config, mesh, stage=stage, **keys)
                program.check()
                total = running(program)
                assert int(total[-1]) == int(total[program.phase == Phase.BUILD].max()), (keys, mesh, stage)


def kept_by(config: Path, block: type, **given: Any) -> int:
    """Bytes of the first part of a kind that outlive its forward, its output left out."""
    program, plan = program_of(config, {}, **given), plan_of(config, {}, **given)
    layer = next(one for one in plan.layers if isinstance(plan.graph.kinds[plan.graph.layers[one].kind].block, block))
    rows = program.columns[(program.phase == Phase.FORWARD) & (program.microbatch == 0)]
    mine = (rows[:, OP] <= Op.FREE) & (rows[:, LAYER] == layer) & (rows[:, SLOT] != HIDDEN)
    return int(rows[mine, AMOUNT].sum())


def test_a_frozen_tower_keeps_nothing_and_its_projector_what_its_products_need(config: Path) -> None:
    """By the sources: squares, their norm's output and one number a row; the squared ReLU's input and output.

    The whole sequence lives on as a part of the first layer's input.
    """
    squares, ffn = 4 * WIDTH, 20480
    tokens, hidden = PATCHES // 4, TRUTH["text"]["hidden_size"]
    assert kept_by(config, RadioLayer, frozen=TOWERS) == 0
    kept = kept_by(config, RadioProjector, frozen=TOWERS) - kept_by(config, RadioProjector, frozen=[
        *TOWERS, "vision_projector"])
    assert kept == tokens * (2 * 2 * squares + 4 + 2 * 2 * ffn), hidden


def test_what_was_not_read_is_refused(config: Path) -> None:
    for given, error, words in (
            ({"options": {}}, IllegalLayout, "Communication call has not been issued for this bucket"),
            ({"frozen": TOWERS, "options": {"overlap_moe_expert_parallel_comm": True, "overlap_grad_reduce": False}},
             IllegalLayout, "NemotronOmniModel has no build_schedule_plan")):
        with pytest.raises(error, match=words):
            prepare(asked(config, {}, **given))


def test_published_and_newer_names_of_fields_say_the_same() -> None:
    old = fields_of()
    old |= {"model_type": "NemotronH_Nano_Omni_Reasoning_V3", "llm_config": old.pop("text_config"),
            "sound_config": {**old.pop("audio_config"), "model_type": "parakeet"}, "vit_hidden_size": 1280}
    assert build(old, "megatron").count() == build(fields_of(), "megatron").count()


def test_parakeet_that_trains_has_gradients_and_states_though_it_is_given_no_sound(config: Path) -> None:
    """Whole on each tp rank, its buffer in fp32; what a rank updates of it is its part among data-parallel ranks."""
    held = [plan_of(config, {"tp": 2, "dp_shard": 4}, **given).at_rest()["sound_tower"]
            for given in ({}, {"frozen": ["sound_encoder"]})]
    assert [one.num_params for one in held] == [held[0].num_params] * 2
    assert [one.grads_bytes for one in held] == [4 * held[0].num_params, 0]
    assert [one.optimizer_bytes for one in held] == [3 * held[0].num_params, 0]
