"""A run whose kernels repeat bit by bit is asked for what Megatron-LM asks (megatron/training/determinism.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe

RUN: Final = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
{}
torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 \\
  --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 16 --bf16 \\
  --tensor-model-parallel-size 2 --sequence-parallel --vocab-file v --merge-file m --mock-data {}
"""


MAIN: Final = "main 2026-08-22"


def _imported(tmp_path: Path, variables: str, arguments: str, version: str = MAIN) -> Imported:
    (tmp_path / "run.sh").write_text(RUN.format(variables, arguments), encoding="utf-8")
    settings = {"framework_version": version} if version else {}
    return import_recipe([str(tmp_path / "run.sh")], Answers.of_options(None, None, "dgx-h100", settings))


@pytest.mark.parametrize(("variables", "arguments", "told"), [
    ("", "--cross-entropy-loss-fusion", "cross_entropy_loss_fusion=False (got True)"),
    ("", "--tp-comm-overlap", "tp_comm_overlap=False (got True)"),
    ("export NCCL_ALGO=Tree", "", "NCCL_ALGO='Tree': each token must be in"),
    ("export NVTE_ALLOW_NONDETERMINISTIC_ALGO=1", "", "NVTE_ALLOW_NONDETERMINISTIC_ALGO='1' is not a deterministic"),
    ("export CUBLAS_WORKSPACE_CONFIG=:4096:2", "", "CUBLAS_WORKSPACE_CONFIG=':4096:2' is not a deterministic setting"),
    ("export MAMBA_DETERMINISTIC=0", "", "disables SSM determinism"),
])
def test_what_does_not_repeat_is_refused_as_upstream_refuses_it(tmp_path: Path, variables: str, arguments: str,
                                                                told: str) -> None:
    found = _imported(tmp_path, variables, f"--deterministic-mode {arguments}")
    assert [told in str(one) for one in found.wrong] == [True]
    assert not _imported(tmp_path, variables, arguments).wrong


def test_deterministic_mode_sets_the_workspace_of_cublas(tmp_path: Path) -> None:
    found = _imported(tmp_path, "", "--deterministic-mode")
    assert found.values["environment"]["cublas_workspace_config"] == ":4096:8"
    found = _imported(tmp_path, "export CUBLAS_WORKSPACE_CONFIG=:16:8 NCCL_ALGO=Ring,^NVLS", "--deterministic-mode")
    assert found.values["environment"]["cublas_workspace_config"] == ":16:8"
    assert not found.wrong


def test_core_asks_for_its_own_algorithms(tmp_path: Path) -> None:
    found = _imported(tmp_path, "export NCCL_ALGO=Tree", "--deterministic-mode --tp-comm-overlap", "")
    assert not found.wrong
    missing = {one.key for one in found.left if one.value == "not set" and "deterministic" in one.why}
    assert missing == {"NVTE_ALLOW_NONDETERMINISTIC_ALGO", "CUBLAS_WORKSPACE_CONFIG"}
    found = _imported(tmp_path, "export NCCL_ALGO=NVLS", "--deterministic-mode", "")
    assert ["NCCL_ALGO must be one of" in str(one) for one in found.wrong] == [True]
    assert "cublas_workspace_config" not in found.values.get("environment", {})
    found = _imported(tmp_path, "export NVTE_ALLOW_NONDETERMINISTIC_ALGO=1", "--deterministic-mode", "")
    assert ["NVTE_ALLOW_NONDETERMINISTIC_ALGO must be one of" in str(one) for one in found.wrong] == [True]


def test_main_has_no_cross_entropy_of_transformer_engine(tmp_path: Path) -> None:
    """Megatron-LM main training/arguments.py:1696; core 0.16.1 has it."""
    asked = "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te"
    found = _imported(tmp_path, "", asked)
    assert ["disabled due to stability issues" in str(one) for one in found.wrong] == [True]
    assert not _imported(tmp_path, "", asked, "").wrong
