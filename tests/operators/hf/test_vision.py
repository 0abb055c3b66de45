"""Tapes of vision towers and their ends against event logs of real runs, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from checkout import ROOT
from eventlog import Events, grouped, sizes
from every import expect_of_every
from simcore.models.blocks import Embedding
from simcore.models.frozen import with_frozen
from simcore.models.graph import ModelGraph, build
from simcore.models.vision.around import IMAGE_SIDES
from simcore.models.vision_blocks import Patches, Projector, RowPatches, TowerLayer, TowerNorm
from simcore.operators.hf import implementation as hf
from simcore.operators.hf.options import HfOptions
from simcore.operators.hf.vision.deepstack import add_features
from simcore.operators.hf.vision.part import PLAIN
from simcore.operators.hf.vision.parts import siglip_part
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Kernel, Node, Op, Param, Section, Tape, Tensor

CASES: dict[str, Any] = json.loads((ROOT / "tests/truth/tape/vision-torch-2.13.0-transformers-5.23.0.json").read_text(
    encoding="utf-8"))
SMALL = 120
"""Bytes of lengths of windows, and of frequencies."""
TOKENS = ("clip_vision_model", "internvl_vision")
"""Towers with a token before the patches; a CPU keeps statistics of their norms in 16 bits."""
PLACED = ("qwen3_vl", "qwen3_5")
"""Families whose patches get learned positions."""
INSIDE = ("mask.prefix_sum", "mask.contiguous", "nonzero", "multi_modal_projector.unfold.contiguous",
          "multi_modal_projector.fold.contiguous")
"""Allocated inside of CUDA's kernels: a log of operators has none of it."""


class Model:
    """The parts of a case up to the projector, recorded on their own."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case, self.slots = case, dict[tuple[str, str], int]()
        fields = case["fields"] | {IMAGE_SIDES: case["sides"]} if "sides" in case else case["fields"]
        graph, unmatched = with_frozen(build(fields, "hf"), tuple(case["frozen"]))
        assert not unmatched
        self.graph: ModelGraph = graph
        self.tapes: list[RecordedLayer] = []
        trains = embeds = False
        attention = case.get("attention", "sdpa" if "sides" in case else "eager")
        features = any(spec.trainable for layer in graph.layers[1:graph.num_tower_parts]
                       for spec in graph.tensors[layer.kind])
        for layer in graph.layers[:1 + graph.num_tower_parts]:
            params = {spec.name: Param(spec.name, spec.shape, "bf16", spec.trainable)
                      for spec in graph.tensors[layer.kind] if not spec.is_buffer}
            run = LayerWorkload(case["batch"], case["seq"], "bf16", params, input_requires_grad=trains,
                                images=case["batch"] * case["images"], embedding_trains=embeds,
                                features_train=features,
                                options=HfOptions(attn_implementation=attention))
            self.tapes.append(hf.record(graph.kinds[layer.kind], run, self.slots, {}))
            if layer.index:
                trains = trains or any(param.trainable for param in params.values())
            else:
                embeds = any(param.trainable for param in params.values())

    def events(self, *sections: Section) -> Events:
        names = {number: name for (name, _), number in self.slots.items()}
        return [row[3] for section in sections for row in section.rows
                if row[0] in (Op.ALLOC, Op.FREE) and names[row[2]] not in INSIDE]

    def block(self, index: int) -> object:
        return self.graph.kinds[self.graph.layers[index].kind].block


def measured(name: str) -> dict[str, Events]:
    """Sections of a case; a CPU keeps a norm's statistics in 16 bits (`layer_norm` of mixed types), a GPU in 32."""
    case = CASES[name]["case"]
    vision = case["fields"]["vision_config"]
    if case["fields"]["model_type"] in (*PLACED, "qwen2_vl"):
        return {section["at"]: _with_statistics(section, case) for section in CASES[name]["sections"]}
    if "sides" in case or _has_token(name):
        return {section["at"]: section["events"] for section in CASES[name]["sections"]}
    rows = case["batch"] * case["images"] * (vision["image_size"] // vision["patch_size"]) ** 2
    found = {section["at"]: section["events"] for section in CASES[name]["sections"]}
    return {at: [2 * size if abs(size) == 2 * rows and not at.startswith(("proj", "back", "dec")) else size
                 for size in events] for at, events in found.items()}


def _with_statistics(section: dict[str, Any], case: dict[str, Any]) -> Events:
    """Events of a section, those of a norm's statistics in 32 bits: of all patches, or of all squares of them."""
    patch = case["fields"]["vision_config"]["patch_size"]
    count = case["batch"] * case["images"] * (case["sides"][0] // patch) * (case["sides"][1] // patch)
    rows = {2 * (count // 4 if section["at"].startswith("deep") else count)}
    in_tower = section["at"].startswith(("layer", "deep", "proj"))
    return [2 * size if in_tower and abs(size) in rows else size for size in section["events"]]


def expect_forward(name: str) -> None:
    """Every event of the tower, in order."""
    model, truth = Model(CASES[name]["case"]), measured(name)
    expect = {"qwen2_5_vl": expect_grids, "qwen2_vl": expect_plain_grids, "mistral3": expect_rows,
              "llava": expect_rows, "gemma4": expect_filled,
              **dict.fromkeys(PLACED, expect_placed)}.get(
        CASES[name]["case"]["fields"]["model_type"])
    expect = expect_token if _has_token(name) else expect
    if expect:
        expect(model, truth)
        return
    numbers = {"patches": 0} | {f"layer {i}": i + 1 for i in range(2)} | {"norm": 3}
    for at, place in numbers.items():
        tape = model.tapes[1 + place]
        assert grouped(model.events(tape.forward, tape.after)) == grouped(truth[at]), at
        assert not tape.backward.rows
        assert not tape.grads


def expect_grids(model: Model, truth: dict[str, Events]) -> None:
    """Every event of a tower of images of any size; the last layer ends with the order of tokens."""
    patches, first, last, _ = model.tapes[1:]
    before, at = model.events(patches.forward), 3
    assert sorted(before[:at])[-1] in truth["embedding"]  # the images in 16 bits
    assert all(size in truth["visual"] for size in sorted(before[:at])[:-1])
    frequencies = {size for size in truth["patches"] if abs(size) < min(map(abs, before[at:]))}
    assert grouped(before[at:]) == grouped([size for size in truth["patches"] if size not in frequencies])
    assert grouped(model.events(first.forward, first.after)) == grouped(
        [size for size in truth["layer 0"] if abs(size) > SMALL])
    mine, theirs = model.events(last.forward), truth["layer 1"]
    assert grouped(mine) == grouped([size for size in theirs[:len(theirs) - 4] if abs(size) > SMALL])


def expect_plain_grids(model: Model, truth: dict[str, Events]) -> None:
    """The same without windows, with the statistics of norms in 32 bits."""
    patches, first, last, _ = model.tapes[1:]
    before, at = model.events(patches.forward), 2
    assert sorted(before[:at])[-1] in truth["embedding"]  # the images in 16 bits
    assert min(before[:at]) in truth["visual"]
    assert grouped(before[at:]) == grouped([size for size in truth["patches"] if abs(size) > 40])
    for number, tape in enumerate((first, last)):
        assert grouped(model.events(tape.forward, tape.after)) == grouped(
            [size for size in truth[f"layer {number}"] if abs(size) > 40]), number


def _has_token(name: str) -> bool:
    return CASES[name]["case"]["fields"]["vision_config"]["model_type"] in TOKENS


def expect_token(model: Model, truth: dict[str, Events]) -> None:
    """Every event of patches and layers; InternVL's model casts images before the tower is called."""
    vision, few = model.case["fields"]["vision_config"], model.case["fields"]["model_type"] == "internvl"
    side, patch = (one[0] if isinstance(one, list) else one for one in (vision["image_size"], vision["patch_size"]))
    rows = 2 * model.case["batch"] * model.case["images"] * ((side // patch)**2 + 1)
    for number, at in enumerate(("patches", "layer 0", "layer 1")[:3 - few]):
        tape = model.tapes[1 + number]
        theirs = [2 * size if abs(size) == rows else size for size in truth[at]]
        assert grouped(model.events(tape.forward, tape.after)[int(few and not number):]) == grouped(theirs), at


def expect_placed(model: Model, truth: dict[str, Events]) -> None:
    """Every event of a tower with learned positions, and of what feeds the decoder."""
    tapes = model.tapes[1:]
    before, at = model.events(tapes[0].forward), 4  # the images in 16 bits, indices, their weights, positions
    assert sorted(before[:at])[-1] in truth["embedding"]
    assert set(before[1:at]) <= set(truth["visual"])
    assert grouped(before[at:]) == grouped([size for size in truth["patches"] if abs(size) > 40])
    for place, section in ((1, "layer 0"), (2, "deep 0" if "deep 0" in truth else "layer 1")):
        tape = tapes[place]
        assert grouped(model.events(tape.forward, tape.after)) == grouped(
            [size for size in truth[section] if abs(size) > 40]), section


def expect_filled(model: Model, truth: dict[str, Events]) -> None:
    """Every event of Gemma 4's layers; before and behind them those larger than positions and truth values."""
    patches, first, last, end = model.tapes[1:]
    most = 16 * 144 * model.case["batch"] * model.case["images"]
    both = [[size for size in events if abs(size) > most] for events in (
        model.events(patches.forward), truth["patches"])]
    assert grouped(both[0]) == grouped(both[1])
    assert grouped(model.events(first.forward, first.after)) == grouped(truth["layer 0"])
    mine, theirs = model.events(last.forward, last.after, end.forward), truth["layer 1"] + truth["pooler"]
    dropped = Counter(size for size in truth["layer 1"] if -size > most)
    assert dropped - Counter(model.events(first.forward, first.after)), "the mask and the tables"
    both = [[size for size in events if abs(size) > most] for events in (mine, theirs)]
    assert grouped(both[0])[:len(grouped(both[1])) - 1] == grouped(both[1])[:-1]


def expect_rows(model: Model, truth: dict[str, Events]) -> None:
    """Every event of Pixtral's tower but of the pieces of which positions are made; its end drops what it held."""
    patches, first, last, end = model.tapes[1:]
    block = model.block(1)
    assert isinstance(block, RowPatches)
    pieces = {sign * size * count for sign in (1, -1) for size in (8, 16) for count in (
        block.count, model.case["batch"] * model.case["images"] * block.count)}
    both = [[size for size in events if abs(size) > SMALL and size not in pieces]
            for events in (model.events(patches.forward), truth["patches"])]
    assert grouped(both[0]) == grouped(both[1])
    assert grouped(model.events(first.forward)) == grouped(truth["layer 0"])
    mine, theirs = (*model.events(last.forward), *model.events(end.forward)), (*truth["layer 1"], *truth["projector"])
    up_to = max(index for index, size in enumerate(truth["layer 1"]) if size > 0)
    rows = 2 * model.case["batch"] * model.case["images"] * block.count
    assert grouped(list(mine[:up_to])) == grouped(list(theirs[:up_to]))
    dropped = Counter(size for size in truth["layer 1"][up_to:] if -size > SMALL)
    assert dropped[-rows * block.width] == 2 + 3  # what the layer made, two of inputs and the convolution's output


def expect_projector(name: str) -> None:
    """Every event until the images are in their places; then what is left until the model has returned."""
    model, truth = Model(CASES[name]["case"]), measured(name)
    case, tape = CASES[name]["case"], model.tapes[-1]
    merged = 2 * case["batch"] * case["seq"] * case["fields"]["text_config"]["hidden_size"]
    if _has_token(name):
        mine, theirs = ([size for size in events[:events.index(merged)] if size > SMALL]
                        for events in (model.events(tape.forward), truth["projector"]))
        if case["batch"] * case["images"] > 1:  # under a tracker a bias is not added in place (ATen's Linear.cpp)
            del theirs[1]
        assert mine[len(mine) - len(theirs):] == theirs
        return
    if case["fields"]["model_type"] == "gemma4":
        expect_filled_end(model, truth["projector"], merged)
        return
    grids = "sides" in case
    # The order of tokens is made before the merger is called; what Mistral's tower drops is in front of its projector.
    family = case["fields"]["model_type"]
    sorts = 3 * ("qwen2_5" in family) + 9 * (family in ("mistral3", "llava"))
    mine, theirs = model.events(tape.forward)[sorts:], truth["projector"]
    up_to = [events.index(-merged, events.index(merged)) for events in (mine, theirs)]
    both = [[size for size in events[:end] if abs(size) > (SMALL if grids else 8)]
            for events, end in zip((mine, theirs), up_to, strict=True)]
    assert grouped(both[0]) == grouped(both[1])


def expect_filled_end(model: Model, truth: Events, merged: int) -> None:
    """The same of Gemma 4's end but positions and truth values; its pooler is in front.

    Left out is what is selected of the sequence to count its image tokens.
    """
    count = model.case["batch"] * model.case["images"]
    tokens = 12 * count * 2 * model.case["fields"]["text_config"]["hidden_size"]
    mine, theirs = ([size for size in events[:events.index(-merged, events.index(merged))] if abs(size) > 300 * count]
                    for events in (model.events(model.tapes[-1].forward), truth))
    at = theirs.index(-tokens)
    assert theirs[at - 1] == tokens
    del theirs[at - 1:at + 1]
    assert grouped(mine[-len(theirs):]) == grouped(theirs)


def expect_backward(name: str) -> None:
    """Every event from the merged sequence's gradient to that of the embedding's output, and what is dropped last."""
    model, truth = Model(CASES[name]["case"]), measured(name)
    tape = model.tapes[-1]
    theirs = [size for size in truth.get("backward projector", []) if abs(size) > 8]
    if _has_token(name):  # but statistics of a norm, and when a bias that was added apart gets its gradient
        assert Counter(size for size in model.events(tape.backward) if abs(size) > SMALL) == Counter(
            size for size in theirs if abs(size) > SMALL)
        return
    assert grouped(model.events(tape.backward)) == grouped(theirs)
    if tape.release.rows:  # the output has the tokens of images
        assert sizes(model.events(tape.release))[-1] == truth["over"][-1]


def test_the_tower_and_the_projector_allocate_what_was_measured() -> None:
    for expect in (expect_forward, expect_projector, expect_backward):
        expect_of_every(((name, name) for name in CASES), expect)


def test_layers_of_a_trained_tower_allocate_what_was_measured() -> None:
    """Forward event by event, but for lengths of windows; the events of backward are those that were measured."""
    row = json.loads((ROOT / "tests/truth/tape/vision-trained-torch-2.13.0-transformers-5.23.0.json").read_text(
        encoding="utf-8"))
    model, truth = Model(row["case"]), {section["at"]: section["events"] for section in row["sections"]}
    left = Counter(truth["backward projector"])
    for place, section in ((2, "layer 0"), (3, "layer 1")):
        tape = model.tapes[place]
        assert Counter(one for one in model.events(tape.forward, tape.after) if abs(one) > 400) == Counter(
            one for one in truth[section] if abs(one) > 400), section
        mine = Counter(model.events(tape.backward))
        assert mine.total() > 60
        assert not mine - left, section
        left -= mine
    assert left == Counter(one for place in (1, 4) for one in model.events(model.tapes[place].backward))


def test_a_trained_tower_under_a_mask_allocates_what_was_measured() -> None:
    """Mistral 3's, as above, but for sums of rows: a CPU's kernel rounds none up, and makes none in backward."""
    name = "vision-trained-mistral3-torch-2.13.0-transformers-5.23.0.json"
    row = json.loads((ROOT / "tests/truth/tape" / name).read_text(encoding="utf-8"))
    model, truth = Model(row["case"]), {section["at"]: section["events"] for section in row["sections"]}
    patches, first, last, end = model.tapes[1:]
    block = model.block(1)
    assert isinstance(block, RowPatches)
    sums = {4 * 4 * count for count in (block.count, -(-block.count // 32) * 32)}

    def without_sums(events: Events) -> Counter[int]:
        return Counter(one for one in events if abs(one) not in sums)

    assert without_sums(model.events(first.forward)) == without_sums(truth["layer 0"])
    left = without_sums(truth["backward projector"])
    for tape, least in ((end, 25), (last, 90), (first, 90), (patches, 10)):
        made = without_sums([one for one in model.events(tape.backward) if abs(one) > SMALL])
        assert made.total() > least
        assert not made - left
        left -= made
    assert left.total() < 40, left


def test_a_trained_siglip_allocates_what_was_measured() -> None:
    """Gemma 3's two images in a row, in torch's attention; a CPU keeps a norm's statistics in 16 bits."""
    name = "vision-trained-gemma3-torch-2.13.0-transformers-5.23.0.json"
    row = json.loads((ROOT / "tests/truth/tape" / name).read_text(encoding="utf-8"))
    case = row["case"]
    truth = {section["at"]: section["events"] for section in row["sections"]}
    fields, slots, tapes = case["fields"], dict[tuple[str, str], int](), list[RecordedLayer]()
    graph = build(fields, "hf")
    rows = case["batch"] * case["images"] * (fields["vision_config"]["image_size"] // 14) ** 2
    for number, layer in enumerate(graph.layers[1:5]):
        params = {spec.name: Param(spec.name, spec.shape, "bf16", trainable=True)
                  for spec in graph.tensors[layer.kind] if not spec.is_buffer}
        run = LayerWorkload(case["batch"], case["seq"], "bf16", params, input_requires_grad=number > 0,
                            images=case["batch"] * case["images"], options=HfOptions())
        block = graph.kinds[layer.kind].block
        assert isinstance(block, Patches | TowerLayer | TowerNorm)
        tapes.append(siglip_part(Tape(slots, {}), block, run, PLAIN))
    patches, first, last, norm = tapes

    def events(*sections: Section) -> Counter[int]:
        return Counter(row[3] // 2 if abs(row[3]) == 4 * rows else row[3] for section in sections
                       for row in section.rows if row[0] in (Op.ALLOC, Op.FREE))

    for at, tape in (("patches", patches), ("layer 0", first), ("layer 1", last), ("norm", norm)):
        assert events(tape.forward, tape.after) == Counter(truth[at]), at
    left = Counter(truth["backward projector"])
    for tape, least in ((norm, 5), (last, 45), (first, 45), (patches, 5)):
        made = events(tape.backward)
        assert made.total() > least
        assert not made - left
        left -= made


def test_every_birth_has_a_death_in_its_slot_and_layer() -> None:
    """Across the tower: the embedding's output dies in the projector, the patches behind the norm."""
    for name, row in CASES.items():
        model, balance = Model(row["case"]), Counter[tuple[int, int]]()
        for i, tape in enumerate(model.tapes):
            for section in (tape.forward, tape.after, tape.late, tape.casts, tape.backward,
                            tape.release):
                for op, offset, slot, amount, _, _ in section.rows:
                    if op in (Op.ALLOC, Op.FREE):
                        balance[i + offset, slot] += amount
            for _, slot, num_bytes in tape.grads:
                balance[i, slot] -= num_bytes
        names = {number: slot for slot, number in model.slots.items()}
        left = {names[slot][0] for (at, slot), amount in balance.items() if amount and at < len(model.tapes)}
        handed_on = {"hidden_states", "position_ids", "causal_mask"}
        assert {one for one in left if not one.startswith("rotary.")} <= handed_on, (name, left)


def test_features_behind_a_layer_allocate_what_was_measured() -> None:
    """From the copy of a layer's output on; in backward from its gradient on, which is dropped in between."""
    for name in ("qwen3-vl", "qwen3-vl-b2"):
        case = CASES[name]["case"]
        shape = (case["batch"], case["seq"], case["fields"]["text_config"]["hidden_size"])
        slots: dict[tuple[str, str], int] = {}
        tape = Tape(slots, {})
        x = Tensor(None, shape, "bf16", Node())
        tokens = case["batch"] * case["images"] * case["sides"][0] // 32 * (case["sides"][1] // 32)
        out = add_features(tape, x, tokens)
        forward = [row[3] for row in tape.cut().rows if row[0] in (Op.ALLOC, Op.FREE)]
        tape.seed(out, tape.empty(shape, "bf16", "grad"))
        tape.cut()
        tape.backward()
        backward = [row[3] for row in tape.cut().rows if row[0] in (Op.ALLOC, Op.FREE)]
        truth = {section["at"]: section["events"] for section in CASES[name]["sections"]}
        for mine, at in ((forward, "decoder"), (backward, "returned")):
            assert len(mine) > 4
            assert any(truth[at][i:i + len(mine)] == mine for i in range(len(truth[at]))), (name, at, mine)


def test_products_of_a_tower_are_two_operations_a_weight_and_patch() -> None:
    """Attention adds two products of the whole square of an image's patches."""
    model = Model(CASES["gemma3-vision-b2"]["case"])
    for index, tape in enumerate(model.tapes):
        block = model.block(index)
        flops = sum(row[3] for row in tape.forward.rows if row[0] == Op.COMPUTE and row[2] == Kernel.GEMM)
        weights = sum(spec.numel for spec in model.graph.tensors[model.graph.layers[index].kind]
                      if spec.module in ("linear", "conv"))
        match block:
            case Embedding() | TowerNorm():
                assert flops == 0
            case Patches():
                assert flops == 2 * 4 * block.count * weights
            case TowerLayer():
                assert flops == 2 * 4 * block.patches * (weights + 2 * block.patches * block.width)
            case Projector():
                assert flops == 2 * 4 * block.tokens * block.width * block.hidden
