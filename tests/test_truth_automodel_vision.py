"""Whole steps of models with a vision tower that Automodel wrapped itself, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT
from simcore.frameworks.automodel.policies import NEMO_RL
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.results.report import RankReport
from simcore.simulate import simulate
from truth_cases import told_layouts
from wrapped_steps import measured_traffic, measured_units, traffic_of, units_of

TAPE = ROOT / "tests/truth/tape"
WRITTEN, DRAWN = (json.loads((TAPE / f"automodel-{name}-0.7.0-torch-2.13.0.json").read_text(encoding="utf-8"))
                  for name in ("vision", "drawn-vision"))
"""Cases of `probe_automodel_vision.py`, and those that `draw_automodel_vision.py` draws."""
STEPS: dict[str, Any] = WRITTEN | DRAWN
NOT_YET = ("a8", "a14", "a19", "a25", "a26", "a27", "a31", "a32", "a34", "a37", "a38", "a42", "a43", "a44", "a47",
           "a49", "a58", "a59", "a61", "a64", "a68", "a69", "a72", "a78", "a80", "a86")
"""Drawn cases that are not described: towers that are trained or stand before checkpoints, but of some families."""
ILLEGAL = ("a18", "a22", "a60")
"""Drawn cases of which nothing is trained, which torch's optimizer refuses, or that copy what is not cut."""
WRAPPED = [name for name in STEPS if name not in (*NOT_YET, *ILLEGAL)]
RUN = [name for name in WRAPPED if "placed" not in STEPS[name]["case"]]
"""Cases that ran a step; of others the wrapped units alone are known, as experts run on a GPU alone."""
MODELS: dict[str, Any] = {one["name"]: one for one in json.loads(
    (TAPE / "cases-vision.json").read_text(encoding="utf-8"))}
OF_ONE_KIND = {"a24": 0.0004}
"""Cases whose peak is at most so much higher than measured, of 1: of a Gemma 4 without layers of one type, for which
a mask is made all the same, that no layer keeps."""
HIGHER = OF_ONE_KIND | {"gemma4, inputs of layers, adapted, SDPA in fp32": 0.0001}
"""The same, of all: CUDA's kernel of SDPA makes sums of rows in backward, which a CPU's does not."""
PREDICTING = 0.015
"""Part by which a peak with a module of multi-token prediction may differ: its loss is computed in the module's place,
before the last gathered unit is let go, and ids and the output of a frozen head are left out."""
LEFT_OUT = ("opt_state", "buffer")
"""Adam counts the steps of each parameter in 4 bytes; frequencies are cast with the model, or kept twice."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of configurations, one a case."""
    return tmp_path_factory.mktemp("vision")


@cache
def asked(name: str, config: Path) -> Scenario:
    case, path = STEPS[name]["case"], config / f"{name}.json"
    model = MODELS[case.get("model", "gemma3-vision")]
    vision = model["fields"]["vision_config"] | {k: case[k] for k in ("image_size",) if k in case}
    fields = case.get("fields") or model["fields"] | {"vision_config": vision}
    copies = case.get("replicas", 1)
    if "mtp" in case:
        fields |= {"mtp_num_layers": case["mtp"]}
        fields["text_config"] = fields["text_config"] | {"layer_types": [
            "linear_attention", "linear_attention", "full_attention"]}
    path.write_text(json.dumps(fields), encoding="utf-8")
    frozen = [*model["frozen"] * bool(case["images"] and case["freeze"]["freeze_vision_tower"]),
              *["model.language_model"] * case["freeze"]["freeze_language_model"]]
    training: dict[str, Any] = {
        "seq_len": case.get("seq", 512), "micro_batch_size": case.get("batch", 1), "images": case["images"],
        "frozen": frozen, "optimizer": {"implementation": "fused"}}
    if "sides" in model and case["images"]:
        training |= dict(zip(("image_height", "image_width"), case.get("sides", model["sides"]), strict=True))
    options: dict[str, Any] = {"attn_implementation": case.get("attention") or model.get(
        "attention", "sdpa" if "sides" in model else "eager"),
                               "use_liger_kernel": False}
    if case.get("model") == "qwen3.5" or "ep" in case:
        options = {"attn": "sdpa"}
    if "packed" in case:
        options["attn_implementation"] = "flash_attention_2"
        training |= {"lengths": "packed", "packed_length": case.get("seq", 512) // len(case["packed"])}
    training |= {"recompute": "full"} if case.get("checkpoint") else {}
    if "lora" in case:
        training |= {"method": "lora", "lora": {"rank": case["lora"], "exclude_modules": case["exclude_modules"]}}
        options["use_memory_efficient_lora"] = False
    policy = {"framework_version": NEMO_RL, "implementation": "hf"} if case.get("policy") else {}
    if policy:
        options.pop("use_liger_kernel")
        training["loss"] = "masked_fp32"
    return Scenario.model_validate({
        "name": "sees", **policy, "model": {"config": str(path)}, "framework": "automodel", "topology": "dgx-h100",
        "mesh": {"dp_shard": case.get("world", 8) // copies, "dp_replicate": copies, "ep": case.get("ep", 1)},
        "framework_options": options, "training": training})


@cache
def ran(name: str, config: Path) -> RankReport:
    report = simulate(asked(name, config))
    assert report.status == "ok", report.problems
    return report.ranks[0]


def test_drawn_models_that_are_not_run() -> None:
    """Some are refused by both, or not described; of a14 the libraries refuse something else."""
    assert [name for name, row in DRAWN.items() if "error" in row] == ["a14", *ILLEGAL]
    numbers = [len(DRAWN), len(set(DRAWN) & set(RUN) - set(HIGHER)), len(set(DRAWN) & set(HIGHER)), len(ILLEGAL),
               len(NOT_YET)]
    assert told_layouts("tape/automodel-drawn-vision-*") == tuple(numbers)


@pytest.mark.parametrize("name", NOT_YET + ILLEGAL)
def test_what_is_not_run_is_refused(name: str, config: Path) -> None:
    report = simulate(asked(name, config))
    assert report.status == ("illegal" if name in ILLEGAL else "error")
    assert (str(STEPS[name].get("error")).split(": ")[-1] if name in ILLEGAL else "not yet") in str(report.problems[0])


@pytest.mark.parametrize("name", WRAPPED)
def test_units_are_those_that_automodel_wraps(name: str, config: Path) -> None:
    """A frozen tower and the projector are the root's, element by element."""
    assert units_of(*prepare(asked(name, config))) == measured_units(STEPS[name])


@pytest.mark.parametrize("name", RUN)
def test_the_peak_is_made_of_what_was_measured(name: str, config: Path) -> None:
    """To the byte, in the backward of most, in the tower of large images."""
    half = max((STEPS[name][half] for half in ("forward", "backward")), key=lambda half: half["peak"])
    measured, peak = _without_mask(name, half["breakdown"]), ran(name, config).peak
    measured["activation"] -= _held(STEPS[name]["case"]) * (half is STEPS[name]["forward"])
    assert peak is not None
    if "mtp" in STEPS[name]["case"]:
        highest = max(STEPS[name][half]["peak"] for half in ("forward", "backward"))
        assert abs(peak.allocated_bytes - highest) < PREDICTING * highest
        return
    if name in HIGHER:
        assert half["peak"] < peak.allocated_bytes <= half["peak"] * (1 + HIGHER[name])
        return
    measured["activation"] += _statistics(name)
    assert {k: v for k, v in peak.by_category.items() if k not in LEFT_OUT} == {
        k: v for k, v in measured.items() if k not in LEFT_OUT}


def is_gemma4(case: dict[str, Any]) -> bool:
    return str(case.get("model")).startswith("gemma4")


def tokens_of(case: dict[str, Any]) -> int:
    return int(case.get("batch", 1) * case.get("seq", 512))


def images_of(case: dict[str, Any]) -> int:
    return int(case.get("batch", 1) * case["images"])


def _without_mask(name: str, sizes: dict[str, int]) -> dict[str, int]:
    """Inputs without the mask of tokens, which only Qwen 3.5's cases are given: no mask is counted of any batch.

    Nor are places of patches and the types of tokens, which Gemma 4's are given.
    """
    case = STEPS[name]["case"]
    kind, seq = case.get("model"), tokens_of(case)
    left_out = 8 * seq * (kind == "qwen3.5" or not case["images"] or "ep" in case)
    left_out += 4 * (len(case["packed"]) + 1) if "packed" in case else 0  # the ends of sequences
    left_out += (4 * seq + 16 * 144 * images_of(case)) * is_gemma4(case)
    return {**sizes, "input": sizes["input"] - left_out}


def _statistics(name: str) -> int:
    """Bytes that a GPU keeps of the norms of a trained Qwen 3.5's tower: statistics in 32 bits, on a CPU in 16."""
    case = STEPS[name]["case"]
    if case.get("model") != "qwen3.5" or case["freeze"]["freeze_vision_tower"]:
        return 0
    model = MODELS["qwen3.5"]
    vision = case.get("fields", model["fields"])["vision_config"]
    height, width = (side // vision["patch_size"] for side in case.get("sides", model["sides"]))
    norms: int = 2 * vision["depth"] + 1
    return 2 * 2 * norms * images_of(case) * int(height * width)


def _held(case: dict[str, Any]) -> int:
    """Gemma 4 holds a count of image tokens, and the ids that it looks up, also where no gradient needs them."""
    return (8 + 8 * tokens_of(case) * ("lora" in case)) * is_gemma4(case)


MASKED_SDPA = "gemma4, adapted, SDPA in fp32"
"""On a CPU the written-out mask is gone before attention's output is born, on CUDA its kernel reads it."""


@pytest.mark.parametrize("name", [name for name in RUN if name != MASKED_SDPA])
def test_forward_is_as_high_as_measured(name: str, config: Path) -> None:
    row, peak = STEPS[name], ran(name, config).peak
    assert peak is not None
    if "mtp" in row["case"]:
        assert abs(peak.by_phase["forward"] - row["forward"]["peak"]) < 0.04 * row["forward"]["peak"]
        return
    apart = sum(row["backward"]["breakdown"][k] - peak.by_category[k] for k in LEFT_OUT)
    apart += row["forward"]["breakdown"]["input"] - _without_mask(name, row["forward"]["breakdown"])["input"]
    # Inside of the model with experts, where it knows whether there are images or videos.
    held = 2 * ("ep" in row["case"] and row["forward"]["where"] != "fwd:post_forward_end:root")
    held += _held(row["case"])
    found = row["forward"]["peak"] - peak.by_phase["forward"] - (apart + held - _statistics(name))
    # The count of image tokens is gone in a12's last layer, and a63's peak is before its tower runs. That of the large
    # image is inside of a norm, a custom operator of which fake tensors show nothing.
    assert abs(found) <= {"a12": 8, "a63": 824, "qwen3-vl-moe, a large image": 527360}.get(name, 0)


@pytest.mark.parametrize("name", RUN)
def test_what_is_sent_is_what_was_measured(name: str, config: Path) -> None:
    measured, found = measured_traffic(STEPS[name]), traffic_of(ran(name, config).traffic)
    if "mtp" in STEPS[name]["case"] and "lora" not in STEPS[name]["case"]:  # the table is gathered for each look
        table = 2 * 512 * 256
        found += {("all_gather", "forward", "calls"): 2, ("all_gather", "forward", "bytes"): 2 * table,
                  ("all_gather", "backward", "calls"): 1, ("all_gather", "backward", "bytes"): table}
    assert found == measured
