"""Units that accelerate makes of a transformers model under FSDP 2: its own `fsdp2_prepare_model`, call by call.

    python tests/truth/probe_accelerate_units.py > tests/truth/fsdp2/accelerate-1.15.0.json

`fully_shard` is replaced by one that notes its modules and `reshard_after_forward` ("default": not said) and marks
them; nothing is sharded. `calls`: in order; a group of modules is one call.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import accelerate
import torch.distributed.fsdp
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from transformers import AutoConfig, AutoModelForCausalLM

LLAMA = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 1000}


def calls(*, tied: bool, adapters: bool) -> list[Any]:
    config = AutoConfig.for_model("llama", **LLAMA, tie_word_embeddings=tied)
    model: Any = AutoModelForCausalLM.from_config(config)
    if adapters:
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
    made: list[Any] = []
    names = {id(part): name for name, part in model.named_modules()}

    def noted(modules: Any, reshard_after_forward: Any = "default", **_: Any) -> Any:
        parts = modules if isinstance(modules, (list, tuple)) else [modules]
        made.append({"modules": [names[id(part)] for part in parts], "reshard": reshard_after_forward})
        for part in parts:
            part.__class__ = type(part.__class__.__name__, (Marked, part.__class__), {})
        return modules

    torch.distributed.fsdp.fully_shard = noted
    os.environ |= {"FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true",
                   "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
    state = SimpleNamespace(fsdp_plugin=plugin, device_mesh=None, mixed_precision="no")
    fsdp2_prepare_model(SimpleNamespace(state=state, mixed_precision="no", torch_device_mesh=None, device="cpu"), model)
    return made


class Marked(torch.distributed.fsdp.FSDPModule):
    """Stands for a module that was sharded."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)


if __name__ == "__main__":
    rows = [{"tied": tied, "adapters": adapters, "calls": calls(tied=tied, adapters=adapters)}
            for tied in (False, True) for adapters in (False, True)]
    print(json.dumps({"accelerate": accelerate.__version__, "cases": rows}, indent=1))
