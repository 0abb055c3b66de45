"""Words with which transformers, PEFT and accelerate stop beside tensor parallelism: adapters, 4 bits, sequences.

    python tests/truth/draw_hf_tp_beside.py | python tests/truth/probe_hf_tp_beside.py > rows

Cases of `draw_hf_tp_beside.py`, each over ranks that are not there: transformers 5.23.0's own `from_pretrained` with a
`DistributedConfig`, of a small model with random weights; then PEFT 0.21.2's `get_peft_model` and a step, or, of
sequences that ranks share, accelerate 1.15.0's own `_prepare_tp`, which its `prepare` calls before it cuts with FSDP2.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from oracle.rows import error_text
from oracle.steps.models import LLAMA, fields_of
from oracle.worker import serve
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
from transformers.distributed import DistributedConfig


class Prepares:
    """Stand-in for accelerate's `Accelerator`, as far as `_prepare_tp` asks."""

    is_fsdp2, torch_device_mesh = True, None

    def _prepare_one(self, made: Any, **_: Any) -> Any:
        return made

    def _get_named_parameters(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}


def loaded(case: dict[str, Any]) -> nn.Module:
    """The case's model as transformers loads it for a rank of those that share it."""
    preset, sizes = case["model"]["preset"], case["model"]["overrides"]
    fields = {"model_type": "llama", **LLAMA[preset]} if preset in LLAMA else fields_of(preset)
    fields = {**fields, **sizes, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    shards = case["world"] // case["tp"] // case["dp_replicate"] // case["cp"]
    given: dict[str, Any] = {}
    if "storage" in case:
        given["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16,
            bnb_4bit_quant_storage=getattr(torch, case["storage"]))
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(AutoConfig.for_model(fields.pop("model_type"), **fields)).save_pretrained(
            folder)
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, **given, distributed_config=DistributedConfig(
                tp_size=case["tp"], fsdp_size=shards * case["cp"], dp_replicate_size=case["dp_replicate"]))


def measure(case: dict[str, Any]) -> dict[str, Any]:
    world = str(case["world"])
    os.environ.update(RANK="0", WORLD_SIZE=world, LOCAL_RANK="0", LOCAL_WORLD_SIZE=world, MASTER_ADDR="localhost",
                      MASTER_PORT="1")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["world"])
    try:
        run(loaded(case), case)
    except (ImportError, AttributeError) as told:  # is what a user gets
        return {"case": case, "error": f"{type(told).__name__}: {str(told).partition(' (')[0]}"}
    return {"case": case}


def run(model: nn.Module, case: dict[str, Any]) -> None:
    """What the case asks for, up to the end of a backward pass."""
    if case["cp"] > 1:
        Accelerator._prepare_tp(Prepares(), model)
    if "lora" in case:
        model = get_peft_model(model, LoraConfig(r=case["lora"]["r"], target_modules=case["lora"]["targets"]))
    ids = torch.randint(0, 64, (1, case["seq"]))
    model(input_ids=ids, labels=ids).loss.backward()


def row(raw: dict[str, Any]) -> dict[str, Any]:
    """The case, and the words with which it stopped, if it did."""
    case = {key: value for key, value in raw["case"].items() if key != "name"}
    return {"name": raw["case"]["name"], "spec": case, **(
        {"error": error_text(raw["error"])} if "error" in raw else {})}


if __name__ == "__main__":
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - libraries tell of their progress
    serve(measure, row)
