"""LoRA by module name: a linear whose last path part is in the target list gets an adapter, nothing else does."""

from __future__ import annotations

from simcore.frameworks.adapter import LoraChoice
from simcore.models.blocks import Head, LayerKind
from simcore.models.tensor import TensorSpec

__all__ = ["DEFAULT_TARGETS", "name_adapters"]

DEFAULT_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj",
                   "qkv_proj", "gate_up_proj", "Wqkv", "input_linear", "output_linear")
"""The last five are those of Phi-3, of MPT, and of Granite's MLP. Not `out_proj`: Mamba's kernel reads its weight."""


def name_adapters(kind: LayerKind, specs: tuple[TensorSpec, ...], lora: LoraChoice) -> tuple[TensorSpec, ...]:
    """Returns the LoRA tensors of one kind of layer; `specs`: the tensors that the layer has without them.

    For every linear whose last path part is a target (of `DEFAULT_TARGETS` if `lora` names none) and not excluded:
    `lora_a` [rank, in] and `lora_b` [out, rank]. The output head's name is `lm_head`.
    """
    head = isinstance(kind.block, Head)
    targets = lora.target_modules or DEFAULT_TARGETS
    out: list[TensorSpec] = []
    for spec in specs:
        leaf = "lm_head" if head else spec.path.rpartition(".")[2]
        if not (head or spec.module == "linear") or leaf not in targets or leaf in lora.exclude_modules:
            continue
        rows, columns = spec.shape
        path = "" if head else f"{spec.path}."
        out.append(TensorSpec(f"{path}lora_a.weight", (lora.rank, columns), ("rank", spec.dims[1]), "adapters",
                              "adapter", copies=spec.copies))
        out.append(TensorSpec(f"{path}lora_b.weight", (rows, lora.rank), (spec.dims[0], "rank"), "adapters",
                              "adapter", copies=spec.copies))
    return tuple(out)
