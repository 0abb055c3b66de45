"""Draws layouts for the probe of transformers' own tensor parallelism: models, ranks, precision, steps.

    python tests/truth/draw_hf_tp.py [--count N] [--seed S] > cases

The same seed draws the same cases. Heads, widths and vocabularies are cut evenly, and no head is tied. Behind them come
two cases each of further families, then layouts of packed sequences, and of tied heads.
"""

from __future__ import annotations

import random

import draw_fsdp2 as plain
from drawing import print_cases

COUNT, SEED, PACKED, TIED = 48, 20261130, 44, 44
MODELS = (plain.llama, plain.llama, plain.qwen2, plain.qwen3, plain.qwen3, plain.mistral)
TIES = {"tie_word_embeddings": True}
CHOSEN = {
    "seed-oss-36b": {"head_dim": 32, "attention_dropout": 0.0, "residual_dropout": 0.0}, "afm-4.5b": {"head_dim": 32},
    "ernie-4.5-0.3b": {"head_dim": 32}, "granite-3.3-2b": {}, "minicpm5-1b": {}, "qwen2.5-7b": {},
    "phi-2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_dropout": 0.0, "num_key_value_heads": 4},
    "nemotron-mini-4b": {"head_dim": 32}, "command-r7b": TIES, "gemma-7b": {**TIES, "head_dim": 32},
    "gemma-3-1b": {**TIES, "head_dim": 32},
    "starcoder2-3b": {"residual_dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}}
SIZES = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
         "num_hidden_layers": 2, "intermediate_size": 192, "tie_word_embeddings": False}


def chosen() -> list[plain.Case]:
    """Cases of `CHOSEN`, without and with checkpoints."""
    return [{"name": f"{preset} {ac}", "model": {"preset": preset, "overrides": {**SIZES, **more}}, "world": 4, "tp": 2,
             "seq": 64, "batch": 2, "ac": ac, **({"wrap": "titan"} if "tie_word_embeddings" in more else {})}
            for preset, more in CHOSEN.items() for ac in ("none", "layer")]


def draw(seed: int, number: int) -> plain.Case:
    """Case `number` depends on nothing but its number and the seed."""
    pick = random.Random(f"{seed}:tp:{number}")
    model, tp = pick.choice(MODELS)(pick), pick.choice((2, 2, 2, 3, 4, 4))
    sizes = model["overrides"]
    of_keys = tp * pick.choice((1, 1, 2))
    count = of_keys * pick.choice((1, 2, 3))
    sizes.update(num_attention_heads=count, num_key_value_heads=of_keys, tie_word_embeddings=False,
                 hidden_size=count * pick.choice((16, 32, 48)),
                 vocab_size=tp * pick.choice((129, 250, 333, 512)), intermediate_size=tp * pick.choice((48, 57, 116)))
    case: plain.Case = {"name": f"tp-{number:03}-{model['preset'].split('-')[0]}", "model": model}
    shards, copies = pick.choice((2, 2, 3, 4, 5, 8)), pick.choice((1, 1, 1, 2))
    world = tp * shards * copies
    case.update(tp=tp, world=world, dp_replicate=copies, rank=pick.randrange(world))
    plain.reshard(pick, case)
    if isinstance(case.get("reshard"), int) and not isinstance(case["reshard"], bool):
        case["reshard"] = pick.choice(plain.divisors(shards))
    plain.precision(pick, case)
    plain.workload(pick, case, small=True)
    case.pop("optim_in_bwd", None)
    plain.wrapping(pick, case)
    return case


def packed(seed: int, number: int) -> plain.Case:
    """A case of `draw` with rows of packed sequences, in the types that flash-attn has."""
    pick, case = random.Random(f"{seed}:packed:{number}"), draw(seed + 1, number)
    case["name"] = case["name"].replace("tp-", "packed-", 1)
    case["packed"] = pick.choice((case["seq"], case["seq"] // 2, case["seq"] // 3, 16))
    if case["mp_param"] != "bfloat16":
        case.update(store_dtype="bfloat16", mp_param=None)
    return case


def tied(seed: int, number: int) -> plain.Case:
    """A case of `draw` whose head is tied, in transformers' own units; the vocabulary is cut evenly."""
    pick, case = random.Random(f"{seed}:tied:{number}"), draw(seed + 2, number)
    case["name"] = case["name"].replace("tp-", "tied-", 1)
    shards = case["world"] // case["dp_replicate"]
    case["model"]["overrides"].update(tie_word_embeddings=True, vocab_size=shards * pick.choice((32, 43, 100)))
    case["wrap"] = "titan"
    return case


def drawn(seed: int, count: int) -> list[plain.Case]:
    """Cases 0 to `count` - 1, those of further families, those of packed sequences and of tied heads."""
    return [draw(seed, number) for number in range(count)] + chosen() + [
        packed(seed, number) for number in range(PACKED)] + [tied(seed, number) for number in range(TIED)]


if __name__ == "__main__":
    print_cases(drawn, __doc__, SEED, COUNT)
