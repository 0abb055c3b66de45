"""Draws layouts for the probe of what stands beside transformers' tensor parallelism: adapters, 4 bits, sequences.

    python tests/truth/draw_hf_tp_beside.py [--count N] [--seed S] > cases

The same seed draws the same cases. Layouts by themselves would run: heads, widths and vocabularies are cut evenly.
"""

from __future__ import annotations

import random

import draw_fsdp2 as plain
from drawing import print_cases

COUNT, SEED = 128, 20261201
MODELS = (plain.llama, plain.llama, plain.qwen2, plain.qwen3, plain.mistral)
BESIDE = ("lora", "lora", "qlora", "cp")


def draw(seed: int, number: int) -> plain.Case:
    """Case `number` depends on nothing but its number and the seed."""
    pick = random.Random(f"{seed}:beside:{number}")
    model, tp, beside = pick.choice(MODELS)(pick), pick.choice((2, 2, 3, 4)), BESIDE[number % len(BESIDE)]
    sizes = model["overrides"]
    of_keys, unit = tp * pick.choice((1, 2)), pick.choice((32, 64))
    count = of_keys * pick.choice((1, 2))
    sizes.update(num_attention_heads=count, num_key_value_heads=of_keys, hidden_size=count * unit,
                 tie_word_embeddings=pick.random() < 0.3, vocab_size=tp * pick.choice((64, 96, 129)),
                 intermediate_size=tp * pick.choice((64, 128)), num_hidden_layers=pick.choice((1, 2)))
    if "head_dim" in sizes:
        sizes["head_dim"] = unit
    shards, copies, shared = pick.choice((2, 2, 3, 4)), pick.choice((1, 1, 2)), 2 if beside == "cp" else 1
    case: plain.Case = {"name": f"{beside}-{number:03}-{model['preset'].split('-')[0]}", "model": model, "tp": tp,
                        "world": tp * shards * shared * copies, "dp_replicate": copies, "cp": shared, "seq": 16}
    if beside != "cp":
        linears = (*plain.ATTENTION, *plain.GATED)
        targets = sorted(pick.sample(linears, pick.randint(1, len(linears))), key=linears.index)
        case["lora"] = {"r": pick.choice((4, 8, 16)), "targets": targets}
    if beside == "qlora":
        case["storage"] = pick.choice(("uint8", "bfloat16", "float32"))
    return case


def drawn(seed: int, count: int) -> list[plain.Case]:
    """Cases 0 to `count` - 1."""
    return [draw(seed, number) for number in range(count)]


if __name__ == "__main__":
    print_cases(drawn, __doc__, SEED, COUNT)
