"""TransformerEngine's quantiser: copies of a matrix in 8 or 4 bits, along rows and along columns.

TransformerEngine 2.18 `pytorch/csrc/quantizer.cpp`, `common/cast/`; 2.15 has the same kernels. Who needs which copy,
and for how long, is told by the linears that ask: `operators/megatron/ops/fp8.py`, `operators/automodel/te_fp8.py`.

[Note: fused casts]
A norm writes 8 bits itself under delayed scaling, and beside bf16 the maximum for scaling by it (`csrc/extensions/
normalization.cpp`, FULLY_FUSED, FUSED_NORM_AMAX_FP8); columns that are a copy are transposed. So do activations of
TransformerEngine's operations, both ways, under mxfp8 too (`activation.cpp`). Other tensors are cast from memory.

[Note: nvfp4]
All three products of a linear are in NVFP4 (`common/recipe/__init__.py`, NVFP4BlockScaling). Copies along columns of
inputs and of gradients go through a random Hadamard transform of 16 values; gradients are rounded stochastically, by
the same kernels. `pytorch/csrc/quantizer.cpp`, NVFP4Quantizer::quantize_impl: one kernel reads a tensor for its two
maxima, a second makes both copies; where rows are no multiple of 64 or columns none of 128 (experts: 128), two kernels
more write the transform in bf16 and read it. Weights have no transform. Norms put out bf16, which is quantised then.

[Note: parts]
Of a tensor in parts, one an expert, each part is quantised by a kernel of its own (`csrc/extensions/cast.cpp`,
multi_tensor_quantize_impl: "Quantize kernels individually"; 2.8 and 2.9 too), for which a quantiser is converted and a
tensor of Python is made. In one go are delayed scaling, and nvfp4 but for weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from simcore.recording.number_formats import Scaling
from simcore.recording.tape import Kernel, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["Producer", "Quantized", "Quantizer"]

Producer = Literal["", "norm", "activation"]
"""Kernel that made a tensor, and quantises it as it writes; "" does not."""
_WRITES: Final = {"norm": ("delayed",), "activation": ("delayed", "mxfp8")}
"""Recipes whose copies a producer writes itself."""
_IN_ONE_GO: Final = ("delayed", "nvfp4")
"""Recipes that quantise all parts of a tensor by one kernel, see [Note: parts]."""


@dataclass(slots=True)
class Quantized:
    """Quantised copies of one tensor, each with its scales: one along rows, one along columns.

    None where a copy is not made; where columns need no copy, rows are all there is.
    """

    rows: Tensor | None
    columns: Tensor | None

    @property
    def kept(self) -> tuple[Tensor, ...]:
        """Copy that the weight gradient reads, in a tuple: columns, else rows; () if there is neither."""
        made = self.columns or self.rows
        return (made,) if made else ()


@dataclass(frozen=True, slots=True)
class Quantizer:
    """Makes quantised copies on one tape by one recipe; `dtype`: format of what it reads."""

    tape: Tape
    scaling: Scaling
    dtype: str

    def quantized(self, rows: int, columns: int, name: str, *, forward: bool = True, backward: bool = True,
                  squares: bool = False, copies: int = 1, kernels: bool = True, producer: Producer = "",
                  filled: int = 0) -> Quantized:
        """Quantised copies of `copies` equal (rows, columns) matrices, each with its scales.

        `forward`: makes the copy along rows (always made where columns need none); `backward`: that along columns;
        `squares`: the matrix is a weight: blockwise scales are of 128 x 128 blocks, and nvfp4 has no Hadamard
        transform. One kernel writes both; a scale of the tensor that there is now needs the maximum first, which reads
        it once more (Float8CurrentScalingQuantizer, NVFP4Quantizer). Without `kernels` another kernel has written them.
        `producer`: see [Note: fused casts]. `filled`: rows of a matrix that have values, 0 for all. The host issues a
        kernel for each matrix: [Note: parts].
        """
        scaling, read = self.scaling, dtype_bytes(self.dtype)
        num_elements = copies * (filled or rows) * columns

        def copy(what: str, *, along_columns: bool) -> Tensor:
            size = scaling.copy_bytes(rows, columns, along_columns=along_columns, squares=squares)
            return self.tape.empty((copies * size, 1), "uint8", f"{name}.{what}")

        first = copy("fp8", along_columns=False) if forward or not scaling.has_columns else None
        second = copy("fp8_columns", along_columns=True) if backward and scaling.has_columns else None
        written = sum(made.nbytes for made in (first, second) if made) * (filled or rows) // rows
        launches = 1 if scaling.recipe in _IN_ONE_GO and not squares else copies
        if producer and scaling.recipe in _WRITES[producer]:
            if second is not None and scaling.is_per_tensor:
                self._pass(num_elements, 2 * written if first is None else written, launches)
        elif kernels:
            if scaling.takes_maximum and not (producer and scaling.recipe == "tensorwise"):
                self._pass(num_elements, read * num_elements, launches)
            if second is not None and scaling.recipe == "nvfp4" and not squares:
                self._transformed(rows, columns, copies)
            self._pass(num_elements, read * num_elements + written, launches)
        return Quantized(first, second)

    def _transformed(self, rows: int, columns: int, copies: int) -> None:
        """The Hadamard transform of columns, where its shape keeps it out of the kernel that casts ([Note: nvfp4])."""
        if rows % (64 if copies == 1 else 128) or columns % 128:
            wide = self.tape.empty((copies * rows, columns), self.dtype, "hadamard")
            self._pass(wide.numel, 2 * wide.nbytes)
            self._pass(wide.numel, wide.nbytes)

    def _pass(self, num_elements: int, num_bytes: int, launches: int = 1) -> None:
        """Kernels, each of which costs the host no more than one of torch's operators: they are issued from C++."""
        self.tape.compute(Kernel.ELEMENTWISE, num_elements, num_bytes, launches)
