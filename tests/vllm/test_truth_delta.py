"""Layers of Qwen 3.5 and Qwen3-Next on a rank against those that vLLM itself builds on torch's device "meta"."""

from __future__ import annotations

import json
from typing import Any

from checkout import ROOT
from simcore.inputs.scenario import Scenario
from simcore.models.blocks import GatedDeltaNet, LayerKind
from simcore.models.graph import architecture_of, model_config
from simcore.simulate import check, simulate
from simcore.vllm.cache import Formats, pages
from simcore.vllm.release import RELEASES
from simcore.vllm.weights import layers_of, unserved, weights_of_kind

CASES: list[dict[str, Any]] = json.loads((ROOT / "tests/truth/vllm/delta-0.25.1.json").read_text(encoding="utf-8"))
QWEN = "qwen3.5-9b"


def kind_of(model: str, name: str) -> LayerKind:
    """First layer of linear or of full attention."""
    return next(kind for _, kind in layers_of(architecture_of(model_config(model, None, ""))) if kind.branches
                and isinstance(kind.branches[0].block, GatedDeltaNet) == (name == "linear_attention"))


def test_parameters_of_a_layer_are_those_of_vllm_s_module() -> None:
    """Routed experts, which the truth leaves out, aside."""
    for case in CASES:
        architecture = architecture_of(model_config(case["model"], None, ""))
        for name in case["narrow"]:
            held = weights_of_kind(kind_of(case["model"], name), architecture, case["tp"], narrow=False)
            narrow = sum(weight.numel for weight in held if not weight.width and not weight.routed)
            wide = sum(weight.numel for weight in held if weight.width == 4)
            assert narrow == sum(case["narrow"][name].values()), (case["model"], case["tp"], name)
            assert wide == sum(case["wide"][name].values()), (case["model"], case["tp"], name)


def test_a_sequence_has_the_states_of_vllm_s_layer() -> None:
    for case in CASES:
        (conv, width), (heads, value, key) = case["state"]
        found = pages(architecture_of(model_config(case["model"], None, "")), case["tp"],
                      Formats("bf16", "bf16", "fp32"), RELEASES["0.25.1"])
        assert found.state_bytes == 2 * conv * width + 4 * heads * value * key, (case["model"], case["tp"])


def served(model: str, **generation: Any) -> Scenario:
    keys = {"version": "0.25.1", "max_model_len": 4096} | generation
    return Scenario.model_validate({"name": "serves", "workload": "serve", "model": model, "topology": "dgx-h100",
                                    "mesh": {"tp": keys.get("tp", 1)}, "generation": keys})


def test_an_engine_holds_rotary_tables_and_states_as_their_configurations_say() -> None:
    """Positions by time, row and column have a table four times as long; states of Qwen 3.5 are in fp32."""
    report = simulate(served(QWEN, profiles_images=False))
    assert report.status == "ok", report.problems
    assert report.serving is not None
    assert report.serving.ssm_dtype == "fp32"
    held = sum(row.params_bytes for row in report.ranks[0].at_rest.values())
    table = next(case for case in CASES if case["model"] == QWEN)["table"]
    assert report.serving.weight_bytes - held == 2 * 4 * table[0] * table[1] + 2 * 8192 * 36
    following = simulate(served("qwen3-next-80b-a3b", tp=4))
    assert following.status == "ok", following.problems
    assert following.serving is not None
    assert following.serving.ssm_dtype == "bf16"


def test_what_vllm_has_not_or_builds_otherwise_is_refused_by_name() -> None:
    text = architecture_of(model_config("qwen3.5-9b-text", None, ""))
    told = "gated delta nets of qwen3_5_text with vLLM 0.25.1 (served: 0.25.1, qwen3_5, qwen3_5_moe, qwen3_next)"
    assert unserved(text, "0.25.1") == told
    for keys, told in (({"quantization": "fp8"}, "quantization"), ({"max_loras": 1, "max_lora_rank": 16}, "max_loras"),
                       ({"chunked_prefill": False}, "chunked_prefill")):
        problems = [one.message for one in check(served("qwen3-next-80b-a3b", tp=4, **keys)).problems]
        assert problems == [f"not yet: {told} of an engine with gated delta nets"]
    problems = [one.message for one in check(served("qwen3-next-80b-a3b", tp=32)).problems]
    assert any("16 key heads of a gated delta net are not divisible by tp 32" in one for one in problems), problems
