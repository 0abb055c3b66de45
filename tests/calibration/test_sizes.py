"""The sizes at which a model runs its kernels."""

from __future__ import annotations

import pytest

from simcore.calibration.sizes import Core, Product, sizes_of
from simcore.errors import InputError
from simcore.models.graph import known_presets


def test_nanos_products_are_its_layers() -> None:
    sizes = sizes_of("nemotron-3-nano-30b-a3b")
    assert {(p.name, p.n, p.k) for p in sizes.products} == {
        ("mamba_in", 10304, 2688), ("mamba_out", 2688, 4096), ("shared_expert_1", 3712, 2688),
        ("shared_expert_2", 2688, 3712), ("qkv", 4608, 2688), ("attention_out", 2688, 4096), ("head", 131072, 2688)}
    assert sizes.grouped == (Product("expert_1", 1856, 2688), Product("expert_2", 2688, 1856))
    assert sizes.core == Core(32, 2, 128, 128)
    assert sizes.mamba is not None
    assert sizes.mamba.conv_dim == 6144


def test_latent_attention_projects_down_and_up() -> None:
    sizes = sizes_of("deepseek-v3")
    assert {("q_down", 1536, 7168), ("kv_down", 576, 7168), ("kv_up", 32768, 512)} <= {
        (p.name, p.n, p.k) for p in sizes.products}
    assert sizes.core == Core(128, 128, 192, 128)


def test_a_gated_mlp_has_two_halves_in_one_product() -> None:
    products = sizes_of("llama-tiny").products
    assert Product("mlp_1", 2 * 688, 256) in products
    assert Product("mlp_2", 256, 688) in products


@pytest.mark.parametrize("preset", known_presets())
def test_every_model_has_sizes(preset: str) -> None:
    sizes = sizes_of(preset)
    assert sizes.core is not None or sizes.mamba is not None
    assert bool(sizes.grouped) == (sizes.moe is not None)
    assert all(p.n > 0 and p.k > 0 for p in (*sizes.products, *sizes.grouped))


def test_an_unknown_model_is_told_where_it_was_asked_for() -> None:
    with pytest.raises(InputError, match="--model: unknown model 'nemotron-4'"):
        sizes_of("nemotron-4", "--model")
