"""Measures what Megatron-Core's gated delta net allocates, event by event: `tape/megatron-delta-*.json`.

    PYTHONPATH=FLA python tests/truth/probe_delta.py core-0.16.1
    PYTHONPATH=MEGATRON:FLA python tests/truth/probe_delta.py main-2026-08-22

FLA: a folder with fla-core 0.6.0 and Triton, whose launches do nothing; MEGATRON: Megatron-LM d98e8a64. The module runs
as it is, forward and backward, over fake tensors in bf16; its linears hand on what they are given, so that events are
those between the projections; its norm keeps what TransformerEngine's does. Gradients of parameters are left out. With
`cp` (main) a rank has a share of the sequence before the exchange, and of the heads behind it; nothing is sent.

Compiled parts run twice: over fake tensors each is one function that keeps what `kept` says, and makes its outputs and
gradients at once; over real tensors by torch.compile with AOTAutograd's partitioner, which has to keep tensors of the
same sizes and types.
"""

from __future__ import annotations

import importlib.machinery
import json
import sys
import types
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from json_lines import listed
from oracle import te_stub
from torch._subclasses.fake_tensor import FakeTensorMode

te_stub.install()
for name in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
    del sys.modules[name]  # the real one is here
torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]

from fla.utils import hardware  # noqa: E402
from oracle.steps.tracker import Tracker  # noqa: E402
from triton.runtime.autotuner import Autotuner, Heuristics  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

HERE = Path(__file__).resolve().parent
Case = dict[str, Any]


class Convolution(torch.autograd.Function):
    """causal-conv1d 1.6.1 (`csrc/causal_conv1d.cpp`): a gradient with another order of dimensions is copied."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        assert x.stride(2) == 1
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        grad = grad if grad.stride(2) == 1 else grad.contiguous()
        return torch.empty_like(x), torch.zeros_like(weight, dtype=torch.float32).type_as(weight)


class Norm(torch.autograd.Function):
    """TransformerEngine's RMSNorm: keeps its input and the inverse root of each row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        root = x.new_empty(x.shape[0], dtype=torch.float32)
        ctx.save_for_backward(x, weight, root)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class OutNorm(torch.nn.Module):
    def __init__(self, config: Any, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=torch.bfloat16))

    @torch._dynamo.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Norm.apply(x, self.weight)
        return out


class Projected(torch.autograd.Function):
    """An output of in_proj, whose gradient TransformerEngine makes contiguous (2.18 `pytorch/module/base.py`)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad.contiguous()


class Projection(torch.nn.Module):
    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x, None


def put_in_place() -> None:
    for launcher in (JITFunction, Autotuner, Heuristics):
        launcher.run = lambda *_, **__: None
    from megatron.core.tensor_parallel import mappings

    torch.distributed.all_to_all_single = lambda *_, **__: None
    mappings.get_tensor_model_parallel_group_if_none = lambda group, *_, **__: group  # nothing is initialised
    hardware.check_shared_mem = lambda *_: True  # that of an H100
    conv = types.ModuleType("causal_conv1d")
    conv.__spec__ = importlib.machinery.ModuleSpec("causal_conv1d", None)
    conv.causal_conv1d_fn = lambda x, weight, bias, activation: Convolution.apply(x, weight)  # type: ignore[attr-defined]
    sys.modules["causal_conv1d"] = conv


def fused(make: Callable[..., Any], kept: Callable[..., list[torch.Tensor]],
          grads: Callable[..., list[torch.Tensor | None]]) -> Callable[..., Any]:
    """A function of tensors that makes all its outputs at once, keeps `kept`, and all gradients at once."""
    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: torch.Tensor) -> Any:
            made = make(*given)
            ctx.save_for_backward(*kept(given, made))
            ctx.shapes = [one.shape for one in given]
            return made

        @staticmethod
        def backward(ctx: Any, *grad: torch.Tensor) -> Any:
            return tuple(grads(ctx.shapes, ctx.saved_tensors, grad))

    def run(*given: torch.Tensor) -> Any:
        return Fused.apply(*given)

    return run


def gated_norm(self: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """`_apply_gated_norm`, of which torch.compile does not enter the norm."""
    part = fused(lambda y, gate: torch.empty_like(y), lambda given, made: list(given),
                 lambda shapes, saved, grad: [torch.empty_like(saved[0]), torch.empty_like(saved[1])])
    out: torch.Tensor = part(self.out_norm(x.reshape(-1, x.shape[-1])), gate.reshape(-1, gate.shape[-1]))
    return out


def prepared(self: Any, qkv: torch.Tensor, gate: torch.Tensor, a_log: torch.Tensor, bias: torch.Tensor, batch: int,
             seq: int, beta: torch.Tensor, alpha: torch.Tensor) -> dict[str, torch.Tensor]:
    """`_prepare_input_for_gated_delta_rule` of main, of which torch.compile does not enter `l2norm`."""
    from megatron.core.ssm.gated_delta_net import common

    keys, heads = self.qk_dim_local_tp // self.cp_size, self.num_v_heads_local_tp // self.cp_size
    first = fused(lambda x: (x.new_empty(batch, seq, 2 * keys), x[..., 2 * keys:]), lambda given, made: [],
                  lambda shapes, saved, grad: [grad[0].new_empty(shapes[0])])
    both, value = first(qkv)
    normed = common.l2norm(both.view(batch, seq, -1, self.key_head_dim))
    del both

    def make(y: torch.Tensor, value: torch.Tensor, gate: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        new = y.new_empty
        return (new(batch, seq, heads, self.key_head_dim), new(batch, seq, heads, self.key_head_dim),
                new(batch, seq, heads, self.value_head_dim), new(batch, seq, heads, dtype=torch.float32),
                new(batch, seq, heads), new(gate.shape))

    def back(shapes: Any, saved: Any, grad: Any) -> list[torch.Tensor | None]:
        new = grad[0].new_empty
        made = [new(shapes[0]), new(shapes[4]), new(shapes[3])]
        return [made[0], grad[2].view(shapes[1]), grad[5], made[2], made[1], new(heads), new(heads)]

    second = fused(make, lambda given, made: [given[3], given[4]], back)
    names = ("q", "k", "v", "g", "beta", "gate")
    return dict(zip(names, second(normed, value, gate, beta, alpha, a_log, bias), strict=True))


def module_of(case: Case) -> Any:
    from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules

    config = types.SimpleNamespace(
        hidden_size=64, activation_func=torch.nn.functional.silu, linear_conv_kernel_dim=4,
        linear_key_head_dim=case["key_dim"], linear_value_head_dim=case["value_dim"],
        linear_num_key_heads=case["keys"], linear_num_value_heads=case["values"], fp8=None, init_method=None,
        output_layer_init_method=None, params_dtype=torch.bfloat16, layernorm_epsilon=1e-6,
        perform_initialization=False, sequence_parallel=False, deterministic_mode=False, recompute_granularity=None)
    tp, cp = (types.SimpleNamespace(size=lambda n=n: n, rank=lambda: 0) for n in (case["tp"], case.get("cp", 1)))
    return GatedDeltaNet(config, GatedDeltaNetSubmodules(Projection, OutNorm, Projection), 1,
                         pg_collection=types.SimpleNamespace(tp=tp, cp=cp))


def events(case: Case) -> dict[str, Any]:
    """Signed bytes of births and deaths of both passes."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        module = module_of(case)
        x = torch.empty(case["seq"], case["batch"], module.in_proj_dim // case["tp"], dtype=torch.bfloat16,
                        requires_grad=True)
        tracker, given = Tracker(), []
        tracker.phase = "fwd"
        with tracker:
            for tensor in (*module.parameters(), x):
                tracker.tag(tensor, "input")
            start = len(tracker.events)
            out, _ = module(Projected.apply(x), None)
            middle = len(tracker.events)
            seed = torch.empty_like(out)
            begin = len(tracker.events)
            out.backward(seed)
            given = [tracker.number_of(p.grad) for p in module.parameters()] + [tracker.number_of(x.grad)]
    left = [change for number, change in tracker.events[start:middle]]
    right = [change for number, change in tracker.events[begin:] if number not in given[:-1]]
    return {"forward": left, "backward": right}


def saved(case: Case) -> list[list[Any]]:
    """Tensors that autograd keeps where compiled parts are compiled: [elements, type], parameters left out."""
    found: list[list[Any]] = []
    module = module_of(case)
    owned = {p.data_ptr() for p in module.parameters()}
    x = torch.zeros(case["seq"], case["batch"], module.in_proj_dim // case["tp"], dtype=torch.bfloat16,
                    requires_grad=True)

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in owned:
            found.append([tensor.numel(), str(tensor.dtype).removeprefix("torch.")])
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        module(x, None)
    return found


def check_gate() -> None:
    """`_apply_output_gate` of attention keeps attention's output and the gate as it is given, here a view."""
    from megatron.core.transformer.attention import Attention

    x, whole = (torch.zeros(8, 1, width, dtype=torch.bfloat16, requires_grad=True) for width in (32, 96))
    gate = whole[..., 32:64].view(8, 1, 4, 8)
    found: list[tuple[int, int]] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append((tensor.numel(), tensor.untyped_storage().nbytes()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        Attention._apply_output_gate(None, x * 1, gate)
    assert sorted(found) == [(256, 512), (256, 1536)], found


def measured(name: str, case: Case) -> dict[str, Any]:
    from megatron.core import jit

    jit.jit_fuser = lambda function: torch.compile(function, backend="aot_eager_decomp_partition")
    put_in_place()
    check_gate()
    from megatron.core.ssm import gated_delta_net as package

    is_main = name.startswith("main")
    owner = package.common._GDNBase if is_main else package.GatedDeltaNet
    kept = saved(case)
    parts = {"_apply_gated_norm": gated_norm} | ({"_prepare_input_for_gated_delta_rule": prepared} if is_main else {})
    with ExitStack() as stack:
        for part, function in parts.items():
            stack.callback(setattr, owner, part, getattr(owner, part))
            setattr(owner, part, function)
        assert sorted(saved(case)) == sorted(kept), (sorted(saved(case)), sorted(kept))
        return {"case": case, **events(case)}


if __name__ == "__main__":
    cases: list[Case] = json.loads((HERE / "tape" / "cases-megatron-delta.json").read_text(encoding="utf-8"))
    rows = listed(measured(sys.argv[1], case) for case in cases if sys.argv[1].startswith("main") or "cp" not in case)
    (HERE / "tape" / f"megatron-delta-{sys.argv[1]}.json").write_text(f"{rows}\n", encoding="utf-8")
