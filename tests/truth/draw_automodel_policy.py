"""Draws small models as NeMo RL's workers of DTensor wrap them over tensor parallelism, and measures their steps.

    python tests/truth/draw_automodel_policy.py > tests/truth/tape/automodel-drawn-policies-torch-2.13.0.json

Families, ranks, sizes, lengths and tied tables; each case as `probe_automodel_policy.py` measures it. Nothing is drawn
again because of what came out; cases of the second seed have key heads for every rank, which the plan asks for.
"""

from __future__ import annotations

import random
import sys

import probe_automodel_policy as probe
import probe_automodel_step as step
from drawing import Case, by_name, chosen, numbered, print_apart

SEED, COUNT = 20261212, 90
LATER_SEED, LATER_COUNT = 20261407, 56


def one(rng: random.Random) -> Case:
    """A case of one of the families that the worker cuts over tp."""
    heads = rng.choice((4, 8, 16))
    groups = rng.choice([count for count in (1, 2, 4, 8) if heads % count == 0 and count <= heads])
    fields: Case = {
        "hidden_size": rng.choice((128, 256, 320)), "intermediate_size": rng.choice((384, 512, 688)),
        "num_hidden_layers": rng.randint(1, 5), "vocab_size": chosen(rng, (512, 2), (1024, 3), (1000, 2), (1003, 0.7)),
        "num_attention_heads": heads, "num_key_value_heads": groups}
    family = rng.choice(("llama", "mistral", "qwen2", "qwen3"))
    if family == "qwen2":  # whose heads share the hidden state
        fields["head_dim"] = fields["hidden_size"] // heads
    else:
        fields["head_dim"] = rng.choice((16, 32))
    tp = rng.choice((2, 2, 2, 4, 4, 3))
    return {"family": family, "tied": rng.random() < 0.4, "tp": tp, "world": tp * rng.choice((1, 1, 2, 3, 4, 5, 8)),
            "seq": rng.choice((96, 192, 256, 500)), "fields": fields}


def later(rng: random.Random) -> Case:
    """A case whose heads of keys are as many as tp or several times that."""
    case = one(rng)
    heads, groups = (case["fields"][name] for name in ("num_attention_heads", "num_key_value_heads"))
    case["fields"]["num_key_value_heads"] = case["tp"] * max(1, groups // case["tp"])
    case["fields"]["num_attention_heads"] = case["fields"]["num_key_value_heads"] * max(1, heads // groups)
    if case["family"] == "qwen2":
        width = case["fields"]["hidden_size"] // case["fields"]["num_attention_heads"] // 2 * 2
        case["fields"]["head_dim"] = width
        case["fields"]["hidden_size"] = width * case["fields"]["num_attention_heads"]
    return case


def measured(case: Case) -> Case:
    """Measured values of a case."""
    step.SEQ = case["seq"]
    probe.start(case["world"])
    return probe.measure(case)


if __name__ == "__main__":
    step.stand_in()
    cases = [*numbered("p", one)(SEED, COUNT), *numbered("q", later)(LATER_SEED, LATER_COUNT)]
    print_apart(by_name(cases), measured, only=sys.argv[1:])
