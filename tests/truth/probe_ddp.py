"""Which buckets torch's DistributedDataParallel reduces, over small transformers models in bf16 on one CPU.

    python tests/truth/probe_ddp.py > tests/truth/ddp/torch-2.13.0.json

The process group is torch's fake one of 8 ranks; a communication hook notes the bytes of each bucket in the order in
which they are reduced. `first`: the first step, `later`: the third (a second would do: buckets are built again once).
"""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
import transformers
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM

LLAMA = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
         "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 16384, "tie_word_embeddings": False}
CASES = {
    "default": {"type": "llama", "model": LLAMA, "options": {}},
    "tied": {"type": "llama", "model": LLAMA | {"tie_word_embeddings": True}, "options": {}},
    "cap 4": {"type": "llama", "model": LLAMA, "options": {"bucket_cap_mb": 4}},
    "view": {"type": "llama", "model": LLAMA, "options": {"gradient_as_bucket_view": True}},
    "qwen2": {"type": "qwen2", "model": LLAMA, "options": {"bucket_cap_mb": 2}},
}


def steps(case):
    config = AutoConfig.for_model(case["type"], **case["model"])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    wrapped = DistributedDataParallel(model, **case["options"])
    sizes = []

    def note(_, bucket):
        sizes.append(bucket.buffer().nbytes)
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    wrapped.register_comm_hook(None, note)
    found = []
    for _ in range(3):
        sizes.clear()
        tokens = torch.randint(0, config.vocab_size, (1, 32))
        wrapped(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        wrapped.zero_grad(set_to_none=True)
        found.append(list(sizes))
    return {"first": found[0], "later": found[2]}


def main():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    rows = {name: case | {"found": steps(case)} for name, case in CASES.items()}
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__, "cases": rows}, indent=1))


main()
