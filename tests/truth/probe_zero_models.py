"""Measures ZeRO-2's and ZeRO-3's messages, and what ZeRO-3 gathers at every call, for every family, on one CPU.

    python tests/truth/probe_zero_models.py > tests/truth/deepspeed/drawn-models-0.19.6.json

DeepSpeed 0.19.6 as released, with transformers 5.23.0; read, process group and stand-in of Mamba's kernel as in
`probe_zero_families.py`; the kernel of the gated delta rule is a sum of its inputs. Each family comes twice, with
sizes, options and adapters by a seed; none is drawn again because of what came out.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import sys

import probe_deepspeed as base
import probe_zero_families as families
from json_lines import with_cases
from oracle.apart import run_apart
from zero_models import FAMILIES, drawn

SEED, TIMES = 5540129, 2
DELTA_NETS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")


def cases():
    """Rows of the drawn layouts, by name."""
    rng, found = random.Random(SEED), {}
    kinds = sorted(FAMILIES) * TIMES
    rng.shuffle(kinds)
    for number, kind in enumerate(kinds):
        found[f"m{number}"] = drawn(rng, kind)
    return found


def run(row):
    """What is sent and gathered of a case, with stand-ins for what a CPU does not run."""
    kind = row["type"]
    if kind == "mistral4":  # no class of transformers' AutoModelForCausalLM
        from transformers import AutoModelForCausalLM, Mistral4Config
        from transformers.models.mistral4.modeling_mistral4 import Mistral4ForCausalLM
        AutoModelForCausalLM.register(Mistral4Config, Mistral4ForCausalLM, exist_ok=True)
    if kind in DELTA_NETS:
        module = importlib.import_module(f"transformers.models.{kind.removesuffix('_text')}.modeling_"
                                         f"{kind.removesuffix('_text')}")
        module.torch_chunk_gated_delta_rule = lambda q, k, v, g, beta, **_: (
            v * (g + beta).unsqueeze(-1).to(v.dtype) + (q + k).mean(), None)
    return families.run(row)


def main():
    asked = cases()
    if len(sys.argv) > 1:
        asked = {name: row for name, row in asked.items() if name in sys.argv or row["type"] in sys.argv}
    sys.argv[1:] = []
    base.SHARDED = True
    base.prepare()
    with contextlib.redirect_stdout(sys.stderr):
        rows = run_apart(asked, run)
    print(with_cases({"deepspeed": "0.19.6", "transformers": "5.23.0"}, rows, compact=True, indent=" "))


if __name__ == "__main__":
    main()
