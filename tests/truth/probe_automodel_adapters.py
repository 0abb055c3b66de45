"""What one linear with Automodel's adapter allocates, event by event: dropout before and after it, and DoRA.

    python tests/truth/probe_automodel_adapters.py > tests/truth/adapters/automodel-0.7.0.json

As `probe_adapters.py`, with nemo-automodel 0.7.0's `patch_linear_module`. `efficient: false`: without
use_memory_efficient_lora. `refused`: its message, where it refuses.
"""

from __future__ import annotations

from typing import Any

import nemo_automodel
import nemo_automodel.components._peft.lora as peft_lora
import probe_adapters
import torch
from json_lines import with_cases

VARIANTS: dict[str, dict[str, Any]] = {
    "by operators": {"efficient": False},
    "by operators, pre": {"efficient": False, "dropout": 0.05, "position": "pre"},
    "by operators, post": {"efficient": False, "dropout": 0.05, "position": "post"},
    "plain": {}, "pre": {"dropout": 0.05, "position": "pre"}, "post": {"dropout": 0.05, "position": "post"},
    "dora": {"dora": True}, "dora, pre": {"dora": True, "dropout": 0.05, "position": "pre"},
    "dora, post": {"dora": True, "dropout": 0.05, "position": "post"}}
BASES: dict[str, dict[str, Any]] = {"bf16": {}, "nf4": {"base": "nf4"}, "bf16, bias": {"bias": True}}
CASES = {f"{variant}; {base}{way}": what | of | more for variant, what in VARIANTS.items()
         for base, of in BASES.items() for way, more in probe_adapters.WAYS.items()}


def built(case: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    linear = probe_adapters.base_of(case)
    if case.get("base") == "nf4":
        linear.quant_state = linear.weight.quant_state
    return peft_lora.patch_linear_module(
        linear, dim=8, alpha=16, use_dora=case.get("dora", False), dropout=case.get("dropout", 0.0),
        dropout_position=case.get("position", "post"), lora_dtype=torch.bfloat16, use_triton=False,
        use_memory_efficient_lora=case.get("efficient", True)).train()


def found(case: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"found": probe_adapters.measured(case)}
    except ValueError as error:
        return {"refused": str(error)}


def dropped(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    return torch.native_dropout(x, p, training)[0] if p and training else x


if __name__ == "__main__":
    probe_adapters.prepare()
    torch.nn.functional.dropout = dropped
    probe_adapters.built = built
    made = {"nemo_automodel": nemo_automodel.__version__, "torch": torch.__version__,
            "rows": probe_adapters.BATCH * probe_adapters.SEQ, "shape": [probe_adapters.NARROW, probe_adapters.WIDE]}
    print(with_cases(made, {name: case | found(case) for name, case in CASES.items()}))
