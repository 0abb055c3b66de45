"""Assumptions about fp8 and fp4 that reports of Megatron-Core tell."""

from __future__ import annotations

from simcore.frameworks.megatron.fp8 import Fp8

__all__ = ["assumptions"]


def assumptions(made: Fp8 | None) -> tuple[tuple[str, str, str, str], ...]:
    """Returns what is assumed or derived about fp8 and fp4, each (key, value, kind, source).

    Empty without them. It comes from source code, and few measured runs confirm it.
    """
    if made is None:
        return ()
    weights = "parameters" if made.params else "a lasting copy" if made.cached else "a copy for each pass"
    beside = ", with columns beside the rows" if made.lasting and made.scaling.has_columns else ""
    told = f"{made.scaling.recipe}; inputs kept in {made.stored}; weights in {made.stored} are {weights}{beside}"
    return (*_attention_in_8_bits(made), (f"{made.stored} linears", told, "derived",
             "TransformerEngine 2.18 pytorch/module, pytorch/tensor; core 0.16.1 fp8_utils.py, fp4_utils.py"),)


def _attention_in_8_bits(made: Fp8) -> tuple[tuple[str, str, str, str], ...]:
    """Returns what is assumed about attention in 8 bits; () where it is in 16."""
    if not made.attends:
        return ()
    speed = "its products reach the share of the peak that they reach in bf16"
    if made.scaling.recipe == "mxfp8":
        return (("fp8_dot_product_attention", f"attention keeps what it does in bf16, and {speed}", "assumed",
                 "TransformerEngine 2.15 to 2.18 utils.py, get_attention_backend: cuDNN 9.21 has kernels for mxfp8; "
                 "what is kept in 8 bits twice is as large"),)
    scaled = "delayed scaling" if made.scaling.recipe == "delayed" else "the maximum of now"
    return (("fp8_dot_product_attention", f"query, key and value are scaled by {scaled} and kept in 8 bits; {speed}",
             "assumed", "TransformerEngine 2.18 dot_product_attention/backends.py FusedAttnFunc; beside nvfp4 "
             "NVTE_DPA_FP8_RECIPE=Float8CurrentScaling; NVTE_FP8_DPA_BWD=1"),)
