"""What Megatron-Core's offload of modules does with a few small layers, in order: its own code, without a GPU.

    python probe_fine_offload.py .../megatron/core/pipeline_parallel/fine_grained_activation_offload.py \
        > offload/modules-d98e8a64.json

Needs torch, no GPU: streams and events do nothing, and "cuda" is read as "cpu". The first step, in which upstream
counts groups, is left out. Words of events, see README.md.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
from probe_te_offload import WIDTH, Attention, Linear, Silent

CASES = [(3, ("core_attn",), 1), (3, ("core_attn", "attn_proj"), 2), (4, ("core_attn", "attn_proj"), 1)]
"""Layers, modules, microbatches."""


def loaded(path: Path) -> Any:
    """Megatron-Core's module over tensors in the host's memory."""
    names = ("megatron", "megatron.core", "megatron.core.telemetry", "megatron.core.telemetry.fallbacks",
             "megatron.core.transformer", "megatron.core.transformer.cuda_graphs", "megatron.core.utils",
             "megatron.core.extensions", "megatron.core.extensions.transformer_engine")
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    found: Any = sys.modules
    found[names[3]].trace_fn = lambda *_args: lambda function: function
    found[names[5]].is_graph_capturing = lambda: False
    found[names[6]].nvtx_range_push = found[names[6]].nvtx_range_pop = lambda _text: None
    found[names[8]].cpu_offload = types.SimpleNamespace()
    for name in ("Stream", "Event"):
        setattr(torch.cuda, name, lambda **_given: Silent())
    torch.cuda.current_stream = Silent  # type: ignore[assignment]
    torch.cuda.stream = lambda _stream: __import__("contextlib").nullcontext()  # type: ignore[assignment, misc]
    text = path.read_text(encoding="utf-8").replace('"cuda"', '"cpu"').replace("pin_memory=True", "pin_memory=False")
    for stream in ("tensor_on_device.record_stream(self.d2h_stream)", "release_tensor.record_stream(cur_stream)"):
        text = text.replace(stream, "pass")
    module: Any = types.ModuleType("fine_grained_activation_offload")
    exec(compile(text, str(path), "exec"), module.__dict__)  # noqa: S102
    module.print_offload_summary_table = lambda *_args, **_given: None
    return module


def observed(module: Any, events: list[list[Any]]) -> None:
    """Makes the module note what it does with a group: its layer and name, and the bytes of what is copied."""
    handler = module.ChunkOffloadHandler
    offload, reload = handler.bulk_offload_group, handler.bulk_reload_group
    wait = module.OffloadTensorGroup.wait_reload_event

    def place(self: Any, group: Any) -> list[Any]:
        same = [one for one in self.offload_groups if one._name == group._name]
        return [same.index(group), group._name]

    def sizes(group: Any) -> list[int]:
        return [state[1].numel() * state[1].element_size() for state in group._tensors.values()
                if isinstance(state, tuple)]

    def leave(self: Any, group: Any) -> None:
        offload(self, group)
        group.chunk = self
        events.append(["leave", *place(self, group), sizes(group)])

    def come(self: Any) -> None:
        group = self._groups_to_reload[-1]
        events.append(["come", *place(self, group), sizes(group)])
        reload(self)

    def waited(self: Any, stream: Any) -> None:
        wait(self, stream)
        events.append(["wait", *place(self.chunk, self)])

    handler.bulk_offload_group, handler.bulk_reload_group = leave, come
    module.OffloadTensorGroup.wait_reload_event = waited


def run_module(interface: Any, name: str, x: torch.Tensor, others: tuple[torch.Tensor, ...], run: Any, *,
               asked: bool) -> torch.Tensor:
    """As `attention.py` runs a module: within the interface, then the end of its group."""
    manager = interface(asked, x, name)
    with manager as begun:
        out = run(begun, *others)
    return manager.group_offload(out, forced_released_tensors=[x, *others])


def step(interface: Any, layers: int, modules: tuple[str, ...], microbatches: int, events: list[list[Any]]) -> None:
    """Forward and backward of each microbatch, with the attention of the toy layer as modules."""
    for _ in range(microbatches):
        interface.init_chunk_handler(0, None, None, 256 * 1024, 0, 1.0)
        x = torch.ones(WIDTH, requires_grad=True) * 1.0
        for number in range(layers):
            x.register_hook(lambda _grad, number=number: events.append(["backward", number]))
            events.append(["forward", number])
            q, k = Linear.apply(x), Linear.apply(x)
            out = run_module(interface, "core_attn", q, (k,), Attention.apply, asked="core_attn" in modules)
            x = x + run_module(interface, "attn_proj", out, (), Linear.apply, asked="attn_proj" in modules)
        x.sum().backward()
    interface.reset()


def main() -> None:
    """Prints the events of all cases."""
    found = []
    for layers, modules, microbatches in CASES:
        module, events = loaded(Path(sys.argv[1])), list[list[Any]]()
        observed(module, events)
        for _ in range(2):
            events.clear()
            step(module.FineGrainedActivationOffloadingInterface, layers, modules, microbatches, events)
        found.append({"layers": layers, "modules": modules, "microbatches": microbatches, "events": list(events)})
    print(json.dumps({"torch": torch.__version__, "cases": found}, separators=(",", ":")))


if __name__ == "__main__":
    main()
