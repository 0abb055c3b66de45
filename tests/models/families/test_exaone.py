"""EXAONE 4 and K-EXAONE: what their layers are, what runs, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import small
from operators.megatron.kinds import T, kept_in, run_of
from simcore.errors import InputError, NotYet
from simcore.models.blocks import Attention, Branch, LayerKind, Mlp, Moe, Mtp
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.results.report import Report
from simcore.simulate import simulate

WHOLE, SLIDING = "full_attention", "sliding_attention"
SMALL: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 512, "num_hidden_layers": 4,
                         "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32}
EXPERTS: dict[str, Any] = {**SMALL, "num_experts": 8, "moe_intermediate_size": 64}
MAIN = "main 2026-08-22"
LAYER = LayerKind("decoder", "exaone4", 2048, (
    Branch("", "self_attn", Attention(2048, 32, 8, 64, rotary=True, qk_norm=True), behind="post_attention_layernorm"),
    Branch("", "mlp", Mlp(2048, 4096), behind="post_feedforward_layernorm")))


def graph(preset: str, **changed: Any) -> ModelGraph:
    return build(model_config(preset, changed, "model"), "hf")


def mixers(found: ModelGraph) -> list[Attention]:
    blocks = [found.kinds[layer.kind].branches[0].block for layer in found.layers if found.kinds[layer.kind].branches]
    return [block for block in blocks if isinstance(block, Attention)]


def ran(mesh: dict[str, int], framework: str = "megatron", config: str = "exaone-4.0-1.2b", version: str = MAIN,
        **more: Any) -> Report:
    sizes = EXPERTS if config.startswith("k-") else SMALL
    return simulate(small.scenario(framework, mesh, model={"config": config, "overrides": sizes},
                                   version=version, **more))


def test_layers_with_a_window_rotate_and_others_do_not() -> None:
    assert [(one.window, one.rotary) for one in mixers(graph("exaone-4.0-32b"))] == [
        (4096, True), (4096, True), (4096, True), (0, False)] * 16
    assert {(one.window, one.rotary) for one in mixers(graph("exaone-4.0-1.2b"))} == {(0, True)}
    assert [(one.window, one.rotary) for one in mixers(graph("k-exaone-236b-a23b"))] == [
        (128, True), (128, True), (128, True), (0, False)] * 12


def test_without_a_list_each_last_of_four_layers_sees_all() -> None:
    found = mixers(graph("exaone-4.0-32b", num_hidden_layers=6, layer_types=None, sliding_window_pattern=3))
    assert [bool(one.window) for one in found] == [True, True, False] * 2


def test_a_module_of_further_tokens_is_dense_whatever_the_last_layer_is() -> None:
    found = build(model_config("k-exaone-236b-a23b", {"mtp_num_layers": 1}, "model"), "megatron")
    (module,) = (kind for kind in found.kinds if isinstance(kind.block, Mtp))
    first, second = (branch.block for branch in module.branches)
    assert isinstance(first, Attention)
    assert not first.rotary
    assert not first.window
    assert isinstance(second, Mlp)
    last = [kind for kind in found.kinds if kind.block is None][-1]
    assert isinstance(last.branches[1].block, Moe)


@pytest.mark.parametrize(("preset", "changed"), [
    ("exaone-4.0-32b", {"sliding_window": None}), ("exaone-4.0-1.2b", {"layer_types": None}),
    ("exaone-4.0-32b", {"layer_types": [SLIDING]}), ("exaone-4.0-32b", {"hidden_act": "gelu"}),
    ("exaone-4.0-32b", {"layer_types": None, "sliding_window_pattern": "LLLG"}),
    ("k-exaone-236b-a23b", {"scoring_func": "softmax"}), ("k-exaone-236b-a23b", {"num_experts_per_tok": 999})])
def test_what_is_not_modelled_is_refused(preset: str, changed: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        graph(preset, **changed)


def test_eager_attention_without_a_window_has_one_mask_and_waits() -> None:
    with pytest.raises(NotYet, match="makes one mask"):
        small.program_of("fsdp2", {"dp_shard": 2}, model={"config": "exaone-4.0-1.2b", "overrides": SMALL},
                         options={"attn_implementation": "eager"})


def test_megatron_runs_both() -> None:
    reports = {
        "tp": ran({"dp_shard": 2, "tp": 2}), "stages": ran({"dp_shard": 2, "pp": 2}),
        "adapters": ran({"dp_shard": 2, "tp": 2}, method="lora"), "replayed": ran({"dp_shard": 2}, recompute="full"),
        "experts": ran({"dp_shard": 4, "ep": 4, "tp": 2, "etp": 1}, config="k-exaone-236b-a23b"),
        "units": ran({"dp_shard": 2}, "megatron_fsdp")}
    assert {name: report.problems for name, report in reports.items() if report.status != "ok"} == {}


@pytest.mark.parametrize(("asked", "message"), [
    ({"version": "core 0.16.1 + bridge 0.3.1"}, "Bridge 0.3.1 has no bridge for exaone4"),
    ({"config": "exaone-4.0-32b"}, "32B model introduces hybrid attention"),
    ({"lengths": "packed"}, "Packed sequence is not supported by DotProductAttention"),
    ({"mesh": {"dp_shard": 2, "cp": 2}}, "attention that is not fused and context parallelism"),
    ({"mesh": {"dp_shard": 2, "pp": 2}, "config": "k-exaone-236b-a23b", "virtual_stages": 2}, "vp_stage must be")])
def test_megatron_refuses_what_bridge_does_not_do(asked: dict[str, Any], message: str) -> None:
    mesh, stages = asked.pop("mesh", {"dp_shard": 2}), asked.pop("virtual_stages", 0)
    more: dict[str, Any] = {"pipeline": {"virtual_stages": stages}, "global_batch_size": 8} if stages else {}
    report = ran(mesh, **asked, **more)
    assert report.status == "illegal"
    assert report.problems[0].message.startswith(message)


def test_an_attention_backend_changes_nothing() -> None:
    report = ran({"dp_shard": 2}, options={"attention_backend": "flash"})
    assert "changes nothing in EXAONE 4" in report.problems[0].message


def test_linears_without_a_norm_keep_their_input_alone() -> None:
    """TE's LayerNormLinear keeps what the norm made, 16 bits, and a number a token in fp32, of qkv and of fc1."""
    options = MegatronOptions(attention_backend="unfused", core_attention=True)
    with_norms = replace(LAYER, branches=tuple(replace(branch, norm="input_layernorm") for branch in LAYER.branches))
    kept = [kept_in(kind, run_of(kind, tokens=T, options=options)) for kind in (with_norms, LAYER)]
    assert kept[0] - kept[1] == 2 * (2 * 2048 * T + 4 * T)
