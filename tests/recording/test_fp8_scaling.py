"""Bytes of 8-bit copies, worked out by hand from the shapes that TransformerEngine gives its scales."""

from __future__ import annotations

import pytest

from simcore.recording.fp8_scaling import RECIPES, Scaling, in_model, matched

SHAPES = {  # of a (256, 4096) matrix: bytes of scales along rows, along columns
    "tensorwise": (4, 4), "delayed": (4, 4), "blockwise": (32 * 256 * 4, 2 * 4096 * 4), "mxfp8": (256 * 128, 8 * 4096),
    "nvfp4": (256 * 256 + 4, 16 * 4096 + 4)}


@pytest.mark.parametrize("recipe", RECIPES)
def test_scales_lie_beside_the_data(recipe: str) -> None:
    scaling = Scaling(recipe, transposes=True)
    data = 256 * 4096 // (2 if recipe == "nvfp4" else 1)
    assert (scaling.copy_bytes(256, 4096) - data, scaling.copy_bytes(256, 4096, along_columns=True) - data) == \
        SHAPES[recipe]


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
