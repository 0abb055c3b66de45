"""Draws mixtures for the probe of transformers' own expert parallelism (`probe_hf_ep.py`).

    python tests/truth/draw_hf_experts.py [--count N] [--seed S] > cases

The same seed draws the same cases. Units are those of transformers' own plan: embedding, layers and their experts,
and norm and head in one; vocabularies are small, so that layers make the peak as often as logits.
"""

from __future__ import annotations

import random

import draw_fsdp2 as plain
from draw_hf_mixtures import MODELS, attention, experts
from drawing import print_cases

COUNT, SEED = 44, 20261202


def model(pick: random.Random, ep: int, tp: int = 1) -> plain.Case:
    """A small mixture whose experts `ep` ranks can share, and other matrices `tp` of them."""
    preset = pick.choice((*MODELS, *["olmoe-1b-7b"] * (tp == 1)))
    sizes = {**attention(pick, tp * pick.choice((1, 2, 4))), "vocab_size": tp * pick.choice((65, 129, 500)),
             **experts(pick, preset, tp)}
    width = "moe_intermediate_size" if "moe_intermediate_size" in sizes else "intermediate_size"
    sizes[width] = pick.choice((16, 48, 104))
    number = next(name for name in ("num_local_experts", "n_routed_experts", "num_experts") if name in sizes)
    sizes[number] = ep * pick.choice((1, 1, 2, 3, 5))
    if "first_k_dense_replace" in sizes:
        sizes["num_hidden_layers"] += 1  # behind a dense one there is one of experts
    if sizes.get("mlp_only_layers"):
        sizes["num_hidden_layers"] = max(2, sizes["num_hidden_layers"])
    sizes["num_experts_per_tok"] = min(sizes["num_experts_per_tok"], sizes[number])
    if preset.startswith(("qwen1.5", "olmoe")):
        del sizes["head_dim"]
    if preset.startswith("olmoe"):
        sizes = {name: size for name, size in sizes.items() if name not in ("moe_intermediate_size", "mlp_only_layers")}
        sizes["intermediate_size"] = pick.choice((16, 48, 104))
    return {"preset": preset, "overrides": sizes}


def draw(seed: int, number: int) -> plain.Case:
    """Case `number` depends on nothing but its number and the seed."""
    pick = random.Random(f"{seed}:experts:{number}")
    ep, copies = pick.choice((2, 2, 2, 3, 4, 4, 8)), pick.choice((1, 1, 1, 2, 3))
    world, made = ep * copies * pick.choice((1, 1, 2, 2, 3, 4)), model(pick, ep)
    case: plain.Case = {"name": f"ep-{number:03}-{made['preset'].split('-')[0]}", "model": made, "ep": ep,
                        "ep_mode": "exchange", "wrap": "titan", "world": world, "dp_replicate": copies,
                        "rank": pick.randrange(world)}
    plain.precision(pick, case)
    case["mp_param"] = "bfloat16"  # a policy, which casts weights of the chosen experts; no other type on fake tensors
    plain.workload(pick, case, small=True)
    case.pop("optim_in_bwd", None)
    case.update(ac=pick.choice(("none", "hf")), seq=pick.choice((48, 96, 240, 480)))
    return case


def beside_tp(seed: int, number: int) -> plain.Case:
    """A case whose ranks of one batch split other matrices: their number divides that of the ranks of experts."""
    pick = random.Random(f"{seed}:experts beside tp:{number}")
    tp = pick.choice((2, 2, 3))
    ep, copies = tp * pick.choice((1, 1, 2)), pick.choice((1, 1, 2))
    world, made = ep * copies * pick.choice((1, 2, 3)) * (1 + (ep == tp)), model(pick, ep, tp)
    case: plain.Case = {"name": f"ep-tp-{number:03}-{made['preset'].split('-')[0]}", "model": made, "tp": tp, "ep": ep,
                        "ep_mode": "exchange", "wrap": "titan", "world": world, "dp_replicate": copies,
                        "rank": pick.randrange(world)}
    plain.precision(pick, case)
    case["mp_param"] = "bfloat16"
    plain.workload(pick, case, small=True)
    case.pop("optim_in_bwd", None)
    case.update(ac=pick.choice(("none", "hf")), seq=tp * ep * pick.choice((4, 10, 25, 40)))
    return case


def drawn(seed: int, count: int) -> list[plain.Case]:
    """Cases 0 to `count` - 1, and half as many beside tensor parallelism."""
    return [draw(seed, number) for number in range(count)] + [beside_tp(seed, n) for n in range(count // 2)]


if __name__ == "__main__":
    print_cases(drawn, __doc__, SEED, COUNT)
