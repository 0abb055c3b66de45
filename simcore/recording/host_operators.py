"""Host time of Python code, counted in operators of torch: one row for each call that was timed.

The unit: see `host.operator` and `timing/host_launch.py`. An operator is 16 us of Python and C++ and a launch of 5 us
(source of both: `tests/truth/fit_priors.py`); its time on a kind of host is calibrated as one number. Times measured by
probes contain no launches, which are added: 5 us for a kernel of torch, 18 us for one of Triton (triton pull request
3648). Calls were run with kernels that do nothing and groups that send nothing; the files are in `tests/truth/host/`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["AUTOMODEL_ATTENTION", "AUTOMODEL_LOCAL_MOE", "AUTOMODEL_MAMBA", "AUTOMODEL_MLP", "AUTOMODEL_MOE",
           "FSDP2_BACKWARD_GATHER", "FSDP2_FORWARD_GATHER", "FSDP2_REDUCE", "FSDP2_RELEASE", "GATED_NORM",
           "MAMBA_MIXER", "MAMBA_SCAN", "MULTIHOT", "PERMUTE", "UNFUSED_PERMUTE", "UNFUSED_UNPERMUTE", "UNPERMUTE",
           "Operators", "UnitOperators", "operators"]

_PYTHON_US: Final = 16
_TORCH_US: Final = 5
_TRITON_US: Final = 18


def operators(timed: float, torch: int = 0, triton: int = 0) -> int:
    """Number of torch operators that take the same host time as `timed` operators and the given launches.

    `timed`: measured number, without launches; `torch`, `triton`: launches of kernels of torch and of Triton.
    """
    launches_us = _TORCH_US * torch + _TRITON_US * triton
    return round((_PYTHON_US * timed + launches_us) / (_PYTHON_US + _TORCH_US))


class Operators(NamedTuple):
    """Host time of a call of a Python function, and of its backward, each in a number of torch operators."""

    forward: int
    backward: int


class UnitOperators(NamedTuple):
    """Host time of an FSDP hook around a unit (parameters gathered together), in torch operators.

    `unit`: operators for the unit; `param`: operators for each of its parameters; `copies`: copy kernels that it
    launches. Within a quarter of the measured times.
    """

    unit: float
    param: float
    copies: int

    def operators(self, num_params: int) -> int:
        """Number of torch operators, launches of copies included, for a unit of `num_params` parameters."""
        return operators(self.unit + self.param * num_params, torch=self.copies)


class _Pass(NamedTuple):
    """Measured pass. `rows`: kernels with separate rows, each of which counts as an operator elsewhere."""

    timed: float
    torch: int = 0
    triton: int = 0
    rows: int = 0


def _call(forward: _Pass, backward: _Pass) -> Operators:
    return Operators(*(operators(timed.timed - timed.rows, timed.torch, timed.triton) for timed in (forward, backward)))


# ---- Mamba-2 by mamba_ssm's Triton kernels ---------------------------------------------------------------------------
MAMBA_SCAN: Final = _call(_Pass(43.1, torch=1, triton=5), _Pass(130.8, torch=17 + 2, triton=15))
"""mamba_ssm e9594ce1 `ops/triton/ssd_combined.py`, MambaSplitConv1dScanCombinedFn (mamba-e9594ce1.json); kernels of the
convolution, one forward and two backward, are launched as torch's are."""
MAMBA_MIXER: Final = _call(_Pass(5.7, torch=3), _Pass(6.0, torch=3))
"""Core 0.16.1 `ssm/mamba_mixer.py`, _ssm_training (mixer-core-0.16.1.json), around the scan: with launches of exp, neg
and a cast; copies have rows of their own."""
GATED_NORM: Final = _call(_Pass(6.1, triton=1), _Pass(11.3, torch=1, triton=1))
"""`ops/triton/layernorm_gated.py`, RMSNorm, where the scan has none inside (mamba-e9594ce1.json); backward with the sum
of its weight's gradient."""

# ---- rows in the order of experts, and back --------------------------------------------------------------------------
PERMUTE: Final = _call(_Pass(6.1, triton=4), _Pass(7.8, triton=1))
"""TransformerEngine 2.9 `pytorch/permutation.py`, moe_permute_with_probs (permutation-te-2.9.json), as NeMo Automodel
calls it. Megatron's calls of the same have a number of their own, `host.permutation`."""
UNPERMUTE: Final = _call(_Pass(3.0, triton=1), _Pass(5.9, triton=1))
"""moe_unpermute of the same."""
MULTIHOT: Final = _call(_Pass(3.5, triton=1), _Pass(5.7, triton=1))
"""NeMo Automodel 2f805abd `moe/megatron/fused_indices_converter.py` (permutation-te-2.9.json)."""
UNFUSED_PERMUTE: Final = Operators(13, 6)
"""Megatron-Core 0.16.1 `moe_utils.py`, permute, without fusion, counted in its source: two masked selections, of places
and of probabilities, take four each, and the host waits to know how many they find."""
UNFUSED_UNPERMUTE: Final = Operators(2, 1)
"""Unpermute of the same: zeros, and rows added to them; rows selected."""

# ---- layers of NeMo Automodel 0.7.0 (automodel-0.7.0.json), see `operators/automodel/env.py` -------------------------
AUTOMODEL_MAMBA: Final = _call(_Pass(66.2, rows=11), _Pass(28.2, rows=14))
AUTOMODEL_ATTENTION: Final = _call(_Pass(66.3, rows=10), _Pass(46.6, rows=14))
AUTOMODEL_MLP: Final = _call(_Pass(42.9, rows=9), _Pass(24.3, rows=11))
AUTOMODEL_MOE: Final = _call(_Pass(178.3, rows=31), _Pass(131.2, rows=37))
AUTOMODEL_LOCAL_MOE: Final = _call(_Pass(201.0, rows=47), _Pass(107.0, rows=43))
"""Experts that are not sharded over ranks, which have neither DTensors nor DeepEP."""

# ---- hooks of torch 2.13 `distributed/fsdp/_fully_shard` (fully-shard-torch-2.13.json) -------------------------------
# So much by unit, and so much by parameter, each of which Python puts into its module and takes out of it. The
# collective's call is not in it, nor are CUDA's streams and events, which a CPU has not. Timed over 8 ranks; one rank,
# which gathers nothing and copies parameter by parameter, is assumed to take as long, and so are units that stay
# gathered after forward. Forward hooks that run again in a replay are left out.
FSDP2_FORWARD_GATHER: Final = UnitOperators(62.5, 2.8, copies=2)
"""Gathered, with its copy in and its copy out, used, resharded: with all hooks of forward."""
FSDP2_BACKWARD_GATHER: Final = UnitOperators(24.0, 2.1, copies=2)
"""Gathered again."""
FSDP2_RELEASE: Final = UnitOperators(19.5, 0.75, copies=0)
"""Hooks of backward where nothing is gathered or reduced: a frozen unit, or a microbatch that only sums."""
FSDP2_REDUCE: Final = UnitOperators(17.0, 2.6, copies=1)
"""Reducing the gradients of a unit, beyond that, with their copy in."""
