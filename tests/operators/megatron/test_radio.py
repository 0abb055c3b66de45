"""RADIO of Megatron-Core before its layers, and tiles of Nemotron Nano 2 VL, as core's own code ran on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import small
from checkout import ROOT
from eventlog import Events, grouped
from simcore.errors import InputError, NotYet
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.memory.ledger import running
from simcore.models.frozen import with_frozen
from simcore.models.graph import build, model_config
from simcore.models.vision import nemotron_omni
from simcore.models.vision.around import IMAGE_SIDES
from simcore.operators.megatron import implementation as megatron
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.pipeline.schedule import actions
from simcore.placement.plan import place
from simcore.program.lower import lower
from simcore.program.outline import Phase
from simcore.program.record_layers import Workload
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Op, Param, Section

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/tape/radio-core-main-2026-08-22.json").read_text(
    encoding="utf-8"))
SIZES = TRUTH["sizes"]
CASES = [f"{kind} {images}{frozen}" for kind in ("images", "tiles") for images in (1, 2) for frozen in ("", " frozen")]
LAST_OF = {"images": (96, 64), "tiles": (64, 64)}
GIVEN: tuple[dict[str, Any], ...] = (
    {}, {"recompute": "full"}, {"micro_batch_size": 2}, {"images": 3}, {"frozen": ["vision_model"]},
    {"frozen": ["vision_model", "language_model"]}, {"frozen": ["vision_model", "vision_projector"]},
    {"method": "lora", "lora": {"rank": 8}, "images": 2})
INDICES = 512
"""Bytes of tensors of places and masks, which are not counted, are under these."""


def fields_of(kind: str) -> dict[str, Any]:
    """The small tower that was run, before a small Nemotron-H."""
    return {"model_type": "nemotron_h_vl" if kind == "tiles" else "nemotron_h_omni", "has_sound": False,
            "video_temporal_patch_size": 1, "projector_hidden_size": 128, "vision_hidden_size": SIZES["width"],
            "vision_config": {"model_type": "radio", "hidden_size": SIZES["width"], "max_img_size": SIZES["side"],
                              "num_attention_heads": 4, "num_hidden_layers": 2},
            "text_config": {"model_type": "nemotron_h", "hidden_size": SIZES["hidden"], "vocab_size": 64,
                            "hybrid_override_pattern": "*-*-", "intermediate_size": 64, "num_attention_heads": 4,
                            "num_key_value_heads": 2}}


def tapes_of(name: str) -> list[RecordedLayer]:
    """The parts of a case up to the projector, recorded on their own."""
    kind, images, *frozen = name.split()
    graph, unmatched = with_frozen(build(fields_of(kind) | {IMAGE_SIDES: list(LAST_OF[kind])}, "megatron"),
                                   ("vision_model",) if frozen else ())
    assert not unmatched
    slots, tapes = dict[tuple[str, str], int](), list[RecordedLayer]()
    for layer in graph.layers[:1 + graph.num_tower_parts]:
        params = {spec.name: Param(spec.name, spec.shape, "bf16", spec.trainable)
                  for spec in graph.tensors[layer.kind] if not spec.is_buffer}
        run = LayerWorkload(1, SIZES["seq"], "bf16", params, images=int(images), input_requires_grad=not frozen,
                            options=MegatronOptions(pixels="bf16"))
        tapes.append(megatron.record(graph.kinds[layer.kind], run, slots, {}))
    return tapes


def events(section: Section) -> Events:
    return [row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE)]


def large(name: str, at: str) -> Events:
    """Events of a measured section, without indices."""
    found = [one["events"] for one in TRUTH[name] if one["at"] == at]
    return [size for size in found[0] if abs(size) >= INDICES] if found else []


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles as small as those that were run."""
    monkeypatch.setattr(nemotron_omni, "_TILE", 64)


def without_pixels(name: str, found: Events) -> Events:
    """Pixels were cut into patches before images were measured."""
    kind, images, *_ = name.split()
    size = int(images) * LAST_OF[kind][0] * LAST_OF[kind][1] * 3 * 2
    return [one for one in found if abs(one) != size]


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("name", CASES)
def test_every_event_before_the_layers(name: str) -> None:
    """In order, forward; then backward but for what dies last: gradients that the caller holds."""
    tape = tapes_of(name)[1]
    assert grouped(without_pixels(name, events(tape.forward))) == grouped(without_pixels(name, large(name, "forward")))
    mine, truth = grouped(events(tape.backward)), grouped(large(name, "backward")[1:])
    assert mine[:-1] == truth[:-1], name


@pytest.mark.usefixtures("tiles")
def test_what_is_named_dies_behind_the_layers() -> None:
    """With the first layer's input, which here the first layer's backward frees unless the tower is frozen."""
    for name in CASES:
        first = SIZES["width"] * 2 * int(name.split()[1]) * (24 + 10 if name.startswith("images") else 16 + 16)
        truth = [size for size in large(name, "layers")[1:] if abs(size) != first]
        dead = [size for size in events(tapes_of(name)[-1].forward) if size in truth]
        assert sorted(dead[:len(truth)]) == sorted(truth), name


@pytest.mark.usefixtures("tiles")
def test_a_new_sequence_and_its_backward() -> None:
    """The embedding was three tokens shorter than the sequence that was run: an image was one token of four."""
    mine = tapes_of("tiles 1")[-1]
    whole, tokens, text = (2 * SIZES["hidden"] * count for count in (SIZES["seq"], 4, SIZES["seq"] - 4))
    shorter = text + 2 * SIZES["hidden"]
    forward = [size for size in large("collapsed", "forward") if abs(size) in (whole, text)]
    assert events(mine.forward)[-3:] == forward
    truth = [whole if size == shorter else -whole if size == -shorter else size
             for size in large("collapsed", "backward") if abs(size) in (whole, tokens, text, shorter)]
    found = events(mine.backward)[:11]
    assert [size for size in found if size > 0] == [size for size in truth if size > 0]
    assert found[:4] == truth[:4]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Path of a small model that reads tiles of 512 pixels."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields_of("tiles")), encoding="utf-8")
    return path


def asked(config: Path, mesh: dict[str, int], **given: Any) -> Any:
    keys: dict[str, Any] = {"images": 1, "seq_len": 1024, "options": {"overlap_grad_reduce": False}} | given
    return small.scenario("megatron", mesh, model=str(config), version="main 2026-08-22", **keys)


def test_a_step_of_tiles_ends_with_what_it_began_with(config: Path) -> None:
    """On one rank, cut over tp, and on each of two stages; trained, frozen in parts, or with adapters."""
    for given in GIVEN:
        batch = given.get("micro_batch_size", 1)
        for mesh in ({}, {"tp": 2}, {"pp": 2}):
            for stage in range(mesh.get("pp", 1)):
                scenario = asked(config, mesh, microbatches=3 * batch, **given)
                job, table = prepare(scenario)
                plan = place(job.graph, job.mesh, table, stage * mesh.get("tp", 1))
                work = Workload(batch, scenario.training.seq_len, 1 << 16, images=batch * scenario.training.images)
                program = lower(plan, work, actions(table.schedule, plan.stage, scenario.num_microbatches),
                                hooks_of(table))
                program.check()
                total = running(program)
                assert int(total[-1]) == int(total[program.phase == Phase.BUILD].max()), (given, mesh, stage)


def test_what_was_not_read_is_refused(config: Path) -> None:
    with pytest.raises(NotYet, match="context parallelism of core's LLaVAModel"):
        prepare(asked(config, {"cp": 2}))
    with pytest.raises(InputError, match="all images of nemotron_h_vl have one size"):
        prepare(asked(config, {}, image_height=1024))


def test_a_published_name_is_the_same_model() -> None:
    fields = model_config("nvidia/NVIDIA-Nemotron-Nano-12B-v2-VL-BF16", None, "")
    assert build(fields, "megatron").count() == build(fields, "hf").count() == 13_171_374_592
