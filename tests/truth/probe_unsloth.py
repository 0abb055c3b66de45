"""What Unsloth's functions of autograd allocate in one decoder layer, event by event.

    git -C UNSLOTH archive 015bdef0 unsloth/kernels | tar -x -C CHECKOUT
    git -C UNSLOTH_ZOO archive ce232d6c unsloth_zoo/gradient_checkpointing.py | tar -x -C CHECKOUT
    python tests/truth/probe_unsloth.py CHECKOUT > tests/truth/tape/unsloth-015bdef0-torch-2.13.0.json

The functions are Unsloth's own, imported from the checkout (`kernels/fast_lora.py`, `rms_layernorm.py`,
`rope_embedding.py`, `swiglu.py`, and matmul_lora and get_lora_parameters of `utils.py`), on a CPU, with 16-bit weights.
Transcribed by hand: which of them a layer calls, and in which order (`models/llama.py`, `models/qwen3.py`,
`utils/attention_dispatch.py`), with PEFT's modules where its conditions fail: other adapters, biases, dropout, DoRA.
`checkpoint`: inside unsloth-zoo's own UnslothCheckpointFunction, whose buffers on device and host are there before; the
layer's input "waits", or that of the last layer "stays". Stand-ins: launches of Triton's kernels do nothing; the CPU
flash kernel; streams; dropout as in `probe_adapters.py`.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import torch
from json_lines import by_name
from oracle.liger import stub_triton
from oracle.steps.tracker import Tracker
from peft import LoraConfig, get_peft_model
from probe_adapters import fused_dropout
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

HIDDEN, FFN, HEADS, SEQ, RANK = 256, 688, 8, 512, 8
CASES: dict[str, dict[str, Any]] = {
    "llama": {}, "llama-b2": {"batch": 2}, "mha": {"kv": 8}, "mha-b2": {"kv": 8, "batch": 2}, "qwen3": {"norms": True},
    "qwen2": {"biases": True}, "partial": {"targets": ["q_proj", "v_proj", "o_proj"]},
    "dropout": {"dropout": 0.1}, "dropout-b2": {"dropout": 0.1, "batch": 2},
    "dropout-partial": {"dropout": 0.1, "targets": ["q_proj", "v_proj", "o_proj"]},
    "dora": {"dora": True}, "dora-partial": {"dora": True, "targets": ["q_proj", "v_proj", "o_proj"]},
    "dora-dropout": {"dora": True, "dropout": 0.1}, "rslora": {"rslora": True},
    "waits": {"checkpoint": "waits"}, "stays": {"checkpoint": "stays"},
    "dropout-waits": {"dropout": 0.1, "checkpoint": "waits"},
}
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FROM_UTILS = ("matmul_lora", "get_lora_parameters", "calculate_settings", "_maybe_fake_quantize_activations")


def unsloth(checkout: Path) -> types.SimpleNamespace:
    """The functions of the checkout, with what they import from elsewhere as stand-ins."""
    stub_triton()
    root = checkout / "unsloth"
    for name, path in (("unsloth", root), ("unsloth.kernels", root / "kernels")):
        module: Any = types.ModuleType(name)
        module.__path__ = [str(path)]
        sys.modules[name] = module
    device: Any = types.ModuleType("unsloth.device_type")
    device.DEVICE_COUNT, device.DEVICE_TYPE = 1, "cuda"
    sys.modules["unsloth.device_type"] = device
    utils: Any = types.ModuleType("unsloth.kernels.utils")
    utils.__dict__.update(
        torch=torch, torch_matmul=torch.matmul, triton=sys.modules["triton"], MAX_FUSED_SIZE=65536,
        next_power_of_2=lambda n: 1 << (n - 1).bit_length(), Float8Tensor=type(None), __name__="unsloth.kernels.utils",
        fast_dequantize=lambda w, state=None, out=None, use_global_buffer=False: w, QUANT_STATE=lambda w: None,
        torch_gpu_device=lambda _device: contextlib.nullcontext(), Optional=__import__("typing").Optional,
        torch_device_stream=None, _FP8_WEIGHT_DTYPES=(), is_cdna=lambda: False, fp8_linear=None,
        torch_amp_custom_fwd=torch.amp.custom_fwd(device_type="cpu"), HAS_CUDA_STREAM=False,
        torch_amp_custom_bwd=torch.amp.custom_bwd(device_type="cpu"), get_lora_parameters_bias=None)
    tree = ast.parse((root / "kernels" / "utils.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in FROM_UTILS:
            exec(compile(ast.Module([node], []), "utils.py", "exec"), utils.__dict__)  # noqa: S102
    utils.__getattr__ = lambda _name: None  # what only other activations use
    sys.modules["unsloth.kernels.utils"] = utils
    lora, norm, rope = (importlib.import_module(f"unsloth.kernels.{name}") for name in (
        "fast_lora", "rms_layernorm", "rope_embedding"))
    return types.SimpleNamespace(qkv=lora.apply_lora_qkv, out=lora.apply_lora_o, mlp=lora.apply_lora_mlp_swiglu,
                                 norm=norm.fast_rms_layernorm, rope=rope.fast_rope_embedding)


class Queue:
    """A stream or an event of a device that does everything at once."""

    def wait_stream(self, other: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record(self, stream: Any) -> None: ...


def checkpointed(checkout: Path, size: int, *, last: bool) -> Any:
    """UnslothCheckpointFunction on a CPU, behind its first step: both buffers hold `size` elements."""
    buffers = [{None: torch.empty(size, dtype=torch.bfloat16)} for _ in range(2)]
    space: dict[str, Any] = {name: getattr(torch.utils.checkpoint, name) for name in (
        "_infer_device_type", "_get_autocast_kwargs", "_get_device_module", "get_device_states")}
    space |= {
        "torch": torch, "nullcontext": contextlib.nullcontext, "DEVICE_TYPE": "cuda", "FIRST_PASS": False,
        "torch_gpu_stream": contextlib.nullcontext, "_gradient_checkpoint_recompute_marker": contextlib.nullcontext,
        "_no_inference_mode": contextlib.nullcontext, "MINIMUM_SIZE": 0, "CPU_INDEX": 0, "BACKWARD_PASS": True,
        "USE_UNSLOTH_GC": False, "CURRENT_GC_INDEX": 0, "LAST_GC_INDEX": 1 if last else 2, "USE_DOUBLE_BUFFER": True,
        "NEXT_BUFFER_SLOT": {None: 0}, "CPU_BUFFERS": [torch.empty(size, dtype=torch.bfloat16)],
        "GPU_BUFFERS": buffers[0], "GPU_BUFFERS_B": buffers[1], "MAIN_STREAMS": {None: Queue()},
        "EXTRA_STREAMS": {None: Queue()}, "BUFFER_EVENTS_A": {None: Queue()}, "BUFFER_EVENTS_B": {None: Queue()}}
    tree = ast.parse((checkout / "unsloth_zoo/gradient_checkpointing.py").read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "UnslothCheckpointFunction"]
    exec(compile(ast.Module(list(found), []), "gradient_checkpointing.py", "exec"), space)  # noqa: S102
    return space["UnslothCheckpointFunction"], [*(one[None] for one in buffers), space["CPU_BUFFERS"][0]]


class Norm(nn.Module):
    """Weight and epsilon of a norm."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(size)), 1e-6


class Layer(nn.Module):
    """Modules of a decoder layer under the names of transformers; the functions of a case run them."""

    def __init__(self, kv: int, biases: bool, norms: bool) -> None:
        super().__init__()
        dim = HIDDEN // HEADS
        self.kv, self.dim = kv, dim
        rows = {"k_proj": kv * dim, "v_proj": kv * dim, "gate_proj": FFN, "up_proj": FFN}
        for name in LINEARS:
            columns = FFN if name == "down_proj" else HIDDEN
            setattr(self, name, nn.Linear(columns, rows.get(name, HIDDEN), bias=biases and name[0] in "qkv"))
        self.input_norm, self.post_norm = Norm(HIDDEN), Norm(HIDDEN)
        self.q_norm, self.k_norm = (Norm(dim), Norm(dim)) if norms else (None, None)


def fused(layer: Any, *names: str) -> bool:
    """The conditions of patch_peft_model."""
    found = [getattr(layer, name) for name in names]
    return all(hasattr(one, "lora_A") and one.base_layer.bias is None and len(one.lora_magnitude_vector) == 0
               and isinstance(one.lora_dropout["default"], nn.Identity) for one in found)


def forward(fast: Any, layer: Any, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """LlamaDecoderLayer_fast_forward around LlamaAttention_fast_forward or Qwen3Attention_fast_forward."""
    residual = hidden
    hidden = fast.norm(layer.input_norm, hidden)
    hidden = residual + attention(fast, layer, hidden, cos, sin)
    residual = hidden
    hidden = fast.norm(layer.post_norm, hidden)
    if fused(layer, "gate_proj", "up_proj", "down_proj"):
        hidden = fast.mlp(layer, hidden)
    else:
        hidden = layer.down_proj(nn.functional.silu(layer.gate_proj(hidden)) * layer.up_proj(hidden))
    return residual + hidden


def attention(fast: Any, layer: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """With the SDPA branch of run_attention."""
    batch, seq, _ = x.size()
    if fused(layer, "q_proj", "k_proj", "v_proj"):
        q, k, v = fast.qkv(layer, x)
    else:
        q, k, v = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
    q, k = q.view(batch, seq, HEADS, layer.dim), k.view(batch, seq, layer.kv, layer.dim)
    v = v.view(batch, seq, layer.kv, layer.dim).transpose(1, 2)
    if layer.q_norm is not None:
        q = fast.norm(layer.q_norm, q)
        k = fast.norm(layer.k_norm, k)
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    q, k = fast.rope(q, k, cos, sin, None)
    a = attend(q, k, v, grouped=layer.kv != HEADS)
    flat = a.reshape(batch, seq, HIDDEN)
    return fast.out(layer, flat) if fused(layer, "o_proj") else layer.o_proj(flat)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, grouped: bool) -> torch.Tensor:
    """Grouped heads as they are, others by way of contiguous copies."""
    if grouped:
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
    out = scaled_dot_product_attention(q.contiguous(), k.contiguous(), v.contiguous(), is_causal=True)
    return out.transpose(1, 2).contiguous()


def measure(checkout: Path, fast: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Signed bytes of every birth and death in forward and backward of one layer under autocast."""
    tracker = Tracker()
    layer = Layer(case.get("kv", 4), case.get("biases", False), case.get("norms", False)).to(torch.bfloat16)
    made = get_peft_model(layer, LoraConfig(
        r=RANK, lora_alpha=RANK, target_modules=case.get("targets", LINEARS), lora_dropout=case.get("dropout", 0.0),
        use_dora=case.get("dora", False), use_rslora=case.get("rslora", False)))
    assert all(param.dtype == torch.float32 for name, param in made.named_parameters() if "lora_" in name)
    batch = case.get("batch", 1)
    hidden = torch.randn(batch, SEQ, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    cos, sin = (torch.randn(SEQ, layer.dim, dtype=torch.bfloat16) for _ in range(2))
    grad = torch.randn(batch, SEQ, HIDDEN, dtype=torch.bfloat16)
    function, buffers = checkpointed(checkout, hidden.numel(), last=case.get("checkpoint") == "stays")
    body = made.base_model.model
    with tracker:
        for one in (*made.parameters(), hidden, cos, sin, grad, *buffers):
            one.detach()  # seen, so that it is not taken for new
        above = hidden + 0
        begins = len(tracker.events)
        with torch.autocast("cpu", torch.bfloat16):
            if "checkpoint" in case:
                out = function.apply(lambda x: forward(fast, body, x, cos, sin), False, above)
            else:
                out = forward(fast, body, above, cos, sin)
        del above
        ends = len(tracker.events)
        out.backward(grad)
    changes = [change for _, change in tracker.events]
    return {"case": case, "forward": changes[begins:ends], "backward": changes[ends:]}


if __name__ == "__main__":
    nn.Dropout.forward = fused_dropout  # type: ignore[method-assign]
    functions = unsloth(Path(sys.argv[1]))
    rows = {name: measure(Path(sys.argv[1]), functions, case) for name, case in CASES.items()}
    print(f"{{\n{by_name(rows)}\n}}")
