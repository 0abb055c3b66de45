"""LoRA's coverage of a model: modules with adapters, targets without a match, adapters without a gradient.

An adapter learns only if its gradient exists after backward. If a kernel reads a module's weight instead of calling the
module (Mamba's fused kernel and `out_proj`), its adapter is bypassed; this is read from the recorded layers.
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
    """Number of the whole model's layers in which a module has a LoRA adapter, by its path in a layer, in order."""
    counts: Counter[str] = Counter()
    for layer in graph.layers:
        names = (t.name for t in graph.tensors[layer.kind] if t.module == "adapter")
        counts.update(_modules(names, layer.path))
    return dict(counts)


def modules_without_gradient(recorded: Iterable[tuple[Plan, RecordedLayers]]) -> dict[str, int]:
    """Number of layers in which a trained LoRA adapter gets no gradient, by its module's path in a layer.

    `recorded`: for each pipeline stage its plan and the recordings of its layers. Only under FSDP2: Megatron's GEMMs
    add weight gradients into buffers, so none are recorded, and DDP and DeepSpeed are not covered.
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
    """Paths inside the layer, in order; the layer's path if the layer is the module."""
    return tuple(dict.fromkeys(_ADAPTER.split(name)[0] or layer for name in names))
