"""What LoRA really does to a model: which modules have adapters, which targets hit nothing, which adapters never learn.

An adapter learns only if its gradient is there after backward. Where a kernel takes a module's weight itself instead of
calling the module (Mamba's fused kernel and `out_proj`), its adapter is bypassed: found here in what was recorded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from simcore.models.graph import ModelGraph
from simcore.placement.plan import Plan
from simcore.program.record_layers import RecordedLayers, keys_of

__all__ = ["adapted_modules", "modules_without_gradient"]

_ADAPTER = re.compile(r"(?:^|\.)(?:lora_|adapter\.)")


def adapted_modules(graph: ModelGraph) -> dict[str, int]:
    """Module path inside a layer -> layers in which it has an adapter, in order of the layers."""
    counts: Counter[str] = Counter()
    for layer in graph.layers:
        names = (t.name for t in graph.tensors[layer.kind] if t.module == "adapter")
        counts.update(_modules(names, layer.path))
    return dict(counts)


def modules_without_gradient(recorded: Iterable[tuple[Plan, RecordedLayers]]) -> dict[str, int]:
    """Adapted modules -> layers in which the adapter gets no gradient.

    Asked of FSDP2's hooks: Megatron's GEMMs add weight gradients into buffers and leave none to be seen, and nothing is
    said of DDP's and DeepSpeed's.
    """
    counts: Counter[str] = Counter()
    for plan, recording in recorded:
        if plan.framework.strategy.unit_sync:
            for layer, key in keys_of(plan).items():
                learns = {param.name for param, _, _ in recording.kinds[key].grads}
                trained = (p.spec.name for p in plan.of_layer(layer) if p.spec.module == "adapter" and p.trainable)
                counts.update(_modules((name for name in trained if name not in learns), plan.graph.layers[layer].path))
    return dict(counts)


def _modules(names: Iterable[str], layer: str) -> tuple[str, ...]:
    """Paths inside the layer, in order; the layer's own where it is the module."""
    return tuple(dict.fromkeys(_ADAPTER.split(name)[0] or layer for name in names))
