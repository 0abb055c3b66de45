"""RADIO before Automodel's Nemotron-H, event by event, as its own code and Automodel's ran it on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import small
from checkout import ROOT
from eventlog import Events, grouped
from simcore.errors import NotYet
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.memory.ledger import running
from simcore.models.frozen import with_frozen
from simcore.models.graph import build, model_config
from simcore.models.vision.around import IMAGE_SIDES
from simcore.models.vision_blocks import VisionPart
from simcore.operators.automodel import implementation as automodel
from simcore.operators.automodel.options import AutomodelOptions
from simcore.pipeline.schedule import actions
from simcore.placement.plan import place
from simcore.program.lower import lower
from simcore.program.outline import Phase
from simcore.program.record_layers import Workload
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Op, Param, Section

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/tape/radio-automodel-0.7.0-torch-2.13.0.json").read_text(
    encoding="utf-8"))
SIZES = TRUTH["sizes"]
CASES = ("one", "two", "frozen embedding")
FROZEN = ("vision_model", "vision_projector")


def fields_of(sides: list[int]) -> dict[str, Any]:
    """The small model that was run, before a small Nemotron-H."""
    return {"model_type": "nemotron_h_omni", "has_sound": False, "projector_hidden_size": SIZES["ffn"],
            "vision_hidden_size": SIZES["width"], IMAGE_SIDES: sides,
            "vision_config": {"model_type": "radio", "hidden_size": SIZES["width"], "max_img_size": SIZES["side"],
                              "num_attention_heads": SIZES["heads"], "num_hidden_layers": SIZES["layers"]},
            "text_config": {"model_type": "nemotron_h", "hidden_size": SIZES["hidden"], "vocab_size": 64,
                            "hybrid_override_pattern": "*", "num_attention_heads": 4, "num_key_value_heads": 2}}


class Model:
    """The parts of a case up to the projector, recorded on their own."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.slots = dict[tuple[str, str], int]()
        frozen = (*FROZEN, *(("language_model.model.embeddings",) if case.get("frozen") else ()))
        graph, unmatched = with_frozen(build(fields_of(case["sides"]), "automodel"), frozen)
        assert not unmatched
        self.graph = graph
        self.tapes: list[RecordedLayer] = []
        for layer in graph.layers[:1 + graph.num_tower_parts]:
            params = {spec.name: Param(spec.name, spec.shape, "bf16", spec.trainable)
                      for spec in graph.tensors[layer.kind] if not spec.is_buffer}
            run = LayerWorkload(1, SIZES["seq"], "bf16", params, images=case["images"],
                                embedding_trains=not case.get("frozen"), options=AutomodelOptions(pixels="bf16"))
            self.tapes.append(automodel.record(graph.kinds[layer.kind], run, self.slots, {}))

    @staticmethod
    def events(*sections: Section) -> Events:
        return [row[3] for section in sections for row in section.rows if row[0] in (Op.ALLOC, Op.FREE)]


def measured(name: str) -> dict[str, Events]:
    """Sections of a case; a CPU keeps a norm's statistics in 16 bits, a GPU in 32."""
    case = TRUTH[name]["case"]
    rows = case["images"] * (case["sides"][0] * case["sides"][1] // 256 + 10)
    return {one["at"]: [2 * size if abs(size) == 2 * rows and one["at"].startswith("layer") else size
                        for size in one["events"]] for one in TRUTH[name]["sections"]}


def test_parameters_are_those_of_its_own_code() -> None:
    graph = build(fields_of([96, 96]), "automodel")
    found = [f"{layer.path}.{spec.name} {'x'.join(map(str, spec.shape))}" for layer in graph.layers
             for spec in graph.tensors[layer.kind] if isinstance(graph.kinds[layer.kind].block, VisionPart)]
    assert sorted(found) == sorted(TRUTH["names"])


def test_every_event_of_the_tower_and_its_projector() -> None:
    """In order. The first layer's input dies with the last layer's, which here is the projector's to tell."""
    for name in CASES:
        model, truth = Model(TRUTH[name]["case"]), measured(name)
        _, patches, first, last, end = model.tapes
        assert grouped(model.events(patches.forward)) == grouped(truth["patches"]), name
        assert grouped(model.events(first.forward, first.after)) == grouped(truth["layer 0"]), name
        held = truth["layer 0"][0]
        assert grouped(model.events(last.forward, last.after)) == grouped(truth["layer 1"][:-1]), name
        assert truth["layer 1"][-1] == -held
        assert not [tape for tape in (patches, first, last) if tape.backward.rows], name
        whole, seq = 2 * SIZES["seq"] * SIZES["hidden"], SIZES["seq"]
        mine = model.events(end.forward)
        assert mine[:1] == [-held], name
        mine = mine[1:]
        assert mine.count(whole) == mine.count(-whole) == 1  # written in place: one dies where the next is made
        assert grouped([size for size in mine if abs(size) not in (whole, seq)]) == grouped(
            [size for size in truth["projector"] if abs(size) > 2]), name


def test_every_event_of_its_backward_pass() -> None:
    """From the gradient of the merged sequence to that of the embedding's output; nothing with a frozen embedding."""
    for name in CASES:
        model, truth = Model(TRUTH[name]["case"]), measured(name)
        end = model.tapes[-1]
        if name == "frozen embedding":
            assert not end.backward.rows
            continue
        assert grouped(model.events(end.backward)) == grouped(truth["backward projector"]), name


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of a small Nemotron Omni with experts, and with a small tower of sound."""
    text = {**model_config("nemotron-3-tiny", None, "")}
    fields = fields_of([96, 96]) | {"has_sound": True, "llm_config": text, "sound_config": {
        "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128}}
    for name in ("text_config", IMAGE_SIDES):
        del fields[name]
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    return path


SOUND = ("sound_encoder", "sound_projection")


def test_a_step_ends_with_what_it_began_with(config: Path) -> None:
    """Over experts, with replay, over cp, with adapters, and with a frozen embedding; each has an image."""
    adapters = {"method": "lora", "lora": {"rank": 8, "exclude_modules": ["*vision*", "*sound*", "*lm_head*"]}}
    given: dict[str, Any]
    for mesh, given in (({"dp_shard": 2, "ep": 2}, {}), ({"dp_shard": 2, "ep": 2}, {"recompute": "full"}),
                        ({"cp": 2, "ep": 2}, {"options": {"attn": "te"}}), ({"dp_shard": 2, "ep": 2}, adapters),
                        ({"dp_shard": 2, "ep": 2}, {"micro_batch_size": 2, "images": 2})):
        keys: dict[str, Any] = {"images": 1, "image_height": 96, "frozen": [*FROZEN, *SOUND], **given}
        asked = small.scenario("automodel", mesh, model=str(config), **keys)
        job, table = prepare(asked)
        batch = asked.training.micro_batch_size
        work = Workload(batch, 64 // job.mesh.cp, 1 << 16, images=batch * keys["images"])
        program = lower(place(job.graph, job.mesh, table, 0), work, actions(table.schedule, 0, asked.num_microbatches),
                        hooks_of(table))
        program.check()
        total = running(program)
        assert int(total[-1]) == int(total[program.phase == Phase.BUILD].max()), (mesh, given)


def test_what_was_not_read_is_refused(config: Path) -> None:
    frozen = [*FROZEN, *SOUND]
    for mesh, given, words in (
            ({"dp_shard": 2}, {}, "ep 1 of Nemotron Omni"),
            ({"pp": 2, "dp_shard": 2, "ep": 2}, {}, "pp 2 of Nemotron Omni"),
            ({"dp_shard": 2, "ep": 2}, {"frozen": [FROZEN[0], *SOUND]}, "a vision tower that is trained .vision_pro"),
            ({"dp_shard": 2, "ep": 2}, {"frozen": list(SOUND)}, "a vision tower that is trained .vision_model")):
        with pytest.raises(NotYet, match=words):
            small.prepared("automodel", mesh, model=str(config), **{"images": 1, "image_height": 96, "frozen": frozen,
                                                                    **given})
