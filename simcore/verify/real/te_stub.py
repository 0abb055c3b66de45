"""Shape-only stand-ins for the CUDA-only packages Megatron needs.

Only the constructor contract of Transformer Engine matters here: `column`
splits out_features by tp_size, `row` splits in_features by tp_size, anything
else keeps the sizes it is given; LayerNormLinear adds `layer_norm_weight`;
GroupedLinear holds weight0..weight{n-1}.  All tensor-parallel decisions
(which mode, which group size, expert special cases) are made by Megatron.
"""

import importlib.machinery
import importlib.metadata
import sys
import types
import typing
from unittest.mock import MagicMock

import torch
from torch import nn

TE_VERSION = "2.10.0"


def _param(*shape, dtype):
    return nn.Parameter(torch.empty(*shape, dtype=dtype, device="meta"))


def _sizes(in_f, out_f, mode, tp):
    if mode == "column":
        assert out_f % tp == 0
        out_f //= tp
    elif mode == "row":
        assert in_f % tp == 0
        in_f //= tp
    return in_f, out_f


class Linear(nn.Module):
    def __init__(
        self, in_features, out_features, *, tp_size=1, parallel_mode=None, bias=True, params_dtype=torch.bfloat16, **kw
    ):
        super().__init__()
        self.in_features, self.out_features = _sizes(in_features, out_features, parallel_mode, tp_size)
        self.parallel_mode, self.tp_size, self.use_bias = parallel_mode, tp_size, bias
        self.weight = _param(self.out_features, self.in_features, dtype=params_dtype)
        if bias:
            self.bias = _param(self.out_features, dtype=params_dtype)


class LayerNormLinear(Linear):
    """Its norm comes first, as TE registers it: buckets are filled in that order."""

    def __init__(self, in_features, out_features, *, normalization="LayerNorm", params_dtype=torch.bfloat16, **kw):
        super().__init__(in_features, out_features, params_dtype=params_dtype, **kw)
        later = list(self._parameters.items())
        self._parameters.clear()
        self.layer_norm_weight = _param(in_features, dtype=params_dtype)
        if normalization == "LayerNorm":
            self.layer_norm_bias = _param(in_features, dtype=params_dtype)
        self._parameters.update(later)


class GroupedLinear(nn.Module):
    def __init__(
        self,
        num_gemms,
        in_features,
        out_features,
        *,
        tp_size=1,
        parallel_mode=None,
        bias=True,
        params_dtype=torch.bfloat16,
        **kw,
    ):
        super().__init__()
        self.num_gemms, self.parallel_mode, self.tp_size = num_gemms, parallel_mode, tp_size
        self.in_features, self.out_features = _sizes(in_features, out_features, parallel_mode, tp_size)
        for i in range(num_gemms):
            setattr(self, f"weight{i}", _param(self.out_features, self.in_features, dtype=params_dtype))
            if bias:
                setattr(self, f"bias{i}", _param(self.out_features, dtype=params_dtype))

    def init_fp8_metadata(self, **kw):
        pass


class RMSNorm(nn.Module):
    def __init__(self, normalized_shape=None, *, hidden_size=None, eps=1e-5, **kw):
        super().__init__()
        n = normalized_shape if normalized_shape is not None else hidden_size
        self.weight = _param(n, dtype=kw.get("dtype") or kw.get("params_dtype") or torch.bfloat16)


class LayerNorm(RMSNorm):
    def __init__(self, *a, **kw):
        super().__init__(*a, **kw)
        self.bias = _param(*self.weight.shape, dtype=self.weight.dtype)


class DotProductAttention(nn.Module):
    """With learnable softmax it has an offset a head, in fp32."""

    def __init__(self, num_attention_heads=0, *a, softmax_type="vanilla", tp_size=1, **kw):
        super().__init__()
        if softmax_type == "learnable":
            self.softmax_offset = _param(num_attention_heads // tp_size, dtype=torch.float32)


class _Tracker:
    def reset(self):
        pass

    def set_states(self, s):
        pass

    def add(self, *a):
        pass


class _Fallback(types.ModuleType):
    """Module whose unknown attributes are fresh dummy classes."""

    def __getattr__(self, name):
        if name.startswith("__") or name == "ep":
            raise AttributeError(name)
        cls = type(name, (), {})
        setattr(self, name, cls)
        return cls


def _module(name, strict=False, **attrs):
    m = (types.ModuleType if strict else _Fallback)(name)
    m.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    m.__path__ = []
    for k, v in attrs.items():
        setattr(m, k, v)
    sys.modules[name] = m
    parent, _, leaf = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], leaf, m)
    return m


class _NoForkTracker:
    def is_initialized(self):
        return False

    def fork(self, *a, **kw):
        import contextlib

        return contextlib.nullcontext()

    def add(self, *a):
        pass

    def get_states(self):
        return {}


LEAVES = (
    "fp8", "float8_tensor", "tensor", "tensor.mxfp8_tensor", "tensor.float8_tensor", "tensor.utils",
    "tensor.nvfp4_tensor", "optimizers", "graph", "attention", "attention.rope", "cpu_offload", "cpp_extensions",
    "permutation", "cross_entropy", "router", "module", "module.base", "utils")
"""Modules of `transformer_engine.pytorch` that Megatron imports from."""


class RMSNormGated(nn.Module):
    def __init__(self, hidden_size, eps=1e-5, group_size=None, norm_before_gate=True, device=None, dtype=None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size, device="meta", dtype=dtype))


def install():
    """Once: classes are compared later on."""
    if "transformer_engine" in sys.modules:
        return
    _say_versions()
    _transformer_engine()
    _mamba()
    _flash_linear_attention()
    if sys.version_info < (3, 12):  # newer Megatron-LM uses typing.override
        typing.override = lambda f: f
    # Megatron imports these Triton kernels unconditionally; they are inference-only
    _module("megatron.core.inference.contexts.attention_context.triton.tensor_ops")
    _devices()


def _say_versions():
    real, told = importlib.metadata.version, {"transformer-engine": TE_VERSION, "mamba-ssm": "2.3.0"}
    importlib.metadata.version = lambda name: told.get(name.replace("_", "-")) or real(name)


def _transformer_engine():
    _module("transformer_engine", __version__=TE_VERSION)
    pt = _module("transformer_engine.pytorch", Linear=Linear, LayerNormLinear=LayerNormLinear,
                 GroupedLinear=GroupedLinear, RMSNorm=RMSNorm, LayerNorm=LayerNorm,
                 DotProductAttention=DotProductAttention)
    for name in ("common", "common.recipe", "pytorch.ops", *(f"pytorch.{leaf}" for leaf in LEAVES)):
        _module(f"transformer_engine.{name}")
    _module("transformer_engine.pytorch.distributed", CudaRNGStatesTracker=_Tracker,
            is_fp8_activation_recompute_enabled=lambda: False)
    pt.get_cpu_offload_context = sys.modules["transformer_engine.pytorch.cpu_offload"].get_cpu_offload_context = (
        lambda *a, **k: (None, None))
    sys.modules["transformer_engine.pytorch.attention"]._SplitAlongDim = type("S", (), {"apply": None})
    assert pt.ops


def _mamba():
    for n in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton"):
        _module(n, __version__="2.3.0")
    _module("mamba_ssm.ops.triton.layernorm_gated", RMSNorm=RMSNormGated)
    _module("mamba_ssm.ops.triton.ssd_combined", mamba_chunk_scan_combined=MagicMock(),
            mamba_split_conv1d_scan_combined=MagicMock())
    _module("mamba_ssm.ops.triton.selective_state_update", selective_state_update=MagicMock())
    _module("causal_conv1d", causal_conv1d_fn=MagicMock(), causal_conv1d_update=MagicMock())
    _module("causal_conv1d.causal_conv1d_varlen", causal_conv1d_varlen_states=MagicMock())


def _flash_linear_attention():
    """Stand-ins for the modules of flash-linear-attention that Megatron's gated delta net needs before it is built."""
    for n in ("fla", "fla.modules", "fla.ops"):
        _module(n, __version__="0.6.0")
    _module("fla.modules.convolution", causal_conv1d=MagicMock(), causal_conv1d_update=MagicMock())
    _module("fla.modules.l2norm", l2norm=MagicMock())
    _module("fla.ops.gated_delta_rule", chunk_gated_delta_rule=MagicMock(),
            fused_recurrent_gated_delta_rule=MagicMock())


def _devices():
    """Every allocation on the current CUDA device goes to meta."""
    torch.cuda.current_device = lambda: "meta"
    torch.cuda.current_stream = lambda *a, **k: None
    torch.cuda.Stream = MagicMock()
    torch.Tensor.cuda = lambda self, *a, **k: self.to("meta")
    made = torch.tensor

    def unpinned(*a, pin_memory=False, **k):
        return made(*a, **k)

    torch.tensor = unpinned


def use_dummy_rng():
    import megatron.core.tensor_parallel.random as r

    r._CUDA_RNG_STATE_TRACKER = _NoForkTracker()
    r._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
