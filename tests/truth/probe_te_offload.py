"""What TransformerEngine's offload of activations does with a few small layers, in order: its own code, without a GPU.

    python probe_te_offload.py .../transformer_engine/pytorch/cpu_offload.py > offload/te-d0067d0d.json

Needs torch, no GPU: streams and events do nothing, and "cuda" is read as "cpu". Words of events, see README.md.
"""

from __future__ import annotations

import json
import sys
import types
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

WIDTH = 512 * 512
CASES = [(4, 2, 1), (4, 3, 2), (5, 1, 2), (6, 5, 1), (3, 2, 3)]
"""Layers, layers that leave, microbatches."""


class Silent:
    """Stands for streams and events."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_given: None


class Norm(torch.autograd.Function):
    """Saves its input, its statistics (which are small) and, as a parameter, its weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, x[:4].clone(), weight)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.saved_tensors  # noqa: B018 - the access is what counts
        return grads[0], None


class Attention(torch.autograd.Function):
    """Saves its inputs, one of them twice, and its output."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        out = q + k
        ctx.save_for_backward(q, k, q, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.saved_tensors  # noqa: B018 - the access is what counts
        return grads[0], grads[0]


class Linear(torch.autograd.Function):
    """Saves its input, a view."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        flat = x.view(-1, 2)
        ctx.save_for_backward(flat)
        return flat.mul(2.0).view(-1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.saved_tensors  # noqa: B018 - the access is what counts
        return grads[0]


def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """One layer: norm, two projections of its output, attention, a projection, the residual."""
    normed = Norm.apply(x, weight)
    out = Attention.apply(Linear.apply(normed), Linear.apply(normed))
    return x + Linear.apply(out)


def loaded(path: Path) -> Any:
    """TransformerEngine's module over tensors in the host's memory."""
    parts = ("transformer_engine", "transformer_engine.debug", "transformer_engine.debug.pytorch",
             "transformer_engine.debug.pytorch.debug_state", "transformer_engine.pytorch",
             "transformer_engine.pytorch.cpu_offload_v1", "transformer_engine.pytorch.quantized_tensor")
    for name in parts:
        sys.modules[name] = types.ModuleType(name)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, sys.modules[name])
    sys.modules[parts[3]].TEDebugState = types.SimpleNamespace(debug_enabled=False)  # type: ignore[attr-defined]
    quantized = sys.modules[parts[6]]
    for name in ("restore_from_saved", "prepare_for_saving"):
        setattr(quantized, name, None)
    quantized.QuantizedTensor = type("QuantizedTensor", (), {})  # type: ignore[attr-defined]
    for name in ("Stream", "Event"):
        setattr(torch.cuda, name, Silent)
    torch.cuda.current_stream = Silent  # type: ignore[assignment]
    torch.cuda.stream = lambda _stream: nullcontext()  # type: ignore[assignment, misc]
    text = path.read_text(encoding="utf-8").replace('"cuda"', '"cpu"').replace("pin_memory=True", "pin_memory=False")
    module = types.ModuleType("transformer_engine.pytorch.cpu_offload")
    module.__package__ = "transformer_engine.pytorch"
    sys.modules[module.__name__] = module
    exec(compile(text, str(path), "exec"), module.__dict__)  # noqa: S102
    return module


def observed(te: Any, events: list[list[Any]]) -> None:
    """Makes the module note what it does with the tensors of a layer."""
    state = te.OffloadableLayerState
    starts, releases, reloads, drops = (getattr(state, name) for name in (
        "start_offload", "release_activation_forward_gpu_memory", "start_reload", "release_all_memory"))

    def sizes(tensors: list[torch.Tensor]) -> list[int]:
        return [tensor.numel() * tensor.element_size() for tensor in tensors]

    def start(self: Any) -> None:
        starts(self)
        events.append(["leave", self.number, sizes(self.cpu_tensor_group.tensor_list)])

    def release(self: Any) -> None:
        releases(self)
        events.append(["left", self.number])

    def reload(self: Any) -> None:
        reloads(self)
        events.append(["come", self.number, sizes(self.cpu_tensor_group.tensor_list)])

    def drop(self: Any) -> None:
        if self.state == "reload_started":
            events.append(["done", self.number])
        drops(self)

    state.start_offload, state.release_activation_forward_gpu_memory = start, release
    state.start_reload, state.release_all_memory = reload, drop


def events_of(path: Path, layers: int, away: int, microbatches: int) -> list[list[Any]]:
    """Events of a step: passes of layers, and what leaves and comes back between them."""
    te, events = loaded(path), list[list[Any]]()
    observed(te, events)
    context, sync = te.get_cpu_offload_context(enabled=True, num_layers=away, model_layers=layers)
    for number, state in context.offload_synchronizer.layer_states.items():
        state.number = number
    weight = torch.nn.Parameter(torch.ones(WIDTH))
    for _ in range(microbatches):
        x = torch.ones(WIDTH, requires_grad=True) * 1.0
        for number in range(layers):
            with context:
                events.append(["forward", number])
                x = layer(x, weight)
            x = sync(x)
            # After the hook of the offload, as hooks of a node run in the order in which they were registered.
            x.grad_fn.register_prehook(  # type: ignore[union-attr]
                lambda _grads, number=number: events.append(["backward", number]))
        x.sum().backward()
    return events


def main() -> None:
    """Prints the events of all cases."""
    path = Path(sys.argv[1])
    found = [{"layers": case[0], "away": case[1], "microbatches": case[2], "events": events_of(path, *case)}
             for case in CASES]
    print(json.dumps({"torch": torch.__version__, "cases": found}, separators=(",", ":")))


if __name__ == "__main__":
    main()
