"""Steps of models that read images under PEFT's adapters, as transformers runs them: tests/truth/tape/README.md.

The tower is frozen. Beside transformers' checkpoints those towers whose front takes a gradient are replayed and
differentiated all the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from checkout import ROOT
from eventlog import Events, grouped
from every import expect_of_every
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.memory.ledger import running
from simcore.operators.hf import implementation as hf
from simcore.pipeline.schedule import actions
from simcore.placement.plan import place
from simcore.program.lower import lower
from simcore.program.outline import Phase
from simcore.program.record_layers import Workload, keys_of, run_of
from simcore.recording.layer import RecordedLayer
from simcore.recording.tape import Op, Section
from simcore.simulate import simulate

CASES: dict[str, Any] = json.loads((
    ROOT / "tests/truth/tape/vision-adapted-torch-2.13.0-transformers-5.23.0.json").read_text(encoding="utf-8"))
PATTERN = r"model\.language_model\.layers\.[\d]+\.(mlp|self_attn)\.(up|down|gate|q|k|v|o)_proj"
INSIDE = ("mask.prefix_sum", "mask.contiguous", "nonzero", "multi_modal_projector.unfold.contiguous",
          "multi_modal_projector.fold.contiguous")
"""Allocated inside of CUDA's kernels: a log of operators has none of it."""
SMALL = 400
"""Bytes of lengths, positions, frequencies and statistics that one of both leaves out."""
DELTA = 0.0006
"""Part of a peak by which Qwen 3.5's decoder differs: numbers of heads under autocast."""
ORDERS = 800
"""Bytes an image of orders of windows and tokens, and of their lengths, which the graph keeps."""
MASKS = 2 * 128 * 128
"""Bytes a sequence of a mask of Gemma 3's, two of which live until the first layer is replayed, upstream one.

In forward upstream has masks of truth values besides."""
REST = ("sharded_param", "opt_state", "buffer", "workspace")
ADAPTED = [name for name, row in CASES.items() if not row["case"].get("full")]
SLACK = 0.003
"""Part of a peak by which a step differs that trains all, tower and decoder: gradients that wait for one another."""


def asked(name: str, folder: Path) -> Scenario:
    case, path = CASES[name]["case"], folder / f"{name}.json"
    path.write_text(json.dumps(case["fields"]), encoding="utf-8")
    training: dict[str, Any] = {
        "seq_len": case["seq"], "micro_batch_size": case["batch"], "images": case["images"],
        "recompute": "full" if case["recompute"] else "none"}
    training |= {"frozen": case["frozen"]} if case.get("full") else {
        "method": "lora", "lora": {"rank": 8, "target_modules": PATTERN, "dtype": "fp32"}}
    training |= dict(zip(("image_height", "image_width"), case["sides"], strict=True)) if "sides" in case else {}
    attention = case.get("attention", "sdpa" if "sides" in case else "eager")
    return Scenario.model_validate({
        "name": "sees", "model": {"config": str(path)}, "framework": "ddp", "topology": "dgx-h100",
        "mesh": {"dp_replicate": 1}, "training": training,
        "framework_options": {"attn_implementation": attention, "autocast": True,
                              **({"checkpoint_frozen_layers": False} if case.get("only_trained") else {})}})


def expect_peaks(name: str, folder: Path) -> None:
    """To the byte, but for lengths of windows, and masks of replayed layers that see images."""
    scenario, truth = asked(name, folder), CASES[name]["peaks"]
    report = simulate(scenario)
    assert report.status == "ok", report.problems
    peak = report.ranks[0].peak
    assert peak is not None
    rest = sum(peak.by_category.get(key, 0) for key in REST) + _given(CASES[name]["case"])
    found = {half: max(size for phase, size in peak.by_phase.items() if phase in phases) - rest for half, phases in (
        ("forward", ("forward", "loss")), ("backward", ("backward", "recompute")))}
    case = CASES[name]["case"]
    orders, masks = ORDERS * case["batch"] * case["images"], MASKS * case["batch"] * name.startswith("gemma3")
    if case.get("full"):
        assert all(abs(found[half] - size) <= SLACK * size + masks for half, size in truth.items()), (found, truth)
        return
    delta = int(DELTA * truth["backward"]) * name.startswith("qwen3.5")
    assert -orders <= found["backward"] - truth["backward"] <= masks * case["recompute"] + delta, (found, truth)
    assert -orders - masks - delta <= found["forward"] - truth["forward"] <= 0, (found, truth)


def _given(case: dict[str, Any]) -> int:
    """Bytes of images, tokens and labels."""
    vision = case["fields"]["vision_config"]
    sides = case.get("sides", vision.get("image_size", 0))
    sides = sides if isinstance(sides, list) else [sides] * 2
    frames = vision.get("temporal_patch_size", 1)
    return int(case["batch"] * (case["images"] * 4 * 3 * frames * sides[0] * sides[1] + 2 * 8 * case["seq"]))


def tower_of(name: str, folder: Path) -> tuple[list[tuple[str, RecordedLayer]], dict[int, str]]:
    """(recordings of the parts of the tower in running order, names of storages)."""
    scenario = asked(name, folder)
    job, table = prepare(scenario)
    plan, slots = place(job.graph, job.mesh, table, 0), dict[tuple[str, str], int]()
    case = CASES[name]["case"]
    workload = Workload(case["batch"], case["seq"], 0, images=case["batch"] * case["images"])
    keys, found = keys_of(plan), []
    for layer in plan.graph.layers[1:1 + plan.graph.num_tower_parts]:
        run = run_of(plan, keys[layer.index], workload)
        found.append((layer.path, hf.record(plan.graph.kinds[layer.kind], run, slots, {})))
    return found, {number: name for (name, _), number in slots.items()}


def sizes(names: dict[int, str], *sections: Section) -> Events:
    return [row[3] for section in sections for row in section.rows
            if row[0] in (Op.ALLOC, Op.FREE) and names[row[2]] not in INSIDE and abs(row[3]) > SMALL]


def expect_tower(name: str, folder: Path) -> None:
    """Every event of a layer's forward; of the whole tower's backward the sizes that are made, in order."""
    truth = {section["at"]: [size for size in section["events"] if abs(size) > SMALL]
             for section in CASES[name]["sections"]}
    tapes, names = tower_of(name, folder)
    layers = [tape for path, tape in tapes if any(part in path for part in (".layers.", ".layer.", ".blocks."))]
    for number, tape in enumerate(layers[:1]):
        assert grouped(sizes(names, tape.forward, tape.after)) == grouped(truth[f"layer {number}"]), number
    made = [size for _, tape in reversed(tapes) for size in sizes(names, tape.backward) if size > 0]
    theirs = [size for size in CASES[name]["backward"] if size > SMALL]
    assert bool(theirs) == (CASES[name]["case"]["recompute"] and not name.startswith("qwen3"))
    assert made[len(made) - len(theirs):] == theirs


def expect_balance(name: str, folder: Path) -> None:
    """A step ends with what it began with: the graph's hold on the embedding's output ends with its backward."""
    scenario = asked(name, folder)
    job, table = prepare(scenario)
    plan, case = place(job.graph, job.mesh, table, 0), CASES[name]["case"]
    work = Workload(case["batch"], case["seq"], 0, images=case["batch"] * case["images"])
    program = lower(plan, work, actions(table.schedule, plan.stage, scenario.num_microbatches), hooks_of(table))
    program.check()
    total = running(program)
    assert int(total[-1]) == int(total[program.phase == Phase.BUILD].max())


def test_a_step_ends_with_what_it_began_with(tmp_path: Path) -> None:
    expect_of_every(((name, name) for name in CASES), lambda name: expect_balance(name, tmp_path))


def test_peaks_of_a_step_are_those_that_were_measured(tmp_path: Path) -> None:
    expect_of_every(((name, name) for name in CASES), lambda name: expect_peaks(name, tmp_path))


def test_a_frozen_tower_is_replayed_and_differentiated_as_measured(tmp_path: Path) -> None:
    expect_of_every(((name, name) for name in ADAPTED), lambda name: expect_tower(name, tmp_path))


def test_adapters_are_those_that_the_pattern_gives(tmp_path: Path) -> None:
    for name in ADAPTED:
        row = CASES[name]
        graph = prepare(asked(name, tmp_path))[0].graph
        adapters = [layer.path for layer in graph.layers for spec in graph.tensors[layer.kind]
                    if spec.module == "adapter"]
        assert len(adapters) == row["trained"], name
        assert all(path.startswith("model.language_model.layers.") for path in adapters)
