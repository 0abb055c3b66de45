"""Draws critics of verl's PPO under torch's FSDP 1, and measures them.

    python tests/truth/draw_critic.py VERL > tests/truth/verl/drawn-critic-torch-2.13.0.json

Families, sizes, ranks, copies (verl's `fsdp_size`), checkpoints and tokens; each case as `probe_critic.py VERL`
measures it. Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import random
import sys

import probe_critic as probe
from drawing import Case, by_name, maybe, numbered, print_apart

SEED, COUNT = 20261213, 44
FAMILIES = ("llama", "qwen2", "gemma2")


def one(rng: random.Random) -> Case:
    """A case of one of the families."""
    heads, family = rng.choice((2, 4, 8)), rng.choice(FAMILIES)
    sizes: Case = {"hidden_size": 16 * heads, "intermediate_size": rng.choice((96, 128, 136)),
                   "num_hidden_layers": rng.randint(1, 5), "num_attention_heads": heads,
                   "num_key_value_heads": heads // rng.choice((1, 2)), "head_dim": 16,
                   "vocab_size": rng.choice((500, 1001, 1024)), "tie_word_embeddings": rng.random() < 0.5}
    case: Case = {"family": family, "sizes": sizes, "ranks": rng.choice((1, 2, 3, 4, 5, 6, 8, 12, 16, 24)),
                  "tokens": rng.choice((32, 48, 100, 256, 511, 1000))}
    if case["ranks"] % 2 == 0 and case["ranks"] > 2:
        maybe(rng, case, 0.3, copies=2)
    maybe(rng, case, 0.35, checkpoint=True)
    return case


def measured(case: Case) -> Case:
    """Flat parameters, the second step, and what the loss keeps."""
    given = {key: value for key, value in case.items() if key not in ("family", "ranks")}
    return {**probe.units(sys.argv[1], case["family"], case["ranks"], **given),
            "loss": probe.loss(sys.argv[1], case["tokens"])}


if __name__ == "__main__":
    print_apart(by_name(numbered("c", one)(SEED, COUNT)), measured)
