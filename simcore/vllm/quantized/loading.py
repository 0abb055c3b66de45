"""Highest memory while weights in 16 bits are quantised on the device, one module after the other.

vLLM 0.12.0 `model_loader/base_loader.py` load_model: all parameters are created and filled first, then
`model_loader/utils.py` process_weights_after_loading walks the modules. `fp8.py`: a linear's new weight and scale are
made while the old weight is there; experts' new weights are made for the whole layer, filled expert by expert.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcore.vllm.quantized.tensor import Tensor, num_bytes

__all__ = ["loading_bytes"]

Module = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""Tensors of a module, as created and as held."""


def loading_bytes(at_rest: int, modules: Sequence[Module]) -> int:
    """Highest bytes of weights while `modules` are quantised in this order; `at_rest`: bytes of all other weights."""
    alive = at_rest + sum(num_bytes(created) for created, _ in modules)
    highest = alive
    for created, held in modules:
        highest = max(highest, alive + _made(created, held))
        alive += num_bytes(held) - num_bytes(created)
    return highest


def _made(created: tuple[Tensor, ...], held: tuple[Tensor, ...]) -> int:
    """Bytes that a module adds while its old weights are there."""
    first = next((tensor for tensor in held if tensor.name == "w13_weight"), None)
    if first is None:
        return num_bytes(held)
    scales = sum(tensor.num_bytes for tensor in created if tensor.name.endswith("_scale"))
    one = first.num_bytes // first.shape[0]
    return num_bytes(held) - scales + one + _SCALE


_SCALE = 4
"""Bytes of the scale of the expert that is being quantised."""
