"""Liger's kernels: what a layer keeps with them, which kernels run, and what is refused. Events: test_operators_hf."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore import simulate
from simcore.errors import NotYet, RankscopeError
from simcore.operators.hf.liger import _NUM_SMS
from simcore.operators.hf.options import HfOptions, LigerKernels

LIGER: dict[str, Any] = {"use_liger_kernel": True}


def peak(framework: str, options: dict[str, Any], **more: Any) -> int:
    report = simulate(small.scenario(framework, model="llama-tiny", options=options, **more))
    return max(one.peak.allocated_bytes for one in report.ranks if one.peak is not None)


@pytest.mark.parametrize("framework", ["ddp", "fsdp1", "fsdp2", "zero2"])
def test_less_is_kept_with_them_and_the_loss_comes_along(framework: str) -> None:
    mesh = {"dp_replicate": 2} if framework == "ddp" else {"dp_shard": 2}
    with_all = peak(framework, LIGER, mesh=mesh, seq_len=2048)
    assert with_all == peak(framework, LIGER, mesh=mesh, seq_len=2048, loss="liger")
    assert with_all < peak(framework, {}, mesh=mesh, seq_len=2048, loss="liger")


@pytest.mark.parametrize("framework", ["ddp", "fsdp1", "fsdp2", "zero3"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_products_that_make_gradients_in_forward_are_no_flops_of_the_model(framework: str, method: str) -> None:
    """Liger's loss makes both gradients of the head in forward: three products, of which one is the model's."""
    flops = []
    for loss in ("hf", "liger", "cut"):
        options = {"use_orig_params": True} if framework == "fsdp1" else {}
        time = simulate(small.scenario(framework, model="llama-tiny", seq_len=2048, loss=loss, method=method,
                                       options=options)).time
        assert time is not None
        assert time.executed_tflops_per_gpu is not None
        flops.append((round(time.model_tflops_per_gpu * time.step_s, 9), round(
            time.executed_tflops_per_gpu * time.step_s, 9)))
    plain, liger, cut = flops
    assert plain == liger
    assert plain[0] == cut[0]
    assert plain[1] < cut[1]


def test_automodel_has_them_unless_told_otherwise() -> None:
    """Its own layers have no use for them."""
    given: dict[str, Any] = {"implementation": "hf", "seq_len": 2048}
    assert peak("automodel", {}, **given) == peak("automodel", LIGER, **given)
    assert peak("automodel", {}, **given) < peak("automodel", {"use_liger_kernel": False}, **given)
    with pytest.raises(RankscopeError, match="Automodel's own layers"):
        small.prepared("automodel", model="llama-tiny", options=LIGER)


def test_a_family_that_is_not_described_is_refused_by_name() -> None:
    with pytest.raises(NotYet, match=r"Liger's kernels in starcoder2 \(served: llama, mistral, qwen2, qwen3, gemma, "):
        small.prepared("ddp", model="starcoder2-3b", options=LIGER)


@pytest.mark.parametrize(("model", "given", "why"), [
    ("llama-tiny", {"options": LIGER | {"FastLanguageModel": True}}, "not yet: Liger's kernels in Unsloth's layers"),
    ("phi-4-mini", {"options": LIGER}, "not yet: Liger's rotation of a part of each head of phi3"),
    ("gemma-3-1b", {"options": {"liger_rms_norm": True}}, "not yet: Liger's norms of query and key"),
    ("glm-4-32b-0414", {"options": {"liger_rope": True}}, "liger_rotary_pos_emb is not available for Glm4 models"),
    ("granite-3.3-2b", {"options": LIGER}, "not yet: Liger's loss over whole logits"),
    ("granite-3.3-2b", {"options": {"liger_rope": True}, "loss": "liger"},
     "LigerFusedLinearCrossEntropy is not available for Granite models"),
    ("llama-tiny", {"options": {"liger_in_classes": True}}, "liger_in_classes")])
def test_what_does_not_go_with_them_is_refused(model: str, given: dict[str, Any], why: str) -> None:
    with pytest.raises(RankscopeError, match=why):
        small.prepared("ddp", model=model, **given)


def test_a_kernel_that_is_named_goes_before_all_of_them() -> None:
    _, table = small.prepared("ddp", model="llama-tiny", options=LIGER | {"liger_rope": False})
    assert isinstance(table.options, HfOptions)
    assert table.options.liger == LigerKernels(rms_norm=True, gated=True)


def test_a_norms_gradient_is_summed_in_as_many_parts_as_there_are_processors() -> None:
    program = small.program_of("ddp", model="llama-tiny", options=LIGER)
    sizes = {size for _, _, size in small.postings(program, "grad_weight.parts") if size > 0}
    assert sizes == {_NUM_SMS * 4 * 256}
