"""Random layouts that a framework accepts, for property tests: made legal, not filtered."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Layout = tuple[str, dict[str, int], dict[str, Any]]
"""Framework, mesh, framework options."""

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)


@st.composite
def layouts(draw: st.DrawFn, most: int = 64,
            frameworks: tuple[str, ...] = ("fsdp2", "automodel", "megatron")) -> Layout:
    """At most `most` ranks; sizes that do not divide the tensors are wanted."""
    name = draw(st.sampled_from(frameworks))
    return {"fsdp2": _fsdp2, "automodel": _automodel, "megatron": _megatron}[name](draw, most)


@st.composite
def resharded(draw: st.DrawFn, most: int = 64) -> Layout:
    """FSDP2 with every kind of `reshard_after_forward`; DTensor experts are kept in no smaller group than theirs."""
    name, mesh, options = draw(layouts(most, ("fsdp2",)))
    shards, experts = mesh["dp_shard"], mesh["dp_replicate"] * mesh["dp_shard"] // mesh["ep"]
    apart = mesh["ep"] > 1 and options["experts"] == "fully_shard"
    parts = [n for n in range(1, shards + 1) if shards % n == 0 and (not apart or n in (1, experts))]
    policies: dict[str, list[Any]] = {"reshard_after_forward": [True, False, *parts],
                                      "set_last_reshard": [None, True, False]}
    chosen = {key: draw(st.sampled_from(values)) for key, values in policies.items()}
    return name, mesh, {**options, **{key: value for key, value in chosen.items() if value is not None}}


def _pick(draw: st.DrawFn, most: int, sizes: tuple[int, ...] = SIZES) -> int:
    return draw(st.sampled_from([size for size in sizes if size <= most] or [1]))


def _experts(draw: st.DrawFn, ranks: int) -> int:
    """An ep that divides 8 experts and the ranks."""
    return draw(st.sampled_from([ep for ep in (1, 2, 4, 8) if ranks % ep == 0]))


def _fsdp2(draw: st.DrawFn, most: int) -> Layout:
    copies = _pick(draw, most, (1, 1, 2, 3))
    shards = _pick(draw, most // copies)
    mesh = {"dp_replicate": copies, "dp_shard": shards, "ep": _experts(draw, copies * shards)}
    experts = {} if mesh["ep"] == 1 else {"experts": draw(st.sampled_from(["fully_shard", "ignored"]))}
    return "fsdp2", mesh, {**experts, "wrap": draw(st.sampled_from(["layers_root", "separate_embedding_head"]))}


def _automodel(draw: st.DrawFn, most: int) -> Layout:
    """Experts are cut evenly on their second dimension, 256 and 128: what is left beside ep is a power of two."""
    stages = _pick(draw, most, (1, 1, 2, 3, 5))
    if draw(st.booleans()):
        shards = _pick(draw, most // stages)
        return "automodel", {"pp": stages, "dp_shard": shards}, {}
    shards = _pick(draw, most // stages, (2, 4, 8, 16))
    copies = _pick(draw, most // stages // shards, (1, 1, 2))
    ep = _experts(draw, copies * shards)
    return "automodel", {"pp": stages, "dp_replicate": copies, "dp_shard": shards, "ep": ep}, {}


def _megatron(draw: st.DrawFn, most: int) -> Layout:
    stages = _pick(draw, most, (1, 1, 5))
    tp = _pick(draw, most // stages, (1, 1, 2))
    cp = _pick(draw, most // stages // tp, (1, 1, 2))
    shards = _pick(draw, most // stages // tp // cp)
    etp = draw(st.sampled_from([1, tp]))
    ranks = tp * cp * shards
    ep = draw(st.sampled_from([ep for ep in (1, 2, 4, 8) if ranks % (ep * etp) == 0]))
    mesh = {"pp": stages, "dp_shard": shards, "cp": cp, "tp": tp, "ep": ep, "etp": etp}
    return "megatron", mesh, {"overlap_grad_reduce": draw(st.booleans())}
