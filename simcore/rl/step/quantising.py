"""Weights that an engine quantises as they arrive: memory beside the buffers of a refit, and bytes moved.

NeMo RL main of 2026-08-22 (7ea279ab) `models/generation/vllm/quantization/fp8.py` load_weights: of one buffer's weights
a list is made, each in 8 bits with its scales, and then loaded; `cast_tensor_to_fp8_blockwise` quantises one matrix (of
experts one after the other) with temporaries in fp32. Every rank of an engine quantises whole matrices and keeps its
part. Embedding, head, norms and biases pass as they are. MXFP8 (quantize_mxfp8_weight) is one kernel, and a second copy
of its exponents; when all are loaded, exponents and experts are arranged block by block (`quantized/mxfp8.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.vllm.protocol import InferenceEngine
from simcore.vllm.quantized.fp8 import REFIT_BLOCK, quantising_bytes
from simcore.vllm.quantized.linears import Linear
from simcore.vllm.quantized.mxfp8 import Mxfp8
from simcore.vllm.weights import layers_of, modules

__all__ = ["Quantising", "quantising_of"]

_SENT: Final = 2
"""Bytes of an element as it arrives."""
_SCALE: Final = 4
_MOVED: Final = (2 + 4) + 4 * (4 + 4) + 4 + (4 + 1) + 2 * (1 + 1) - 2 * _SENT
"""Bytes of memory traffic for an element, instead of copying it in 16 bits: to fp32; blocks put together, absolute
values, products with scales and clamped ones, each read and written; the largest, read; to 8 bits; blocks taken apart
and loaded."""


_MX_BLOCK: Final = 32
_MX_MOVED: Final = (2 + 1) + (1 + 1) - 2 * _SENT
"""The same of MXFP8: to 8 bits, and loaded."""
_MX_EXPONENTS: Final = 3
"""Temporaries of an exponent: where it is 0, ones, and as the kernel made it."""


@dataclass(frozen=True, slots=True)
class Quantising:
    """Elements of all matrices that are quantised, and the most bytes of temporaries for one of them.

    `block`: elements that share a scale of `scale` bytes; `moved`: bytes of memory traffic for an element; `arranging`:
    most bytes beside weights when all are loaded.
    """

    elements: int
    temporary: int
    block: int = REFIT_BLOCK**2
    scale: int = _SCALE
    moved: int = _MOVED
    arranging: int = 0

    def held_bytes(self, batch_bytes: int) -> int:
        """Most bytes beside a buffer of `batch_bytes`: its weights in 8 bits with scales, and temporaries."""
        elements = min(self.elements, batch_bytes // _SENT)
        return max(elements + elements // self.block * self.scale + self.temporary, self.arranging)

    @property
    def moved_bytes(self) -> int:
        """Bytes of memory traffic of all, besides copying them in 16 bits."""
        return self.moved * self.elements


def quantising_of(engine: InferenceEngine) -> Quantising:
    """Matrices that the engine quantises in a refit; zeros for one in 16 bits."""
    recipe = engine.recipe
    found = [] if recipe is None else [
        linear for path, kind in layers_of(engine.architecture) for module, linear in modules(path, kind, 1)
        if recipe.method_of(module, linear)]
    if recipe is not None and isinstance(recipe.method, Mxfp8):
        return _in_exponents(engine, recipe.method, found)
    return Quantising(sum(linear.numel for linear in found), max(
        (quantising_bytes(part, linear.inputs) for linear in found for part in linear.parts), default=0))


def _in_exponents(engine: InferenceEngine, method: Mxfp8, found: list[Linear]) -> Quantising:
    """MXFP8: one matrix (of experts one after the other) with its exponents; arranged is a rank's part."""
    largest = max((part * linear.inputs for linear in found for part in linear.parts), default=0)
    parts = [[linear for module, linear in modules(path, kind, engine.tp)
              if engine.recipe is not None and engine.recipe.method_of(module, linear)]
             for path, kind in layers_of(engine.architecture)]
    return Quantising(sum(linear.numel for linear in found), largest // _MX_BLOCK * _MX_EXPONENTS, _MX_BLOCK, 1,
                      _MX_MOVED, max(map(method.arranging_bytes, parts), default=0))
