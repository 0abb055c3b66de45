"""What a step of QLoRA allocates under Automodel: a small Llama that bitsandbytes packs, with Automodel's adapters.

    python tests/truth/probe_automodel_qlora.py > tests/truth/bitsandbytes/automodel-0.7.0.json

As `probe_qlora.py`, one process on a CPU, but columns are bf16 and adapters are nemo-automodel 0.7.0's
(`apply_lora_to_linear_modules` with its quantisation config); the loss is the model's own. Here its adapter's kernels
are torch's, not Triton's. `adapters`: dtypes of adapters, `fused`: whether an MLP became one function.
"""

from __future__ import annotations

import json
import logging
import warnings
from typing import Any

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import bitsandbytes as bnb  # noqa: E402
import nemo_automodel.components._peft.lora as peft_lora  # noqa: E402
import probe_qlora  # noqa: E402
import torch  # noqa: E402
from nemo_automodel.components.quantization.qlora import create_bnb_config  # noqa: E402
from oracle.steps import models  # noqa: E402
from transformers.integrations.bitsandbytes import replace_with_bnb_linear  # noqa: E402
from transformers.quantizers.base import get_keys_to_not_convert  # noqa: E402

ALL, SOME = ["*_proj"], ["*q_proj", "*v_proj"]
CASES: dict[str, dict[str, Any]] = {
    "all linears": {"targets": ALL}, "all linears, replayed": {"targets": ALL, "recompute": True},
    "some linears": {"targets": SOME}, "some linears, replayed": {"targets": SOME, "recompute": True}}


class Asked(dict):  # type: ignore[type-arg]
    """A recipe's block, whose keys are attributes too."""

    load_in_4bit, load_in_8bit = True, False


def built(case: dict[str, Any]) -> Any:
    """The model as `apply_model_infrastructure` has it on one GPU."""
    torch.manual_seed(0)
    plain = models.build_meta("llama-tiny", probe_qlora.SHAPE).to_empty(device="cpu").to(torch.bfloat16)
    for p in plain.parameters():
        torch.nn.init.normal_(p.data)
    weights, config = {name: p.data for name, p in plain.named_parameters()}, create_bnb_config(Asked())
    model = replace_with_bnb_linear(plain, get_keys_to_not_convert(plain), config)
    for name, part in model.named_modules():
        if isinstance(part, bnb.nn.Linear4bit):
            old = part.weight
            part.weight = bnb.nn.Params4bit(weights[f"{name}.weight"], requires_grad=False, compress_statistics=True,
                                            quant_type="nf4", quant_storage=old.quant_storage, module=part).to("cpu")
            del old
    cfg = peft_lora.PeftConfig(dim=8, alpha=16, target_modules=case["targets"])
    peft_lora.apply_lora_to_linear_modules(model, cfg, quantization_config=config)
    case["adapters"] = sorted({str(p.dtype) for n, p in model.named_parameters() if "lora_" in n})
    case["columns"] = sorted({str(p.dtype) for p in model.parameters() if isinstance(p, bnb.nn.Params4bit)})
    if case.get("recompute"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def main() -> None:
    probe_qlora.built = built
    rows = {}
    for name, case in CASES.items():
        found = probe_qlora.measured(case)
        rows[name] = case | {"found": found}
    print(json.dumps({"version": bnb.__version__, "automodel": "0.7.0", "cases": rows}, indent=1))


main()
