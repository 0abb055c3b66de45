"""Draws layouts for the FSDP2 probe at random and writes them to ``fsdp2/drawn-cases.json``.

    python tests/truth/draw_fsdp2.py [--count N] [--seed S] > cases.json
    python tests/truth/draw_fsdp2.py --write       # the stored list: count and seed as below
    python tests/truth/draw_fsdp2.py --embedding   # small dense models whose embedding alone is a unit beside layers

The same seed draws the same cases, whatever the machine. Values that torch or the models refuse are drawn too (rarely):
what is refused is truth as well. `tests/truth/regenerate.py --file drawn` measures them.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from json_lines import listed

HERE = Path(__file__).resolve().parent
COUNT, ASKED, SEED = 180, 40, 16
EMBEDDINGS, OF_EMBEDDINGS = 44, 71107
Case = dict[str, Any]
Pick = random.Random
WORLDS = (1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10, 12, 14, 15, 16, 18, 20, 24, 28, 32, 36, 40, 48, 56, 63, 64)
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED = ("gate_proj", "up_proj", "down_proj")


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def heads(pick: Pick) -> Case:
    """Sizes of attention, and vocabularies and widths that no world divides."""
    count = pick.choice((2, 4, 6, 8, 12))
    dim = pick.choice((16, 32, 64))
    return dict(hidden_size=count * dim, num_attention_heads=count, head_dim=dim,
                num_key_value_heads=pick.choice(divisors(count)), vocab_size=pick.choice((257, 500, 1000, 1024, 2047)),
                num_hidden_layers=pick.randint(1, 5), intermediate_size=pick.choice((96, 172, 350, 688, 1001)),
                tie_word_embeddings=pick.random() < 0.2)


def llama(pick: Pick) -> Case:
    return {"preset": "llama-tiny", "overrides": heads(pick)}


def qwen2(pick: Pick) -> Case:
    sizes = heads(pick)
    del sizes["head_dim"]
    return {"preset": "qwen2.5-7b", "overrides": sizes}


def qwen3(pick: Pick) -> Case:
    sizes = heads(pick)
    sizes["head_dim"] = pick.choice((sizes["head_dim"], 32, 48))
    return {"preset": "qwen3-8b", "overrides": sizes}


def mistral(pick: Pick) -> Case:
    return {"preset": "mistral-7b-v0.3", "overrides": heads(pick)}


def phi3(pick: Pick) -> Case:
    sizes = heads(pick)
    del sizes["head_dim"]
    return {"preset": "phi-3-mini-4k", "overrides": sizes}


def qwen3_moe(pick: Pick) -> Case:
    experts = pick.choice((4, 8, 12, 16))
    return {"preset": "qwen3-30b-a3b", "overrides": {
        **heads(pick), "num_experts": experts, "num_experts_per_tok": pick.choice((1, 2, 4)),
        "moe_intermediate_size": pick.choice((48, 100, 128))}}


def mixtral(pick: Pick) -> Case:
    return {"preset": "mixtral-8x7b", "overrides": {
        **heads(pick), "num_local_experts": pick.choice((4, 6, 8)), "num_experts_per_tok": pick.choice((1, 2))}}


def nemotron_h(pick: Pick) -> Case:
    """Every kind of layer, in any order; ties of the head are left out by this model, so none are drawn."""
    layers = "".join(pick.choice("MME*-") for _ in range(pick.randint(1, 7)))
    count, dim, groups = pick.choice((4, 8)), pick.choice((16, 32)), pick.choice((1, 2))
    return {"preset": "nemotron3-tiny", "overrides": dict(
        hybrid_override_pattern=layers, num_hidden_layers=len(layers), vocab_size=pick.choice((500, 1000, 1024)),
        hidden_size=pick.choice((128, 192, 256)), intermediate_size=pick.choice((100, 128)), mamba_num_heads=count,
        mamba_head_dim=dim, n_groups=groups, n_routed_experts=pick.choice((4, 8, 12)),
        num_experts_per_tok=pick.choice((1, 2)), moe_intermediate_size=pick.choice((50, 128)))}


SMALL: tuple[Callable[[Pick], Case], ...] = (
    llama, llama, qwen2, qwen3, mistral, phi3, qwen3_moe, qwen3_moe, mixtral, nemotron_h, nemotron_h, nemotron_h)
FULL = ("llama-3.1-8b", "llama-3.2-3b", "llama-3.2-1b", "llama-2-7b", "llama-3-70b", "qwen2.5-7b", "qwen3-8b",
        "qwen3-30b-a3b", "mixtral-8x7b", "nemotron3-nano-30b-a3b")
TIED = ("llama-3.2-3b", "llama-3.2-1b")
EXPERTS = {"qwen3-30b-a3b": ("num_experts", 128, 8), "mixtral-8x7b": ("num_local_experts", 8, 2),
           "nemotron3-tiny": ("n_routed_experts", 8, 2), "nemotron3-nano-30b-a3b": ("n_routed_experts", 128, 6)}
LINEARS = {"pythia-1.4b": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
           "phi-3-mini-4k": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
           "nemotron3-tiny": (*ATTENTION, "up_proj", "down_proj"),
           "nemotron3-nano-30b-a3b": (*ATTENTION, "up_proj", "down_proj"),
           "qwen3-30b-a3b": ATTENTION, "mixtral-8x7b": ATTENTION}


def full(pick: Pick) -> Case:
    """A published model, most of them with a few of its layers."""
    preset = pick.choice(FULL)
    short = "nano" not in preset and pick.random() < 0.7
    return {"preset": preset, **({"overrides": {"num_hidden_layers": pick.randint(2, 4)}} if short else {})}


def is_tied(model: Case) -> bool:
    return bool(model.get("overrides", {}).get("tie_word_embeddings", model["preset"] in TIED))


def experts_of(model: Case) -> tuple[int, int]:
    """How many routed experts a layer has and how many a token takes; none where no layer has any."""
    if model["preset"] not in EXPERTS:
        return 0, 0
    name, count, each = EXPERTS[model["preset"]]
    sizes = model.get("overrides", {})
    if "E" not in sizes.get("hybrid_override_pattern", "E"):
        return 0, 0
    return sizes.get(name, count), sizes.get("num_experts_per_tok", each)


def mesh(pick: Pick, case: Case) -> None:
    """World, replicas, the rank and how experts are spread."""
    world = pick.choice(WORLDS if pick.random() < 0.7 else WORLDS[:9])
    case.update(world=world, rank=pick.choice((0, world - 1, pick.randrange(world))))
    if pick.random() < 0.25:
        case["dp_replicate"] = pick.choice(divisors(world))
    experts = experts_of(case["model"])[0]
    sizes = [d for d in divisors(world) if d > 1 and experts % d == 0] if experts else []
    if sizes and pick.random() < 0.6:
        case.update(ep=pick.choice(sizes), ep_mode=pick.choice(("ignored", "dtensor", "dtensor")))


def reshard(pick: Pick, case: Case) -> None:
    """Whether layers reshard after forward; an integer is a factor of the shards, rarely none."""
    kind = pick.choice(("auto", "auto", True, False, "int", "int"))
    shards = case["world"] // case.get("dp_replicate", 1)
    if kind == "int":
        case["reshard"] = pick.choice(divisors(shards)) if pick.random() < 0.95 else shards + 1
    elif kind != "auto":
        case["reshard"] = kind
    if pick.random() < 0.3:
        case["set_last_reshard"] = pick.random() < 0.5


def precision(pick: Pick, case: Case) -> None:
    """Stored, computed in and reduced in; `None` leaves it as it is."""
    case["store_dtype"] = pick.choice(("float32", "float32", "bfloat16"))
    case["mp_param"] = pick.choice(("bfloat16", "bfloat16", "bfloat16", None, "float32"))
    case["mp_reduce"] = pick.choice(("float32", "float32", "bfloat16", None, None))


def lora(pick: Pick, case: Case) -> None:
    if pick.random() >= 0.25:
        return
    linears = LINEARS.get(case["model"]["preset"], (*ATTENTION, *GATED))
    targets = sorted(pick.sample(linears, pick.randint(1, len(linears))), key=linears.index)
    apart = pick.random() >= 0.85 and case["mp_param"]  # without a policy products of two types raise on real tensors
    dtype = "float32" if apart else case["store_dtype"]
    case["lora"] = {"r": pick.choice((4, 8, 16)), "targets": targets, "dtype": dtype}


def workload(pick: Pick, case: Case, *, small: bool) -> None:
    """Batch, length (tokens are spread evenly over the experts), accumulation, loss, optimizer, checkpointing."""
    case["batch"] = pick.choice((1, 1, 2, 3))
    experts, each = experts_of(case["model"])
    unit = experts or 1
    seq = pick.choice((40, 64, 128, 300, 512) if small else (512, 1024, 2048, 4096, 8192))
    case["seq"] = max(1, seq // unit) * unit if (case["batch"] * seq * each) % unit else seq
    if pick.random() < 0.35:
        case.update(grad_accum=pick.randint(2, 4 if small else 2), accum_sync=pick.choice(("last", "last", "every")))
    case["loss"] = pick.choice(("hf_drop_logits", "hf_drop_logits", "hf"))
    case["optim"] = pick.choice(("adamw_foreach", "adamw_fused", "adamw_forloop", "sgd"))
    if case.get("ep_mode") == "ignored" and case["optim"] != "adamw_forloop":
        case["optim_groups"] = "apart"  # foreach and fused steps refuse plain tensors beside DTensors
    case["ac"] = pick.choice(("none", "layer", "hf") if small else ("none", "layer", "layer", "hf"))
    if case["optim"] != "sgd" and "grad_accum" not in case and pick.random() < 0.1:
        case.update(optim="adamw_foreach", optim_in_bwd=True)


def wrapping(pick: Pick, case: Case) -> None:
    if pick.random() < (0.05 if is_tied(case["model"]) else 0.35):  # tied weights in two units are refused
        case["wrap"] = "titan"
    if pick.random() < 0.35:
        case["prefetch"] = pick.randint(1, 3)


def mixture(pick: Pick, case: Case, experts: int) -> None:
    """World, sharding, precision, adapters and workload of a step of a small mixture of `experts`, 0 for none."""
    world = pick.choice((2, 3, 4, 6, 8, 8, 12, 16))
    case.update(world=world, rank=pick.randrange(world))
    if pick.random() < 0.25:
        case["dp_replicate"] = pick.choice(divisors(world))
    reshard(pick, case)
    precision(pick, case)
    lora(pick, case)
    workload(pick, case, small=True)
    if experts:
        case["seq"] = experts * pick.choice((8, 20, 40))  # whole rows of every expert
        if pick.random() < 0.5 and case["mp_param"] == "bfloat16":
            case["experts_implementation"] = "grouped_mm"
    if case.get("optim_in_bwd"):
        del case["optim_in_bwd"]
    if pick.random() < 0.3:
        case["prefetch"] = pick.randint(1, 3)


def draw(seed: int, number: int) -> Case:
    """Case ``number`` depends on nothing but its number and the seed."""
    pick = random.Random(f"{seed}:{number}")
    small = pick.random() < 0.82
    model = (pick.choice(SMALL) if small else full)(pick)
    case: Case = {"name": f"drawn-{number:03}-{model['preset'].split('-')[0]}", "model": model}
    mesh(pick, case)
    reshard(pick, case)
    precision(pick, case)
    lora(pick, case)
    workload(pick, case, small=small)
    wrapping(pick, case)
    return case


def parts(pick: Pick, case: Case) -> list[str]:
    """Names and patterns of what could be frozen, each of which matches something in the case's model."""
    sizes = case["model"]["overrides"]
    last, layers = sizes["num_hidden_layers"] - 1, sizes.get("hybrid_override_pattern", "")
    known = ["*embed*", f"*.layers.{last}", "*.layers.0", f"*.layers.[0-{last // 2}]", "*norm*"]
    known += [] if is_tied(case["model"]) else ["lm_head", "lm_head.weight"]
    if not layers:
        known += ["*.self_attn", "*.mlp", "*.o_proj", f"*.layers.{last}.self_attn.*", "*layernorm.weight"]
    for letter, names in (("M", ("*.in_proj", "*.conv1d")), ("E", ("*.gate", "*.experts", "*.shared_experts")),
                          ("*", ("*.q_proj", "*.k_proj"))):
        known += names if letter in layers else ()
    return pick.sample(known, pick.randint(1, 3))


def ask(seed: int, number: int) -> Case:
    """A small case that also says what is frozen, or when FSDP2's last backward is."""
    pick = random.Random(f"{seed}:asked:{number}")
    case: Case = {"name": "", "model": pick.choice(SMALL)(pick)}
    for step in (mesh, reshard, precision, lora):
        step(pick, case)
    workload(pick, case, small=True)
    wrapping(pick, case)
    if "lora" in case and pick.random() < 0.6:
        del case["lora"]
    if pick.random() < 0.75:
        case["frozen"] = parts(pick, case)
    if pick.random() < 0.5 and "optim_in_bwd" not in case:
        case.update(grad_accum=pick.randint(2, 4), is_last="last", accum_sync=pick.choice(("last", "every")))
    case["name"] = f"asked-{number:03}-{case['model']['preset'].split('-')[0]}"
    return case


def embedding(seed: int) -> list[Case]:
    """Small cases whose embedding is a unit, and whose norm and head are the root's, as verl wraps them."""
    drawn = (draw(seed, number) for number in range(1000))
    fit = (case for case in drawn if not is_tied(case["model"]) and case["seq"] <= 512)
    return [{**next(fit), "name": f"embedding-{number:03}", "wrap": "embedding"} for number in range(EMBEDDINGS)]


ONE_LAYER = {"hidden_size": 256, "num_hidden_layers": 1}
HYBRID = {"hybrid_override_pattern": "MEM*E-", "num_hidden_layers": 6}
CHOSEN: tuple[Case, ...] = (
    {"name": "chosen-one-layer-lora-v", "model": {"preset": "llama-tiny", "overrides": ONE_LAYER}, "seq": 512,
     "lora": {"r": 8, "targets": ["v_proj"], "dtype": "float32"}},
    {"name": "chosen-one-layer-lora-mlp", "model": {"preset": "llama-tiny", "overrides": ONE_LAYER}, "seq": 512,
     "lora": {"r": 8, "targets": ["up_proj", "down_proj"], "dtype": "float32"}, "world": 3, "rank": 2},
    {"name": "chosen-two-layers-lora-o", "model": {"preset": "llama-tiny", "overrides": {"num_hidden_layers": 2}},
     "seq": 256, "lora": {"r": 8, "targets": ["o_proj"], "dtype": "float32"}},
    {"name": "chosen-hybrid-lora-mlp-ac", "model": {"preset": "nemotron3-tiny", "overrides": HYBRID}, "seq": 72,
     "ac": "layer", "lora": {"r": 8, "targets": ["up_proj", "down_proj"], "dtype": "float32"}, "world": 4},
    {"name": "chosen-hybrid-lora-mlp", "model": {"preset": "nemotron3-tiny", "overrides": HYBRID}, "seq": 72,
     "lora": {"r": 8, "targets": ["up_proj", "down_proj"], "dtype": "float32"}, "world": 4},
    {"name": "chosen-hybrid-lora-attention", "model": {"preset": "nemotron3-tiny", "overrides": HYBRID}, "seq": 72,
     "lora": {"r": 8, "targets": ["q_proj", "v_proj"], "dtype": "float32"}, "world": 5, "rank": 4, "ac": "layer"},
    *({"name": f"chosen-experts-ahead-{n}-{ac}", "model": {"preset": "nemotron3-tiny", "overrides": HYBRID}, "seq": 64,
       "world": 4, "rank": 1, "ep": 2, "ep_mode": "dtensor", "prefetch": n, "ac": ac}
      for n, ac in ((1, "layer"), (2, "layer"), (1, "hf"), (1, "none"))),
)
"""Layouts that the draws seldom hit: adapters that begin above the first layer, or beside its rotary tables; experts
as units of their own beside layers that are gathered ahead."""


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--count", type=int, default=COUNT)
    ap.add_argument("--asked", type=int, default=ASKED, help="how many of them with frozen parameters and the like")
    ap.add_argument("--seed", type=int, default=SEED)
    ap.add_argument("--write", action="store_true", help="write the stored list")
    ap.add_argument("--embedding", action="store_true", help="an embedding that is a unit, by another seed")
    a = ap.parse_args()
    if a.embedding:
        print(listed(embedding(OF_EMBEDDINGS)))
        return
    cases = [draw(a.seed, i) for i in range(a.count)] + [ask(a.seed, i) for i in range(a.asked)] + [*CHOSEN]
    body = f"{listed(cases)}\n"
    if a.write:
        (HERE / "fsdp2/drawn-cases.json").write_text(body)
    else:
        print(body, end="")


if __name__ == "__main__":
    main()
