"""Answers of searches made by hand, for tests of charts and pages."""

from __future__ import annotations

import random
from typing import Any

from simcore.results.found import FoundLayout, RefusedBy, SearchCounts, SearchResult

GIB = 2**30
_EVIDENCE: Any = ("measured", "recipe", "class", "none")


def found(num: int = 40, *, text: str = "", seed: int = 1, **changes: Any) -> SearchResult:
    """Answer with `num` layouts that are drawn; `text` is in the search's name, its file and each layout's machine."""
    drawn = random.Random(seed)
    layouts = sorted((_layout(drawn, n, text) for n in range(num)),
                     key=lambda one: (-one.tokens_per_s_per_gpu, one.peak_bytes))
    lowest, ranked = float("inf"), []
    for one in layouts:
        ranked.append(one.model_copy(update={"is_pareto": one.peak_bytes < lowest}))
        lowest = min(lowest, one.peak_bytes)
    counts = SearchCounts(candidates=num + 1234, refused=900, at_rest=100, oom=200, unsure=34, excluded=0, slower=0,
                          ranked=num, alike=0, simulated=num + 234, timed=num)
    values: dict[str, Any] = {
        "name": f"drawn{text}", "path": f"my files/mine{text}.yaml", "settings": {"training.seq_len": 4096},
        "objectives": ("tokens", "peak"), "ranked": tuple(ranked), "best": tuple(ranked[:10]),
        "pareto": tuple(one for one in ranked if one.is_pareto), "counts": counts,
        "refused": (RefusedBy(status="illegal", rule="rule", message=f"tp 3 divides nothing{text}", count=900),)}
    return SearchResult(**values | changes)


def _layout(drawn: random.Random, n: int, text: str) -> FoundLayout:
    tp, ep, pp, dp = (drawn.choice([1, 2, 4, 8]) for _ in range(4))
    batch, recompute = drawn.choice([1, 2, 4]), drawn.choice(["none", "full"])
    framework = drawn.choice(["automodel", "megatron"])
    tokens = 20_000 / (1 + tp / 9 + pp / 7) * drawn.uniform(0.6, 1)
    peak = int(GIB * (8 + 60 / (tp * pp * dp) ** 0.5 + batch * drawn.uniform(0, 3)))
    keys: dict[str, Any] = {
        "framework": framework, "topology": f"dgx-h100{text}", "mesh.pp": pp, "mesh.tp": tp, "mesh.dp_shard": dp,
        "mesh.ep": ep, "training.micro_batch_size": batch, "training.recompute": recompute}
    if n % 5 == 0:
        keys["framework_options.reshard"] = True
    return FoundLayout(
        keys=keys, framework=framework, topology=f"dgx-h100{text}" if n % 2 else "dgx-h200",
        layout=f"pp {pp} tp {tp} dp_shard {dp} ep {ep}", num_gpus=tp * pp * dp,
        verdict="unsure" if n % 7 == 0 else "fits",
        peak_bytes=peak, headroom_bytes=78 * GIB - peak, step_s=4e4 / tokens, tokens_per_s_per_gpu=tokens,
        mfu=tokens / 5e4, usd_per_million_tokens=700 / tokens, evidence=_EVIDENCE[n % 4])
