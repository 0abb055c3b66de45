"""Layers of transformers that torch.compile runs on one by one."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import NotYet
from simcore.simulate import simulate

SMALL = {"config": "llama-3.2-1b", "overrides": {"num_hidden_layers": 8, "vocab_size": 4096}}
MESHES = {"ddp": {"dp_replicate": 2}, "fsdp2": {"dp_shard": 2}}
BF16 = {"params": "bf16"}


def prepared(framework: str, model: Any = SMALL, options: dict[str, Any] | None = None, **given: Any) -> None:
    small.prepared(framework, MESHES[framework], model=model, options={"compile": "layers"} | (options or {}),
                   **{"precision": BF16, "microbatches": 1} | given)


def peak(framework: str, value: object, recompute: str = "none") -> int:
    """Bytes that are allocated at the peak of rank 0."""
    asked = small.scenario(framework, MESHES[framework], model=SMALL, options={"compile": value}, microbatches=1,
                           recompute=recompute, seq_len=4096, precision=BF16)
    of_rank = simulate(asked).ranks[0].peak
    assert of_rank is not None
    return of_rank.allocated_bytes


@pytest.mark.parametrize("framework", MESHES)
def test_compiled_layers_need_less_than_eager_ones(framework: str) -> None:
    assert peak(framework, "layers") < peak(framework, value=False)


def test_replay_leaves_one_layer_of_which_a_compiler_saves_something() -> None:
    whole, one = (peak("fsdp2", value=False, recompute=mode) - peak("fsdp2", "layers", recompute=mode)
                  for mode in ("none", "full"))
    assert 0 < one < whole / 4


@pytest.mark.parametrize(("told", "given"), [
    ("of gemma", {"model": {"config": "gemma-7b", "overrides": {"num_hidden_layers": 2}}}),
    ("in fp32", {"precision": {"params": "fp32", "compute": "fp32"}}),
    ("lora trains", {"method": "lora"}),
    ("takes a mask", {"lengths": "packed"}),
    ("takes a mask", {"options": {"sdpa_backend": "math"}}),
    ("Liger", {"options": {"use_liger_kernel": True}}),
    ("attn_implementation: eager", {"options": {"attn_implementation": "eager"}}),
])
def test_what_was_not_measured_is_refused_by_name(told: str, given: dict[str, Any]) -> None:
    with pytest.raises(NotYet, match=told):
        prepared("ddp", **given)


def test_compiled_layers_under_autocast_are_refused() -> None:
    with pytest.raises(NotYet, match="autocast"):
        prepared("ddp", precision={"params": "fp32", "compute": "bf16"})
