"""Parameters of drawn ranks with a vision tower, by Bridge's own models: `tests/truth/draw_bridge_vision.py`."""

from __future__ import annotations

import json
import re
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

from checkout import ROOT
from every import expect_of_every
from operators.megatron.test_vision import LANGUAGE, PROJECTION, TOWER, asked, averaged, plan_of
from simcore.simulate import check
from truth_cases import told_layouts

ROWS: dict[str, Any] = json.loads((ROOT / "tests/truth/placement/drawn-bridge-vision-main-2026-08-22.json")
                                  .read_text(encoding="utf-8"))
SIZED: dict[str, dict[str, Any]] = {"qwen": {"image_height": 64}, "gemma": {"image_height": None},
                                    "ministral": {"image_height": 56, "image_width": 84}}


def is_behind_refused(case: dict[str, Any]) -> bool:
    """True for ranks behind a first stage that Bridge refuses: it has fewer layers than the tower hands features to."""
    return bool(case["kind"] == "qwen" and case["stage"] > 0 and (
        len(case["vision"]["deepstack_visual_indexes"]) > case["text"]["num_layers"] // case["pp"]))


def fields_of(case: dict[str, Any]) -> dict[str, Any]:
    """The model as a configuration of Hugging Face's."""
    if case["kind"] != "qwen":
        return {**case["model"], "tie_word_embeddings": case["kind"] == "gemma"}
    text = case["text"]
    tied = text["share_embeddings_and_output_weights"]
    return {"model_type": "qwen3_vl", "tie_word_embeddings": tied, "vision_config": case["vision"], "text_config": {
        "model_type": "qwen3_vl_text", "num_hidden_layers": text["num_layers"], "hidden_size": text["hidden_size"],
        "intermediate_size": text["ffn_hidden_size"], "num_attention_heads": text["num_attention_heads"],
        "num_key_value_heads": text["num_query_groups"], "head_dim": text["kv_channels"],
        "vocab_size": text["vocab_size"], "tie_word_embeddings": tied}}


def given(case: dict[str, Any]) -> dict[str, Any]:
    """Images of the case, and modules that are frozen by Bridge's three flags."""
    own, tied = case["kind"] == "qwen", fields_of(case)["tie_word_embeddings"]
    modules = {"freeze_language_model": LANGUAGE[:1] if tied else LANGUAGE,
               "freeze_vision_model": TOWER if own else ["model.vision_tower"],
               "freeze_vision_projection": PROJECTION if own else ["model.multi_modal_projector"]}
    return SIZED[case["kind"]] | {"frozen": [name for flag in case["frozen"] for name in modules[flag]]}


def short(how: str, name: str, shape: str) -> tuple[str, str, str]:
    return how, re.sub(r"(^|[.])[0-9]+[.]", r"\1*.", ".".join(name.split(".")[-2:])), shape


def expect_parameters(folder: Path, name: str, row: dict[str, Any]) -> str:
    """Compares name, shape and gradient of each parameter, and what is averaged over tp; tells how it was answered."""
    case, path = row["case"], folder / f"{name}.json"
    path.write_text(json.dumps(fields_of(case)), encoding="utf-8")
    mesh = {axis: case[axis] for axis in ("tp", "pp")}
    report = check(asked(str(path), mesh, microbatches=case["pp"], **given(case)))
    if report.problems:
        told = str(report.problems[0])
        refused = "error" in row or is_behind_refused(case)
        assert ("deepstack_visual_embeds should be on the first pp-stage" if refused else "not yet") in told
        return "refused" if refused else "not yet"
    plan = plan_of(str(path), mesh, rank=case["stage"] * case["tp"], **given(case))
    mine = Counter(short("trained" if one.trainable else "frozen", one.spec.name, "x".join(map(str, one.used_shape)))
                   for layer in plan.layers for one in plan.of_layer(layer) if one.spec.is_owned
                   and not one.spec.is_buffer)
    theirs = Counter[tuple[str, str, str]]()
    for key, count in row["parameters"].items():
        theirs[short(*key.replace("vision_tower.post_layernorm.", "").split())] += count
    assert mine == theirs
    if case["tp"] > 1 and case["pp"] == 1:
        sizes = {key.split()[1]: prod(map(int, key.split()[2].split("x"))) for key in row["parameters"]
                 if key.startswith("trained")}
        elements = sum(sizes.get(re.sub(r"[.][0-9]+[.]", ".*.", one), 0) for one in row["averaged"])
        assert averaged(str(path), mesh, **given(case)) == 4 * elements
    return "as measured"


def test_parameters_of_drawn_ranks_are_those_of_bridges_models(tmp_path: Path) -> None:
    found = Counter[str]()

    def expect(case: tuple[str, dict[str, Any]]) -> None:
        found[expect_parameters(tmp_path, *case)] += 1

    expect_of_every(((name, (name, row)) for name, row in ROWS.items()), expect)
    assert told_layouts("placement/drawn-bridge-vision-*") == (
        len(ROWS), found["as measured"], found["refused"], found["not yet"])
