"""Options of layers beyond shapes and parallel degrees: the base of those of each implementation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

__all__ = ["NO_OPTIONS", "ImplementationOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplementationOptions:
    """Options that the engine itself reads. Each implementation adds those that its own operators read.

    `hidden`: dtype of the hidden state between layers, "" the compute dtype. `embeddings_require_grad`: the embedding's
    output takes a gradient that no parameter needs, so that replays of layers above carry one. `inputs_on_host`: inputs
    of replayed layers wait on the host until backward.
    """

    hidden: str = ""
    embeddings_require_grad: bool = False
    inputs_on_host: bool = False

    @property
    def loads_whole_sequences(self) -> bool:
        """Tells whether each context parallel rank loads its group's whole sequences, and cuts its part out of them."""
        return False

    @property
    def loads_attention_mask(self) -> bool:
        """Tells whether the data loader hands a mask to stages with an embedding or a loss."""
        return False

    @property
    def outputs_whole_vocabulary(self) -> bool:
        """Tells whether the last stage puts out logits of the whole vocabulary, however tensor parallelism cuts it."""
        return False

    @classmethod
    def of(cls, options: ImplementationOptions) -> Self:
        """`options`, which are of this class; its defaults where a workload was made without options."""
        if isinstance(options, cls):
            return options
        assert options == NO_OPTIONS, f"expected {cls.__name__}, got {options}"
        return cls()


NO_OPTIONS: Final = ImplementationOptions()
