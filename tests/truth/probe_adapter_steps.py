"""What a step of a small Llama with PEFT's adapters allocates: dropout, DoRA and rsLoRA, over 16 and over 4 bits.

    python tests/truth/probe_adapter_steps.py > tests/truth/adapters/steps-peft-0.21.2.json

As `probe_qlora.py`; dropout as in `probe_adapters.py`. `trained`: elements of trained parameters.
"""

from __future__ import annotations

import json
from typing import Any

import peft
import probe_adapters
import probe_qlora
import torch
from oracle.steps import models

MIXED = {"kbit": True, "autocast": True, "adapters": "fp32"}
WAYS: dict[str, dict[str, Any]] = {
    "": {}, ", prepared, autocast": MIXED, ", 16 bits": {"base": "bf16"},
    ", autocast over fp32": {"base": "fp32", "autocast": True, "adapters": "fp32"},
    ", autocast over 16 bits": {"base": "bf16", "autocast": True, "adapters": "fp32"}}
"""The last one: TRL's LoRA, whose Trainer has bf16 on. Plain adapters in the others: `probe_qlora.py`."""
CASES = {f"{variant}{way}{', replayed' if recompute else ''}": what | of | {"recompute": recompute}
         for variant, what in probe_adapters.VARIANTS.items()
         for way, of in WAYS.items() if variant != "plain" or way.endswith("over 16 bits")
         for recompute in (False, True)}


def built(case: dict[str, Any]) -> Any:
    """As `probe_qlora.built`, of a packed base or of one in 16 or 32 bits."""
    config = LoraConfig(r=8, lora_alpha=16, target_modules=probe_qlora.ALL, use_dora=case.get("dora", False),
                        lora_dropout=case.get("dropout", 0.0), use_rslora=case.get("rslora", False))
    if "base" not in case:
        probe_qlora.peft.LoraConfig = lambda **_: config
        return packed(case)
    torch.manual_seed(0)
    plain = models.build_meta("llama-tiny", probe_qlora.SHAPE).to_empty(device="cpu")
    plain = plain.to(probe_adapters.TYPES[case["base"]])
    for p in plain.parameters():
        torch.nn.init.normal_(p.data)
    adapted = peft.get_peft_model(plain, config)
    for p in adapted.parameters():
        p.data = p.data.to(probe_adapters.TYPES[case.get("adapters", case["base"])]) if p.requires_grad else p.data
    if case["recompute"]:
        adapted.base_model.model.gradient_checkpointing_enable({"use_reentrant": False})
    return adapted.train()


def measured(case: dict[str, Any]) -> dict[str, int]:
    """What `probe_qlora.measured` finds, and the number of trained elements."""
    counted: list[int] = []

    def counting(case: dict[str, Any]) -> Any:
        model = built(case)
        counted.append(sum(p.numel() for p in model.parameters() if p.requires_grad))
        return model

    probe_qlora.built = counting
    return probe_qlora.measured(case) | {"trained": counted[0]}


packed, LoraConfig = probe_qlora.built, peft.LoraConfig

if __name__ == "__main__":
    probe_adapters.prepare()
    print(json.dumps({"peft": peft.__version__, "torch": torch.__version__})[:-1] + ', "cases": {')
    for number, (name, case) in enumerate(CASES.items()):
        row = f"{json.dumps(name)}: {json.dumps(case | {'found': measured(case)})}"
        print(row + ("," if number + 1 < len(CASES) else "\n}}"), flush=True)
