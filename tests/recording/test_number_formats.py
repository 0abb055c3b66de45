"""Matrices in 4 and 8 bits: bytes of what is packed and of its constants, against bitsandbytes' own; of 8-bit copies.

The latter are worked out by hand from the shapes that TransformerEngine gives its scales.
"""

from __future__ import annotations

import json
import math
from itertools import accumulate
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.errors import IllegalLayout, InputError, NotYet, RankscopeError
from simcore.operators.hf.options import HfOptions
from simcore.operators.hf.packed import packed_linear
from simcore.placement.layout import TensorLayout
from simcore.recording.layer import LayerWorkload
from simcore.recording.number_formats import RECIPES, PackedWeights, Scaling, in_model, matched
from simcore.recording.rows import HOST_STOPS
from simcore.recording.tape import Op, Param, Tape, Tensor

TRUTH: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/bitsandbytes/0.50.2.json").read_text(encoding="utf-8"))
STORED = {"uint8": "uint8", "bfloat16": "bf16", "float32": "fp32"}
SCALE_BYTES = {  # of a (256, 4096) matrix: bytes of scales along rows, along columns
    "tensorwise": (4, 4), "delayed": (4, 4), "blockwise": (32 * 256 * 4, 2 * 4096 * 4), "mxfp8": (256 * 128, 8 * 4096),
    "nvfp4": (256 * 256 + 4, 16 * 4096 + 4)}


# ---- frozen weights --------------------------------------------------------------------------------------------------
def packed_of(row: dict[str, Any]) -> PackedWeights:
    return PackedWeights(row["format"], 64, row["double_quant"], STORED[row["storage"]])


@pytest.mark.parametrize("row", TRUTH["weights"], ids=lambda row: (
    f"{'x'.join(map(str, row['shape']))} {row['format']} {row['double_quant']} {row['storage']}"))
def test_bytes_are_those_that_bitsandbytes_stores(row: dict[str, Any]) -> None:
    numel, packed = math.prod(row["shape"]), packed_of(row)
    assert packed.data_bytes(numel) == row["data"]
    assert packed.rows(numel) == row["rows"]
    assert packed.constant_bytes((numel,)) == sum(row["constants"].values())


def test_no_two_weights_share_a_table() -> None:
    """Why a table counts for each."""
    assert TRUTH["shared_tables"] is False


@pytest.mark.parametrize(("double_quant", "bits"), [(True, 4.127), (False, 4.5)])
def test_bits_of_a_value_are_those_of_the_paper(double_quant: bool, bits: float) -> None:
    """Dettmers 2023, section 3: 0.5 bits a parameter for constants, 0.127 with double quantisation."""
    packed, numel = PackedWeights("nf4", 64, double_quant), 2**28
    assert 8 * (packed.data_bytes(numel) + packed.constant_bytes((numel,))) / numel == pytest.approx(bits, abs=1e-3)


@pytest.mark.parametrize("row", TRUTH["tensors"], ids=lambda row: "x".join(map(str, row["shape"])))
def test_a_tensor_of_torchao_lies_as_it_is_stored(row: dict[str, Any]) -> None:
    """And what is cut with its rows is all but a table and a mean."""
    numel, parts = math.prod(row["shape"]), row["parts"]
    packed = PackedWeights("nf4", 64, double_quant=True, is_tensor=True)
    assert packed.constant_bytes((numel,)) == parts["nf4"] + parts["scaler_mean"]
    assert packed.data_bytes(numel) + packed.constant_bytes((numel,)) == sum(parts.values())


@pytest.mark.parametrize("row", TRUTH["tensors"], ids=lambda row: "x".join(map(str, row["shape"])))
@pytest.mark.parametrize("compiled", [False, True])
def test_what_torchaos_product_makes_for_a_moment(row: dict[str, Any], *, compiled: bool) -> None:
    """Compiled, nothing but the weight, with the product beside it."""
    shape, numel = tuple(row["shape"]), math.prod(row["shape"])
    tape = Tape({}, {})
    packed = PackedWeights("nf4", 64, double_quant=True, is_tensor=True)
    param = Param("up.weight", shape, "bf16", trainable=False, packed=packed)
    run = LayerWorkload(1, 8, "bf16", {"up.weight": param}, options=HfOptions(compile=compiled))
    packed_linear(tape, run, "up.", "up", Tensor(None, (1, 8, shape[1]), "bf16"))
    found = list(accumulate(amount for op, _, _, amount, *_ in tape.cut().rows if op in (Op.ALLOC, Op.FREE)))
    assert max(found) == (2 * numel + 2 * 8 * shape[0] if compiled else row["peak"])


def test_int8_has_a_maximum_for_each_row() -> None:
    packed = PackedWeights("int8", 0, double_quant=False, storage="int8")
    layout = TensorLayout((), "int8", packed=packed)
    assert layout.stored_shape((300, 70)) == (300, 70)
    assert layout.num_bytes(300 * 70) == 300 * 70
    assert layout.constants((300, 70)) == 4 * 300


@pytest.mark.parametrize(("given", "kind", "told"), [
    ({"framework": "fsdp2"}, NotYet, "int8 .LLM.int8... under fsdp2"),
    ({"framework": "zero2"}, NotYet, "under zero2"),
    ({"framework": "automodel"}, NotYet, "under automodel"),
    ({"framework": "megatron"}, IllegalLayout, "bitsandbytes packs torch.nn.Linear"),
    ({"topology": "v100-32gb", "precision": {"compute": "fp16"}}, IllegalLayout, "need compute capability 7.5"),
    ({"quantization": {"format": "int8", "double_quant": False}}, InputError, "change nothing with int8"),
    ({"options": {"bnb_4bit_quant_storage": "uint8"}}, InputError, "changes nothing with int8"),
    ({"quantization": {}, "options": {"llm_int8_threshold": 6.0}}, InputError, "changes nothing with nf4")])
def test_int8_is_served_under_ddp_as_it_is(given: dict[str, Any], kind: type[RankscopeError], told: str) -> None:
    asked: dict[str, Any] = {"model": "llama-tiny", "method": "qlora", "quantization": {"format": "int8"}} | given
    with pytest.raises(kind, match=told):
        small.prepared(asked.pop("framework", "ddp"), **asked)


def test_a_threshold_of_int8_makes_the_host_wait_in_every_linear() -> None:
    """It asks the device whether there is an outlier."""
    def stops(options: dict[str, Any]) -> int:
        program = small.program_of("ddp", model="llama-tiny", method="qlora", quantization={"format": "int8"},
                                   options=options)
        return sum(op == Op.WAIT and aux == HOST_STOPS for op, *_, aux in program.columns.tolist())

    blocks = small.plan_of("ddp", model="llama-tiny").graph.num_blocks
    assert stops({}) - stops({"llm_int8_threshold": 0}) == 7 * blocks


# ---- recipes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("recipe", RECIPES)
def test_scales_lie_beside_the_data(recipe: str) -> None:
    scaling = Scaling(recipe, transposes=True)
    data = 256 * 4096 // (2 if recipe == "nvfp4" else 1)
    assert (scaling.copy_bytes(256, 4096) - data, scaling.copy_bytes(256, 4096, along_columns=True) - data) == \
        SCALE_BYTES[recipe]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_product_reads_data_with_their_scales(recipe: str) -> None:
    scaling = Scaling(recipe, transposes=True)
    assert scaling.width * 256 * 4096 == pytest.approx(scaling.copy_bytes(256, 4096), abs=4)


def test_weights_have_square_blocks() -> None:
    scaling = Scaling("blockwise", transposes=True)
    assert scaling.copy_bytes(256, 640, squares=True) == 256 * 640 + 4 * 2 * 8  # 2 x 5 blocks, 5 padded to 8
    assert scaling.copy_bytes(256, 640, along_columns=True, squares=True) == 256 * 640 + 4 * 5 * 4  # 5 x 2, 2 to 4


def test_scales_are_padded() -> None:
    blockwise, mxfp8 = (Scaling(recipe, transposes=False) for recipe in ("blockwise", "mxfp8"))
    assert blockwise.copy_bytes(130, 8) == 130 * 8 + 4 * 1 * 132
    assert blockwise.copy_bytes(130, 8, along_columns=True) == 130 * 8 + 4 * 2 * 8
    assert mxfp8.copy_bytes(130, 96) == 130 * 96 + 256 * 4
    assert mxfp8.copy_bytes(130, 96, along_columns=True) == 130 * 96 + 8 * 128
    nvfp4 = Scaling("nvfp4", transposes=False)
    assert nvfp4.copy_bytes(130, 96) == 130 * 48 + 256 * 8 + 4
    assert nvfp4.copy_bytes(130, 96, along_columns=True) == 130 * 48 + 128 * 12 + 4


def test_columns_are_a_copy_but_for_one_scale_on_blackwell() -> None:
    assert all(Scaling(recipe, transposes=True).has_columns for recipe in RECIPES)
    assert [recipe for recipe in RECIPES if not Scaling(recipe, transposes=False).has_columns] == [
        "tensorwise", "delayed"]


def test_experts_rows_are_filled_up() -> None:
    assert Scaling("tensorwise", transposes=True).padded_rows(4 * 17, 4) == 4 * 32
    assert Scaling("blockwise", transposes=True).padded_rows(4 * 16, 4) == 4 * 16
    assert Scaling("mxfp8", transposes=False).padded_rows(4 * 33 - 3, 4) == 4 * 64
    assert Scaling("nvfp4", transposes=False).padded_rows(4 * 33 - 3, 4) == 4 * 128


@pytest.mark.parametrize(("path", "further", "recipe"), [
    ("self_attention.linear_qkv", False, "bf16"), ("self_attention.linear_qkv", True, "mxfp8"),
    ("mlp.fc1_latent_proj", False, "bf16"), ("mlp.linear_fc1", False, "")])
def test_the_first_pattern_that_fits_counts(path: str, further: bool, recipe: str) -> None:
    given = "mtp.*=mxfp8;*.linear_qkv=bf16;*fc[12]_latent_proj=bf16"
    assert matched(given, in_model(path, further=further)) == recipe
