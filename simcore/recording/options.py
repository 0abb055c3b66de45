"""Options of layers beyond shapes and parallel degrees: the base of those of each implementation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Self

__all__ = ["NO_OPTIONS", "ImplementationOptions", "LoraDropout"]

LoraDropout = Literal["", "pre", "post"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplementationOptions:
    """Options of one implementation's layers; this base has those that the engine itself reads.

    `hidden`: dtype of the hidden state between layers, "" for the compute dtype. `widens_at`: number, in the whole
    model, of the first layer that puts out fp32 whatever it is given, and with it all behind; None: none does.
    `head_given`: dtype of what the last norm puts out, "" for that of its input. `embeddings_require_grad`: the
    embedding's output takes a gradient that no parameter needs, so that replays of layers above carry one.
    `patches_require_grad`: so does what the front of a vision tower puts out.
    `inputs_on_host`: inputs of replayed layers wait in host memory until backward. `lora_dropout`: place of the dropout
    of LoRA adapters: "pre" on their input, "post" on their output, "" without one.
    `lora_by_operators`: those of a library with a function of its own run as plain products, which keep x A. `pixels`:
    dtype in which the data loader hands images on. `position_axes`: position ids that it gives with each token, of
    packs of sequences with images; 0 where the model makes them. `casts_images`: FSDP1's root casts them "once" and
    holds them until the model has returned (torch 2.13 `fsdp/_runtime_utils.py` _root_pre_forward); "again":
    transformers casts them back, as it finds a flat parameter as it rests (5.23 `modeling_utils.py`
    get_parameter_dtype), and patches again.
    """

    hidden: str = ""
    widens_at: int | None = None
    head_given: str = ""
    embeddings_require_grad: bool = False
    patches_require_grad: bool = False
    inputs_on_host: bool = False
    lora_dropout: LoraDropout = ""
    lora_by_operators: bool = False
    pixels: str = "fp32"
    position_axes: int = 0
    casts_images: Literal["", "once", "again"] = ""

    def bytes_of_tokens(self, batch: int, seq: int, cp: int) -> int:
        """Bytes of a microbatch's tokens and labels, int64, on a rank that has `batch` x `seq` of them.

        `cp`: ranks that share a sequence. More where each loads its group's whole sequences, to cut its part out.
        """
        return 2 * 8 * batch * seq

    @property
    def frees_tables_by_mixer(self) -> bool:
        """True if the lowest layer with each class of mixer frees the stem's tables that such layers alone keep."""
        return False

    @property
    def puts_out_fp32(self) -> bool:
        """True if the model's logits come out in fp32, whatever it computes in."""
        return False

    @property
    def loads_attention_mask(self) -> bool:
        """True if the data loader gives an attention mask to pipeline stages with an embedding or a loss."""
        return False

    @property
    def outputs_whole_vocabulary(self) -> bool:
        """True if the last stage outputs logits of the whole vocabulary although tensor parallelism splits it."""
        return False

    @classmethod
    def of(cls, options: ImplementationOptions) -> Self:
        """Returns `options`, which are an instance of this class; its defaults if they are `NO_OPTIONS`.

        Raises AssertionError for options of another implementation.
        """
        if isinstance(options, cls):
            return options
        assert options == NO_OPTIONS, f"expected {cls.__name__}, got {options}"
        return cls()


NO_OPTIONS: Final = ImplementationOptions()
