"""Which optimizer states transformers' Trainer has bitsandbytes keep in 32 bits: those of embeddings.

    python tests/truth/probe_trainer_states.py > tests/truth/bitsandbytes/trainer-5.23.0.json

A CPU makes the optimizer by the Trainer's own `create_optimizer` and the states by bitsandbytes' `init_state`; no step
runs. `states`: bytes of both moments with their scales by name of the parameter, tables left out.
"""

from __future__ import annotations

import json
import tempfile
from typing import Any

import bitsandbytes
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

PARTS = ("state1", "state2", "absmax1", "absmax2")
LLAMA = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
         "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 1000}


def states(optim: str, *, tied: bool) -> dict[str, Any]:
    config = AutoConfig.for_model("llama", **LLAMA, tie_word_embeddings=tied)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(model, TrainingArguments(folder, optim=optim, use_cpu=True, report_to=[]))
        optimizer = trainer.create_optimizer()
    optimizer.check_overrides()
    names = {id(p): name for name, p in model.named_parameters()}
    kept = {}
    for number, group in enumerate(optimizer.param_groups):
        for place, p in enumerate(group["params"]):
            optimizer.init_state(group, p, number, place)
            made = optimizer.state[p]
            kept[names[id(p)]] = sum(made[name].untyped_storage().nbytes() for name in PARTS if name in made)
    return {"optim": optim, "tied": tied, "states": kept}


if __name__ == "__main__":
    rows = [states(optim, tied=tied) for optim in ("adamw_bnb_8bit", "adamw_8bit") for tied in (False, True)]
    print(json.dumps({"transformers": transformers.__version__, "bitsandbytes": bitsandbytes.__version__,
                      "cases": rows}, indent=1))
