"""Draws small models with a vision tower under Megatron-Bridge, and asks for the parameters of a rank.

    PYTHONPATH=MEGATRON_LM:MEGATRON_BRIDGE/src python tests/truth/draw_bridge_vision.py

It writes placement/drawn-bridge-vision-main-2026-08-22.json.
Qwen 3 VL, whose tower Bridge builds of core's layers, and Ministral 3 and Gemma 3, whose towers are transformers' own:
sizes, tied tables, tp, stages and what is frozen, of sources as `probe_bridge_vision.py` names. `parameters`: number
of each name and shape without gradient and with it ("frozen" or "trained"), with a star for a layer;
`averaged`: names of parameters whose gradients are averaged over tp. Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import copy
import random
import re
from collections import Counter
from pathlib import Path

import probe_bridge_vision as seen
import probe_bridge_whole as whole
from drawing import Case, by_name, chosen, numbered, print_apart

STORED = Path(__file__).parent / "placement" / "drawn-bridge-vision-main-2026-08-22.json"
SEED, COUNT = 20261214, 48
LATER_SEED, LATER_COUNT = 20261523, 32
FLAGS = ("freeze_language_model", "freeze_vision_model", "freeze_vision_projection")


def decoder(rng: random.Random, text: Case, names: tuple[str, str, str, str]) -> Case:
    """The sizes of a decoder; `names` of its MLP, heads of keys, vocabulary and tying in the words of its model."""
    ffn, groups, vocab, tied = names
    return text | {ffn: rng.choice((128, 256, 512)), groups: rng.choice((2, 4)), vocab: rng.choice((1024, 2048)),
                   tied: rng.random() < 0.4}


def one(rng: random.Random) -> Case:
    """A case of one of the models."""
    kind = chosen(rng, ("qwen", 5), ("ministral", 3), ("gemma", 3))
    tp, pp = chosen(rng, (1, 2), (2, 3), (4, 1)), chosen(rng, (1, 3), (2, 2), (3, 1))
    case: Case = {"kind": kind, "tp": tp, "pp": pp, "stage": rng.randrange(pp), "frozen": []}
    if rng.random() < 0.5:
        case["frozen"] = sorted(rng.sample(FLAGS, rng.choice((1, 1, 2))))
    layers, depth = pp * rng.choice((1, 2, 3)), rng.randint(1, 5)
    if kind == "qwen":
        text = decoder(rng, seen.TEXT, ("ffn_hidden_size", "num_query_groups", "vocab_size",
                                        "share_embeddings_and_output_weights"))
        vision = seen.VISION | {"depth": depth, "hidden_size": rng.choice((64, 96, 128)), "intermediate_size":
                                rng.choice((160, 192, 256)), "num_position_embeddings": rng.choice((16, 64, 100))}
        vision["deepstack_visual_indexes"] = sorted(rng.sample(range(depth), min(depth, rng.randint(1, 3))))
        return case | {"text": text | {"num_layers": layers}, "vision": vision}
    model = copy.deepcopy(whole.MODELS[kind])
    text = decoder(rng, model["text_config"], ("intermediate_size", "num_key_value_heads", "vocab_size",
                                               "tie_word_embeddings"))
    text["num_hidden_layers"], text["tie_word_embeddings"] = layers, kind == "gemma"
    width = rng.choice((64, 96, 128))
    model["vision_config"] |= {"num_hidden_layers": depth, "hidden_size": width,
                               "intermediate_size": rng.choice((160, 264))}
    if kind == "ministral":
        model["vision_config"]["head_dim"] = width // 4
    return case | {"model": model | {"text_config": text}}


def measured(case: Case) -> Case:
    """Parameters of the rank of a case."""
    tp, pp, stage = case["tp"], case["pp"], case["stage"]
    seen.started(tp, pp, stage, world=tp * pp)
    frozen = dict.fromkeys(case["frozen"], True)
    if case["kind"] == "qwen":
        provider = seen.provider_of(tp, pp, case["vision"], case["text"], **frozen)
    else:
        provider = whole.provider_of(case["kind"], tp, case["model"], pp)
        for name in frozen:
            setattr(provider, name, True)
    named = list(seen.provided(provider, first=stage == 0, last=stage == pp - 1).named_parameters())
    counts = Counter(f"{'trained' if p.requires_grad else 'frozen'} {re.sub(r'[.][0-9]+[.]', '.*.', name)} "
                     f"{'x'.join(map(str, p.shape))}" for name, p in named)
    return {"parameters": dict(counts), "averaged": [
        name for name, p in named if getattr(p, "average_gradients_across_tp_domain", False)]}


if __name__ == "__main__":
    cases = [*numbered("b", one)(SEED, COUNT), *numbered("c", one)(LATER_SEED, LATER_COUNT)]
    print_apart(by_name(cases), measured, STORED)
