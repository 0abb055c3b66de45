"""Exported variables: which change what is run, and the same reason whoever sets them."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from simcore.recipes.bridge.variables import ROWS
from simcore.recipes.environment import SETTINGS, row_of
from simcore.recipes.rows import Idle, Unmodelled


@pytest.mark.parametrize(("name", "kind"), [
    ("NCCL_NVLS_ENABLE", Unmodelled), ("NCCL_ALGO", Unmodelled), ("NCCL_BUFFSIZE", Unmodelled),
    ("NCCL_MAX_NCHANNELS", Unmodelled), ("NCCL_DEBUG", Idle), ("NCCL_SOCKET_IFNAME", Idle), ("NCCL_IB_TIMEOUT", Idle),
    ("TORCH_NCCL_AVOID_RECORD_STREAMS", Idle), ("TORCH_NCCL_HIGH_PRIORITY", Unmodelled),
    ("CUDA_DEVICE_MAX_CONNECTIONS", Unmodelled), ("CUDA_LAUNCH_BLOCKING", Unmodelled),
    ("CUDA_MODULE_LOADING", Unmodelled), ("NCCL_PXN_DISABLE", Unmodelled), ("NCCL_IB_SL", Idle),
    ("CUDA_SCALE_LAUNCH_QUEUES", Unmodelled), ("CUDA_HOME", Idle),
    ("NVTE_FWD_LAYERNORM_SM_MARGIN", Unmodelled), ("NVTE_FLASH_ATTN", Unmodelled), ("NVTE_DEBUG", Idle),
    ("OMP_NUM_THREADS", Unmodelled), ("MASTER_ADDR", Idle), ("WORKDIR", Idle),
    ("USE_MNNVL", Unmodelled), ("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", Unmodelled),
    ("MAMBA_DETERMINISTIC", Unmodelled), ("TORCHDYNAMO_DISABLE", Unmodelled),
    ("NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE", Idle)])
def test_a_variable_that_changes_what_is_run_is_not_without_effect(name: str, kind: type) -> None:
    assert isinstance(row_of(name, "0"), kind)


def test_recipes_that_set_variables_have_the_reasons_of_scripts() -> None:
    for row in ROWS:
        for key in row.keys:
            name = key.removeprefix("env_vars.").replace("*", "X")
            assert row_of(name, "2").why == row.why
    assert len(ROWS) == len(SETTINGS)
    assert not any(fnmatchcase(key, "env_vars.*") for row in SETTINGS for key in row.keys)


def test_a_variable_that_says_the_default_changes_nothing() -> None:
    name = "NVTE_ALLOW_NONDETERMINISTIC_ALGO"
    assert isinstance(row_of(name, "0"), Unmodelled)
    assert row_of(name, "1").why == "its default: as without it"
    assert row_of(name, "").why == "set to nothing, as without it"
