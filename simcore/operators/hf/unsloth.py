"""Unsloth's layers over transformers' modules: those of Llama, Mistral, Qwen2 and Qwen3.

[Note: Unsloth's functions] unsloth 015bdef0 `models/llama.py`, LlamaDecoderLayer_fast_forward; `kernels/fast_lora.py`,
LoRA_QKV, LoRA_W, LoRA_MLP; `kernels/rms_layernorm.py`; `kernels/rope_embedding.py` without packed positions;
`kernels/swiglu.py`. Each is one function of autograd:

 * a norm keeps its input and an fp32 number a row; its gradient is written over the one that came in;
 * query, key and value keep their one input, which their input's gradient is written over; so does the MLP, which keeps
   gate and up as well: backward writes all tensors between over them and over one tensor of their size;
 * rotary embeddings are written in place; Qwen3's norms of query and key are the norm above (`models/qwen3.py`);
 * forward makes 4-bit weights in one buffer that stays, as large as the largest (`kernels/utils.py`, fast_dequantize
   with use_global_buffer), backward each anew, with its maxima. Adapters are cast to the type of the products for each
   use, their gradients come in that type.

Until 4f166026 (2025-03-01; read at c67183f1, 2024.12) there was no such buffer: forward made each weight in a new
tensor too. An adapter's part was a separate tensor before it was added, as was each other part of an input's gradient.

[Note: where Unsloth falls back]
`models/llama.py`, patch_peft_model: query, key and value have their function if all three have an adapter and neither
a bias nor DoRA's magnitudes, so has the output projection, and so have the MLP's three; and only where lora_dropout is
0. Elsewhere, as in Qwen2, whose three have biases, PEFT's modules run under the Trainer's autocast; norms and rotation
stay Unsloth's.

[Note: Unsloth's attention]
`utils/attention_dispatch.py`, run_attention: flash-attn takes grouped heads; xformers gets keys and values copied for
every head and runs flash-attn's kernel; SDPA takes grouped heads (enable_gqa), and where there are none its inputs and
output are copied into other memory orders. No mask is passed in training (LlamaModel_fast_forward).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from simcore.models.blocks import Attention, LayerKind, Mlp
from simcore.operators.hf.layers import linear, mlp
from simcore.operators.hf.options import HfOptions
from simcore.operators.hf.peft import drops, has_dora
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["fast_norm", "has_fast_layers", "input_buffers", "unsloth_layer", "weight_buffer"]


def has_fast_layers(run: LayerWorkload) -> bool:
    """True if Unsloth's functions run the layers."""
    return HfOptions.of(run.options).unsloth != ""


def _has_sums(run: LayerWorkload) -> bool:
    """Tells whether adapters' parts, and parts of an input's gradient, are separate tensors before they are added."""
    return HfOptions.of(run.options).unsloth == "2024.12"


def weight_buffer(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> dict[str, int]:
    """{"weight_buffer": bytes} of the buffers in which forward makes weights and their maxima.

    They are as large as the largest weight of all `runs` (a pipeline stage's layers) needs that Unsloth's functions
    multiply; 0 without 4-bit weights, without Unsloth, or with its release 2024.12.
    """
    packed = [run.params[f"{name}.weight"] for kind, run in runs if has_fast_layers(run) and not _has_sums(run)
              for branch in kind.branches for group in _GROUPS
              for name in (f"{branch.name}.{part}_proj" for part in group)
              if _is_fused(run, branch.name, group) and run.params[f"{name}.weight"].packed is not None]
    return {"weight_buffer": max((p.nbytes + 4 * p.packed.blocks(p.numel) for p in packed if p.packed), default=0)}


def input_buffers(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> dict[str, int]:
    """{"input_buffers": bytes} of both buffers into which inputs of layers come back from the host; 0 without.

    [Note: Unsloth's checkpoints]
    unsloth-zoo ce232d6c `gradient_checkpointing.py`, UnslothCheckpointFunction: one function of autograd a layer. Its
    input is copied to the host unless it has 2 MiB or less or the layer is the last one (as the first step has
    counted), and back into one of two buffers in turn, which begin with INITIAL_GPU_BUFFER_SIZE elements and grow. The
    second one is given back where less than 512 MiB of the device are free, which is not modelled.
    """
    large = [max(_INITIAL, run.tokens * kind.hidden) for kind, run in runs
             if kind.block is None and HfOptions.of(run.options).has_input_buffers]
    return {"input_buffers": 2 * max(large, default=0) * dtype_bytes(runs[0][1].compute) if runs else 0}


def unsloth_layer(tape: Tape, kind: LayerKind, run: LayerWorkload, hidden: Tensor) -> Tensor:
    """Output of a layer by Unsloth's functions for `hidden` [b, s, hidden size], in its shape.

    `x + attention(norm(x))`, then `x + mlp(norm(x))`.
    """
    first, second = kind.branches
    block = first.block
    assert isinstance(block, Attention)
    tape.scope = f"{first.norm}."
    x = fast_norm(tape, hidden, run.params[f"{first.norm}.weight"])
    tape.scope = f"{first.name}."
    out = _attention(tape, run, first.name, block, x)
    del x
    tape.scope = ""
    hidden = aten.add(tape, hidden, out, "residual")
    del out
    tape.scope = f"{second.norm}."
    x = fast_norm(tape, hidden, run.params[f"{second.norm}.weight"])
    tape.scope = f"{second.name}."
    if _is_fused(run, second.name, _MLP):
        out = _mlp(tape, [_Module(run, f"{second.name}.{part}_proj") for part in _MLP], x)
    else:
        assert isinstance(second.block, Mlp)
        out = mlp(tape, _under_autocast(run), second.name, second.block, x)
    tape.scope = ""
    return aten.add(tape, hidden, out, "residual")


_INITIAL: Final = 2 * 256 * 2048
_QKV: Final = ("q", "k", "v")
_OUT: Final = ("o",)
_MLP: Final = ("gate", "up", "down")
_GROUPS: Final = (_QKV, _OUT, _MLP)


def _is_fused(run: LayerWorkload, name: str, parts: Sequence[str]) -> bool:
    """Tells whether one of Unsloth's functions runs these linears: [Note: where Unsloth falls back]."""
    paths = [f"{name}.{part}_proj" for part in parts]
    return not drops(run) and all(
        f"{path}.lora_a.weight" in run.params and f"{path}.bias" not in run.params and not has_dora(run, f"{path}.")
        for path in paths)


def _under_autocast(run: LayerWorkload) -> LayerWorkload:
    return replace(run, options=replace(HfOptions.of(run.options), autocast=True))


class _Module:
    """A linear and its adapter."""

    def __init__(self, run: LayerWorkload, name: str) -> None:
        self.weight, self.a, self.b = (run.params[f"{name}.{part}.weight" if part else f"{name}.weight"]
                                       for part in ("", "lora_a", "lora_b"))
        self.label, self.sums = name.rpartition(".")[2], _has_sums(run)

    @property
    def adapter(self) -> tuple[Param, Param]:
        return self.a, self.b


def fast_norm(tape: Tape, x: Tensor, weight: Param, *, last: bool = False) -> Tensor:
    """RMSNorm of `x`, in its shape and type, by Unsloth's function.

    The gradient is written over the one that came in; the weight gets none. `last`: the model's final norm, whose
    gradient is a new tensor, because it goes to another part of the model.
    """
    moved, shape, dtype = x.nbytes, x.shape, x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        if last:
            return [aten.new(tape, shape, dtype, "grad_norm", 2 * moved, Kernel.NORM)]
        tape.compute(Kernel.NORM, 4 * moved, 3 * moved)
        return [grads[0]]

    node = tape.node((x,), (x, weight), backward)
    out = aten.new(tape, x.shape, x.dtype, "norm", moved, Kernel.NORM)
    scale = tape.empty(x.shape[:-1], "fp32", "rstd")
    tape.save(node, scale)
    out.node = node
    return out


def _attention(tape: Tape, run: LayerWorkload, name: str, block: Attention, x: Tensor) -> Tensor:
    made = [one.view(*one.shape[:-1], one.shape[-1] // block.head_dim, block.head_dim)
            for one in _projected(tape, run, name, x)]
    if block.qk_norm:
        made[:2] = [fast_norm(tape, one, run.params[f"{name}.{part}_norm.weight"])
                    for one, part in zip(made[:2], "qk", strict=True)]
    heads = [_rotated(tape, made[0]), _rotated(tape, made[1]), made[2]]
    made.clear()
    out = _core(tape, run, block, heads)
    flat = out.view(*out.shape[:2], out.shape[2] * block.head_dim)
    del out
    if _is_fused(run, name, _OUT):
        return _alone(tape, _Module(run, f"{name}.o_proj"), flat)
    return linear(tape, _under_autocast(run), f"{name}.o_proj", flat)


def _projected(tape: Tape, run: LayerWorkload, name: str, x: Tensor) -> list[Tensor]:
    """Query, key and value, each [b, s, width]."""
    if _is_fused(run, name, _QKV):
        return _together(tape, [_Module(run, f"{name}.{part}_proj") for part in _QKV], x)
    return [linear(tape, _under_autocast(run), f"{name}.{part}_proj", x) for part in _QKV]


def _core(tape: Tape, run: LayerWorkload, block: Attention, heads: list[Tensor]) -> Tensor:
    """Attention of [query, key, value], each [b, s, heads, d], which it takes out of the list: query's shape."""
    query, key, value = heads
    heads.clear()
    kernel, groups = HfOptions.of(run.options).attn_implementation, query.shape[2] // key.shape[2]
    pairs = min(run.pairs, 2 * block.window * run.tokens) if block.window else run.pairs
    if kernel == "flash_attention_2":
        return aten.flash_attention(tape, query, key, value, pairs, run.sequences)
    if kernel == "xformers":
        key, value = (aten.repeat_heads(tape, one, groups) for one in (key, value))
        return aten.flash_attention(tape, query, key, value, pairs, run.sequences)
    if groups > 1:
        return aten.scaled_dot_product_attention(tape, query, key, value)
    query, key, value = (_reordered(tape, one) for one in (query, key, value))
    return aten.contiguous(tape, aten.scaled_dot_product_attention(tape, query, key, value), "attention")


def _reordered(tape: Tape, x: Tensor) -> Tensor:
    """A copy by heads; its gradient is copied back."""
    shape, dtype, moved = x.shape, x.dtype, x.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [aten.new(tape, shape, dtype, "grad_heads", moved, Kernel.COPY)]

    node = tape.node((x,), (), backward)
    out = aten.new(tape, shape, dtype, "heads", moved, Kernel.COPY)
    out.node = node
    return out


def _rotated(tape: Tape, x: Tensor) -> Tensor:
    moved = 2 * x.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        tape.compute(Kernel.ELEMENTWISE, moved, moved)
        return [grads[0]]

    node = tape.node((x,), (), backward)
    tape.compute(Kernel.ELEMENTWISE, moved, moved)
    return Tensor(x.storage, x.shape, x.dtype, node)


# ---- products -------------------------------------------------------------------------------------------------------
def _forward(tape: Tape, module: _Module, x: Tensor) -> Tensor:
    """`x W + x A B`: the weight in the buffer that stays, or made anew."""
    rank, rows = module.a.shape[0], x.numel // x.shape[-1]
    whole = _whole(tape, module.weight) if module.sums else None
    if module.weight.packed is not None and not module.sums:
        tape.compute(Kernel.ELEMENTWISE, module.weight.numel, module.weight.nbytes)
    out = aten.new(tape, (*x.shape[:-1], module.weight.shape[0]), x.dtype, module.label,
                   x.nbytes + module.weight.nbytes, Kernel.GEMM, 2 * rows * module.weight.numel)
    del whole
    low = aten.new(tape, (rows, rank), x.dtype, "lora_low", x.nbytes, Kernel.GEMM, 2 * rows * module.a.numel)
    _narrow = tape.empty(module.b.shape, x.dtype, "lora_b.narrow")
    _add(tape, module, low, out, 2 * rows * module.b.numel)
    return out


def _add(tape: Tape, module: _Module, factor: Tensor, to: Tensor, flops: int) -> None:
    """Onto a sum: by the product itself, or by way of a tensor."""
    _part = aten.new(tape, to.shape, to.dtype, f"{module.label}.part", factor.nbytes, Kernel.GEMM, flops) \
        if module.sums else None
    if module.sums:
        tape.compute(Kernel.ELEMENTWISE, to.numel, 3 * to.nbytes)
    else:
        tape.compute(Kernel.GEMM, flops, factor.nbytes + 2 * to.nbytes)


def _whole(tape: Tape, weight: Param) -> Tensor | None:
    """The weight for a product of backward, made anew."""
    if weight.packed is None:
        return None
    _maxima = tape.empty((weight.packed.blocks(weight.numel),), "fp32", "dequantised.absmax")
    return aten.new(tape, weight.shape, weight.dtype, "dequantised", weight.packed.data_bytes(weight.numel))


def _into(tape: Tape, module: _Module, grad: Tensor, target: Tensor | None, *, adds: bool = False) -> Tensor:
    """`grad W` and the adapter's part, written over `target` or added to it (`adds`), or new."""
    rows = grad.numel // module.weight.shape[0]  # a gradient may come by heads
    whole = _whole(tape, module.weight)
    flops = 2 * rows * module.weight.numel
    if target is None:
        target = aten.new(tape, (*grad.shape[:-1], module.weight.shape[1]), grad.dtype, f"grad_{module.label}",
                          grad.nbytes + module.weight.nbytes, Kernel.GEMM, flops)
    elif adds:
        _add(tape, module, grad, target, flops)
    else:
        tape.compute(Kernel.GEMM, flops, grad.nbytes + module.weight.nbytes + target.nbytes)
    del whole
    low = aten.new(tape, (rows, module.a.shape[0]), grad.dtype, "grad_lora_low", grad.nbytes, Kernel.GEMM,
                    2 * rows * module.b.numel)
    _add(tape, module, low, target, 2 * rows * module.a.numel)
    return target


def _adapters(tape: Tape, module: _Module, x: Tensor, grad: Tensor) -> list[Tensor]:
    """Gradients of both matrices, in the type of the products."""
    rows, rank, made = x.numel // x.shape[-1], module.a.shape[0], []
    for param, wide in ((module.a, grad), (module.b, x)):
        _low = aten.new(tape, (rows, rank), x.dtype, "grad_lora_low", wide.nbytes, Kernel.GEMM, 2 * rows * param.numel)
        made.append(aten.new(tape, param.shape, x.dtype, "grad_lora", wide.nbytes, Kernel.GEMM, 2 * rows * param.numel))
    return made


def _types(modules: Sequence[_Module], first: str) -> tuple[str, ...]:
    return (first, *(param.dtype for module in modules for param in module.adapter))


def _shapes(modules: Sequence[_Module], first: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return (first, *(param.shape for module in modules for param in module.adapter))


def _together(tape: Tape, modules: list[_Module], x: Tensor) -> list[Tensor]:
    """Query, key and value."""
    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (kept,) = saved
        made: Grads = []
        for module, grad in zip(modules, grads, strict=True):
            assert grad is not None
            made += _adapters(tape, module, kept, grad)
        for module, grad in zip(modules, grads, strict=True):
            assert grad is not None
            _into(tape, module, grad, kept, adds=module is not modules[0])
        return [kept, *made]

    edges = [param for module in modules for param in module.adapter]
    node = tape.node((x, *edges), (x, *edges), backward, _shapes(modules, x.shape), _types(modules, x.dtype))
    made = [_forward(tape, module, x) for module in modules]
    for number, out in enumerate(made):
        out.node, out.output = node, number
    return made


def _alone(tape: Tape, module: _Module, x: Tensor) -> Tensor:
    """The output of attention."""
    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (kept,), (grad,) = saved, grads
        assert grad is not None
        made = _adapters(tape, module, kept, grad)
        return [_into(tape, module, grad, None), *made]

    node = tape.node((x, *module.adapter), (x, *module.adapter), backward, _shapes([module], x.shape),
                     _types([module], x.dtype))
    out = _forward(tape, module, x)
    out.node = node
    return out


def _mlp(tape: Tape, modules: list[_Module], x: Tensor) -> Tensor:
    gate, up, down = modules

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (kept, e, g), (grad,) = saved, grads
        assert grad is not None
        between = _into(tape, down, grad, None)
        tape.compute(Kernel.ELEMENTWISE, 8 * e.numel, 6 * e.nbytes)
        made = {module.label: _adapters(tape, module, of, to) for module, of, to in (
            (down, between, grad), (up, kept, g), (gate, kept, e))}
        _into(tape, up, g, kept)
        _into(tape, gate, e, kept, adds=True)
        return [kept, *made[gate.label], *made[up.label], *made[down.label]]

    edges = [param for module in modules for param in module.adapter]
    node = tape.node((x, *edges), (x,), backward, _shapes(modules, x.shape), _types(modules, x.dtype))
    e, g = _forward(tape, gate, x), _forward(tape, up, x)
    between = aten.new(tape, e.shape, e.dtype, "swiglu", 2 * e.nbytes)
    out = _forward(tape, down, between)
    tape.save(node, *edges, e, g)
    out.node = node
    return out
