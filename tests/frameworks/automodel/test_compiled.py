"""Layers by torch.compile under Automodel: what they hold, send and take, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import NotYet
from simcore.frameworks.setup import prepare
from simcore.results.report import Report
from simcore.simulate import simulate

LLAMA = {"config": "llama-tiny", "overrides": {"tie_word_embeddings": False}}
COMPILED = {"enable_compile": True}
ADAPTERS: dict[str, Any] = {"rank": 8, "alpha": 16.0, "target_modules": ["*_proj"]}
LORA: dict[str, Any] = {"method": "lora", "lora": ADAPTERS}


def _given(mesh: dict[str, int] | None = None, options: dict[str, Any] | None = None, **given: Any) -> Any:
    return small.scenario("automodel", mesh or {"dp_shard": 2}, options=COMPILED if options is None else options,
                          seq_len=8192, **{"model": LLAMA, **given})


def _ran(*places: Any, **given: Any) -> Report:
    return simulate(_given(*places, **given))


@pytest.mark.parametrize("given", [{}, LORA, {"recompute": "full"}, {**LORA, "recompute": "full"},
                                   {"model": "qwen2.5-1.5b", "recompute": "full"}, {"implementation": "hf"}])
def test_compiled_layers_hold_less_and_end_sooner(given: dict[str, Any]) -> None:
    plain = {"use_liger_kernel": False} if "implementation" in given else {}
    compiled, eager = _ran(None, COMPILED | plain, **given), _ran(None, plain, **given)
    assert compiled.status == eager.status == "ok"
    assert compiled.highest_bytes is not None
    assert eager.highest_bytes is not None
    assert compiled.highest_bytes < eager.highest_bytes
    assert compiled.time is not None
    assert eager.time is not None
    assert compiled.time.step_s < eager.time.step_s
    assert any("each decoder layer is one graph" in str(one) for one in compiled.assumptions)


def test_what_was_not_measured_is_refused_by_name() -> None:
    for mesh, given, words in (
            ({"dp_shard": 2}, {"implementation": "hf"}, "with Liger's kernels"),
            ({"dp_shard": 2, "tp": 2}, {"implementation": "hf"}, "of transformers over tp"),
            ({"dp_shard": 2}, {"model": {"config": "mistral-7b-v0.3", "overrides": {"sliding_window": 4096}}},
             r"sliding_window 4096), told by a mask where seq_len, 8192"),
            ({"dp_shard": 2}, {"options": COMPILED | {"sdpa_backend": "math"}}, "has no kernel (sdpa_backend: math)"),
            ({"dp_shard": 2}, {"model": "gemma-2-9b"}, "of gemma2 by the layers of hf"),
            ({"dp_shard": 2}, {"model": "qwen3-30b-a3b"}, "of qwen3_moe by the layers of automodel"),
            ({"dp_shard": 2, "cp": 2}, {}, "attach_cp_sdpa_hooks"),
            ({"dp_shard": 2, "pp": 2}, {}, "on pipeline stages"),
            ({"dp_shard": 1}, {"recompute": "full"}, "on one GPU with activation checkpointing"),
            ({"dp_shard": 2}, {**LORA, "lora": {**ADAPTERS, "dropout": 0.1}}, "with dropout of adapters"),
            ({"dp_shard": 2}, {**LORA, "lora": {**ADAPTERS, "use_dora": True}}, "with DoRA"),
            ({"dp_shard": 2}, {"precision": {"compute": "fp32"}}, "in fp32")):
        with pytest.raises(NotYet) as caught:
            prepare(_given(mesh, **given))
        assert words in str(caught.value), given
