"""Tensors of quantised weights are vLLM's own, byte for byte (`tests/truth/probe_vllm_weights.py`)."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from checkout import ROOT
from every import expect_of_every
from simcore.models.config import Architecture
from simcore.models.graph import architecture_of
from simcore.units import dtype_bytes
from simcore.vllm.engine import by_module
from simcore.vllm.quantization import misread
from simcore.vllm.quantized.four_bit import FourBits
from simcore.vllm.quantized.fp8 import quantising_bytes
from simcore.vllm.quantized.linears import Linear
from simcore.vllm.quantized.loading import loading_bytes
from simcore.vllm.quantized.mxfp8 import Mxfp8
from simcore.vllm.quantized.recipe import REFITTED, Recipe, Unserved, of_checkpoint, online, refitted
from simcore.vllm.quantized.skipped import Skipped
from simcore.vllm.quantized.tensor import Gpu, Tensor
from simcore.vllm.release import RELEASES
from simcore.vllm.weights import layers_of, modules, weights

TRUTH = json.loads((ROOT / "tests/truth/vllm/weights-0.12.0.json").read_text(encoding="utf-8"))
ROWS: list[dict[str, Any]] = TRUTH["rows"]
ROTARY = 256 * 64 * 2
"""Bytes of the rotary table of these models, 256 positions of 64 in 16 bits; Nemotron-H has none."""


def name_of(row: dict[str, Any]) -> str:
    return "-".join(str(row[key]) for key in ("model", "case", "tp", "capability"))


def asked(row: dict[str, Any]) -> tuple[Architecture, Recipe | None]:
    gpu = Gpu(tuple(map(int, row["capability"].split("."))), row["sms"])  # type: ignore[arg-type]
    architecture, case = architecture_of(TRUTH["models"][row["model"]]), row["case"]
    if case.startswith("online-"):
        return architecture, online(case.removeprefix("online-"), gpu)
    config = TRUTH["configs"][case]
    return architecture, of_checkpoint(config, gpu) if config else None


def refused(architecture: Architecture, recipe: Recipe, tp: int) -> list[tuple[str, str]]:
    try:
        found = [method.refusal(linear) for path, kind in layers_of(architecture)
                 for module, linear in modules(path, kind, tp) if (method := recipe.method_of(module, linear))]
    except ValueError as error:
        return [(str(error), "is_layer_skipped")]
    return [pair for pair in found if pair[0]]


def shown(tensors: tuple[Tensor, ...]) -> dict[str, str]:
    return {tensor.name: f"{tensor.dtype}{list(tensor.shape)}" for tensor in tensors}


SERVED: list[dict[str, Any]] = []
REFUSED: list[dict[str, Any]] = []
UNSERVED: list[dict[str, Any]] = []
for truth_row in ROWS:
    try:
        problems = [] if (made := asked(truth_row))[1] is None else refused(*made, truth_row["tp"])  # type: ignore[arg-type]
    except Unserved:
        UNSERVED.append(truth_row)
    else:
        (REFUSED if problems or "refused" in truth_row else SERVED).append(truth_row)


def named(rows: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [(name_of(row), row) for row in rows]


def test_bytes_are_the_engines_own() -> None:
    expect_of_every(named(SERVED), expect_bytes)


def expect_bytes(row: dict[str, Any]) -> None:
    architecture, recipe = asked(row)
    found = weights(architecture, row["tp"], recipe)
    table = 0 if row["model"] == "nemotron_h" else ROTARY
    assert sum(weight.created_bytes for weight in found) + table == row["created_bytes"]
    if recipe is None or recipe.name != "bitsandbytes":  # its states are no tensors of modules
        assert sum(weight.num_bytes for weight in found) + table == row["held_bytes"]


def test_tensors_are_the_engines_own() -> None:
    expect_of_every(named([row for row in SERVED if "created" in row and row["case"] != "none"]), expect_tensors)


def expect_tensors(row: dict[str, Any]) -> None:
    architecture, recipe = asked(row)
    assert recipe is not None
    for path, kind in layers_of(architecture):
        for module, linear in modules(path, kind, row["tp"]):
            method = recipe.method_of(module, linear)
            if method is None or (".layers.0." not in module and "mixer" not in module):
                continue
            truth = [{key[len(module) + 1:].removeprefix("kernel."): value for key, value in row[when].items()
                      if key.startswith(f"{module}.")} for when in ("created", "held")]
            for mine, theirs in zip((shown(method.created(linear)), shown(method.held(linear))), truth, strict=True):
                assert {key: theirs.get(key) for key in mine if "bnb_quant_state" not in key} == {
                    key: value for key, value in mine.items() if "bnb_quant_state" not in key}


def test_no_tensor_of_the_engine_is_missing() -> None:
    """Together with the bytes of all: what is listed by vLLM and not here is empty."""
    for row in [row for row in SERVED if "held" in row and row["model"] == "llama" and row["case"] != "none"]:
        architecture, recipe = asked(row)
        assert recipe is not None
        mine = {f"{module}.{tensor.name}" for path, kind in layers_of(architecture)
                for module, linear in modules(path, kind, row["tp"])
                if (method := recipe.method_of(module, linear)) for tensor in method.held(linear)}
        for name, shape in row["held"].items():
            assert name.replace("kernel.", "") in mine or shape.endswith("[0]") or shape.startswith("bf16"), name


def test_what_the_engine_refuses_is_refused() -> None:
    expect_of_every(named(REFUSED), expect_refusal)


def expect_refusal(row: dict[str, Any]) -> None:
    architecture, recipe = asked(row)
    assert recipe is not None
    told = refused(architecture, recipe, row["tp"])
    assert told
    if "refused" not in row:  # vLLM has kernels that are not modelled: said to be not yet, without a rule
        assert all(not rule for _, rule in told)
    elif "KeyError" not in row["refused"]:
        assert any(rule for _, rule in told)


@pytest.mark.parametrize("row", [row for row in SERVED if row["case"] == "online-fp8"], ids=name_of)
def test_the_highest_while_weights_are_quantised(row: dict[str, Any]) -> None:
    """To the byte but for the four scales of 16 bits that each layer's attention drops on the way."""
    architecture, recipe = asked(row)
    found = weights(architecture, row["tp"], recipe)
    table = 0 if row["model"] == "nemotron_h" else ROTARY
    rest = table + sum(weight.num_bytes for weight in found if not weight.held)
    mine = loading_bytes(rest, list(by_module([weight for weight in found if weight.held]))) + row["scales_bytes"]
    assert mine - row["peak_bytes"] in {0, 8}
    assert mine > row["created_bytes"] + row["scales_bytes"]


@pytest.mark.parametrize("row", TRUTH["states"], ids=lambda row: str(row["shape"]))
def test_states_of_bitsandbytes(row: dict[str, Any]) -> None:
    """As its own `quantize_4bit` makes them for one matrix."""
    rows, columns = row["shape"]
    held = shown(FourBits(from_file=False).held(Linear("o_proj", columns, (rows,), columns)))
    assert held["weight"] == f"uint8{row['packed']}"
    assert {name.rpartition(".")[2]: value for name, value in held.items() if name != "weight"} == row["held"]


def loaded(row: dict[str, Any]) -> tuple[Architecture, Recipe]:
    """Model and recipe of a row that vLLM's loader of bitsandbytes read from files."""
    architecture, gpu = architecture_of(TRUTH["models"][row["model"]]), Gpu((9, 0), 132)
    config = TRUTH["configs"][f"loaded-{row['case']}"]
    return architecture, of_checkpoint(config, gpu) if config else online("bitsandbytes", gpu)


def not_loaded(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Refusals of such a row here; a method that is not served has no rule."""
    try:
        architecture, recipe = loaded(row)
    except Unserved as error:
        return [(str(error), "")]
    return refused(architecture, recipe, row["tp"]) or misread(architecture, recipe)


@pytest.mark.parametrize("row", TRUTH["loaded"], ids=lambda row: f"{row['model']}-{row['case']}-{row['tp']}")
def test_states_are_those_that_the_loader_binds(row: dict[str, Any]) -> None:
    """Every state of the first layer by name, format and shape, and all bytes of parameters and states."""
    if "refused" in row:
        assert not_loaded(row)
        return
    assert not not_loaded(row)
    architecture, recipe = loaded(row)
    mine: dict[str, str] = {}
    for path, kind in layers_of(architecture):
        for module, linear in modules(path, kind, row["tp"]):
            method = recipe.method_of(module, linear)
            if method is not None and ".layers.0." in module:
                mine |= {f"{module}.{tensor.name}": f"{tensor.dtype}{list(tensor.shape)}"
                         for tensor in method.held(linear) if "bnb_quant_state" in tensor.name}
    theirs = {name.replace("weight:.", "bnb_quant_state.").replace("weight:", "bnb_quant_state."): value
              for name, value in row["states"].items()}
    assert mine == theirs
    assert sum(weight.num_bytes for weight in weights(architecture, row["tp"], recipe)) + ROTARY == row["held_bytes"]


def test_a_list_keeps_linears_in_16_bits_and_never_experts() -> None:
    listed = Skipped("components", ("experts", "o_proj"))
    assert listed.has("model.layers.0.self_attn.o_proj")
    assert not listed.has("model.layers.0.mlp.experts")
    assert listed.names("model.layers.0.mlp.experts")
    assert Skipped("components", ("model.layers.0.mlp.experts.3.up_proj",)).names("model.layers.0.mlp.experts")


REFIT = json.loads((ROOT / "tests/truth/vllm/refit-0.25.1.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", REFIT["rows"], ids=lambda row: f"{row['model']}-{row['tp']}")
def test_weights_that_a_trainer_sends_are_held_as_it_leaves_them(row: dict[str, Any]) -> None:
    """NeMo RL's fp8 over vLLM 0.25.1: every tensor of the first layer, and all bytes."""
    architecture = architecture_of(REFIT["models"][row["model"]])
    if row["model"] not in REFITTED:
        return  # experts without a gate, of which vLLM makes twice the matrix: not yet
    recipe = refitted(Gpu((9, 0), 132))
    rules = [rule for _, rule in refused(architecture, recipe, row["tp"])]
    assert any(rules) == ("refused" in row)  # without a rule: vLLM makes them, whether they load was not tried
    if any(rules):
        return
    made = weights(architecture, row["tp"], recipe)
    assert sum(weight.created_bytes for weight in made) + ROTARY == row["created_bytes"]
    assert sum(weight.num_bytes for weight in made) + ROTARY == row["held_bytes"]
    mine = {f"{module}.{tensor.name}": f"{tensor.dtype}{list(tensor.shape)}" for path, kind in layers_of(architecture)
            for module, linear in modules(path, kind, row["tp"]) for tensor in recipe.method.held(linear)
            if ".layers.0." in module}
    theirs = {name.replace(".routed_experts.", "."): value for name, value in row["held"].items()
              if not value.startswith("bf16")}
    assert mine == theirs


@pytest.mark.parametrize("row", REFIT["refit"], ids=lambda row: str(row["shape"]))
def test_temporaries_of_a_matrix_that_is_quantised(row: dict[str, Any]) -> None:
    """NeMo RL's own function on a matrix of zeros."""
    rows, columns = row["shape"]
    assert quantising_bytes(rows, columns) == row["peak_bytes"]
    linear = Linear("o_proj", columns, (rows,), columns)
    held = refitted(Gpu((9, 0), 132)).method.held(linear)
    assert [f"{tensor.dtype}{list(tensor.shape)}" for tensor in held] == row["held"]


@pytest.mark.parametrize(("linears", "held", "arranging"), [
    ([Linear("o_proj", 2048, (130,), 2048)], ["fp8[130, 2048]", "uint8[16384]", "uint8[130, 64]"], 32768),
    ([Linear("w13", 256, (128, 128), 256, copies=4), Linear("w2", 128, (256,), 128, copies=4)],
     ["fp8[4, 256, 256]", "uint8[4, 2048]", "uint8[4, 256, 8]", "fp8[4, 256, 128]", "uint8[4, 1024]",
      "uint8[4, 256, 4]"], 688128),
    ([Linear("w13", 512, (192, 192), 512, copies=8), Linear("w2", 192, (512,), 192, copies=8)],
     ["fp8[8, 384, 512]", "uint8[8, 6144]", "uint8[8, 384, 16]", "fp8[8, 512, 192]", "uint8[8, 4096]",
      "uint8[8, 512, 6]"], 4177920)])
def test_mxfp8_that_a_trainer_sends_is_held_as_it_leaves_it(linears: list[Linear], held: list[str],
                                                            arranging: int) -> None:
    """NeMo RL 7ea279ab fp8.py, its functions run on a CPU with vLLM 0.25.1's: tensors, and the most beside them."""
    method = refitted(Gpu((10, 0), 148), in_exponents=True).method
    assert isinstance(method, Mxfp8)
    assert [f"{tensor.dtype}{list(tensor.shape)}" for linear in linears for tensor in method.held(linear)] == held
    assert method.arranging_bytes(linears) == arranging


def test_parameters_are_named_by_parts_of_their_names() -> None:
    listed = Skipped("parameters", ("experts.down", "layers.1."))
    found = [listed.has(f"model.layers.{name}") for name in ("0.mlp.experts", "0.mlp.gate", "1.self_attn.qkv_proj")]
    assert found == [True, False, True]


def test_what_was_asked_is_served() -> None:
    served = {(row["case"], row["capability"]) for row in SERVED}
    assert len(SERVED) > 400
    assert {row["case"] for row in UNSERVED} & {case for case, _ in served} == {
        "fp8-static", "fp8-dynamic", "fp8-ignored", "fp8-block", "fp8-block-64", "ct-fp8-channel", "ct-fp8-tensor",
        "ct-fp8-ignored", "ct-nvfp4", "modelopt-fp8", "modelopt-ignored", "modelopt-nvfp4", "online-fp8"}
    assert {case for case, capability in served if capability == "8.0"} == {
        "none", "ct-w4a16", "ct-w4a16-channel", "awq", "awq-64", "awq-ignored", "gptq", "gptq-8", "gptq-channel",
        "online-bitsandbytes"}


def _router_bytes(shapes: dict[str, str]) -> int:
    """Bytes of the tensors of a model's gates, from texts such as bf16[8, 512]."""
    found = [re.fullmatch(r"(\w+)\[(.+)\]", shape) for name, shape in shapes.items() if ".gate." in name]
    return sum(dtype_bytes(one[1]) * math.prod(map(int, one[2].split(","))) for one in found if one)


@pytest.mark.parametrize(("version", "tp"), [("0.12.0", 2), ("0.25.1", 1), ("0.25.1", 2)])
def test_routers_of_nemotron_are_stored_as_each_version_makes_them(version: str, tp: int) -> None:
    """On compute capability 9.0: in fp32, and since GateLinear in the model's dtype."""
    rows = {"0.12.0": [row for row in SERVED if row["case"] == "none"], "0.25.1": REFIT["rows"]}[version]
    row = next(row for row in rows if (row["model"], row["tp"]) == ("nemotron_h", tp))
    architecture = architecture_of((TRUTH if version == "0.12.0" else REFIT)["models"]["nemotron_h"])
    made = weights(architecture, tp, narrow_router=RELEASES[version].narrow_router("9.0"))
    assert sum(weight.num_bytes for weight in made if weight.component == "router") == _router_bytes(row["held"])
