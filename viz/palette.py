"""One fixed colour and texture for each category of memory, the same on every page.

A hue is a family: blues are weights, purples the optimizer, oranges gradients, yellows the buffers of reduce-scatter,
greens activations, greys the rest. Members of a family differ in lightness and texture, so that no two categories
differ by hue alone; the distances are tested under simulated colour blindness.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from viz.markup import Markup, element, join

__all__ = ["CATEGORIES", "PARTS", "TONES", "Swatch", "luminance", "style_rules", "swatch", "texture_definitions"]

Texture = Literal["plain", "hatch", "bars"]


@dataclass(frozen=True)
class Swatch:
    """Colour and texture of one category. `tone`: a name in `TONES`.

    `held`: its bytes usually live for the whole step.
    """

    tone: str
    texture: Texture = "plain"
    held: bool = False

    @property
    def css_class(self) -> str | None:
        """CSS class that fills a shape with the plain colour; None for a category with a texture."""
        return f"fill-{self.tone}" if self.texture == "plain" else None

    @property
    def fill(self) -> str | None:
        """Value of the SVG attribute `fill` for a category with a texture; None for a plain colour."""
        return None if self.texture == "plain" else f"url(#{self.tone}-{self.texture})"


# name: (on light paper, on dark paper)
TONES: Final[dict[str, tuple[str, str]]] = {
    "navy": ("#1d3b80", "#2f74b8"),
    "sky": ("#6cc3f5", "#8abcfb"),
    "cyan": ("#0f95a5", "#52b3b4"),
    "plum": ("#8049aa", "#823a9c"),
    "lilac": ("#ad91dc", "#a78bd8"),
    "rust": ("#98330a", "#b04a0c"),
    "apricot": ("#dc9337", "#e59d44"),
    "gold": ("#f7d04e", "#f9d450"),
    "green": ("#258452", "#38925f"),
    "mint": ("#a8efd3", "#b1efc8"),
    "rose": ("#dc5681", "#e75f7e"),
    "slate": ("#4f545b", "#62666c"),
    "silver": ("#b5b7bb", "#c6c8cb"),
}

CATEGORIES: Final[dict[str, Swatch]] = {
    "sharded_param": Swatch("navy", held=True),
    "ignored_param": Swatch("navy", "hatch", held=True),
    "main_param": Swatch("navy", "bars", held=True),
    "opt_state": Swatch("plum", held=True),
    "main_grad": Swatch("rust", "bars", held=True),
    "buffer": Swatch("slate", held=True),
    "context": Swatch("slate", "hatch", held=True),
    "nccl": Swatch("slate", "bars", held=True),
    "graph_pool": Swatch("silver", "hatch", held=True),
    "kv_cache": Swatch("rose", "hatch", held=True),
    "unsharded_param": Swatch("sky"),
    "post_forward_shard": Swatch("sky", "hatch"),
    "all_gather_cast_input": Swatch("cyan", "hatch"),
    "all_gather_output": Swatch("cyan"),
    "reduce_scatter_input": Swatch("gold"),
    "reduce_scatter_output": Swatch("gold", "hatch"),
    "unsharded_grad": Swatch("apricot"),
    "sharded_grad": Swatch("rust"),
    "ignored_grad": Swatch("rust", "hatch"),
    "optim_temp": Swatch("lilac"),
    "activation": Swatch("green"),
    "recompute": Swatch("mint"),
    "backward_temp": Swatch("rose"),
    "input": Swatch("silver"),
    "workspace": Swatch("silver", "bars"),
    "dispatcher": Swatch("lilac", "hatch"),
    "fragmentation": Swatch("mint", "bars"),
}
# Components at rest on a rank, and kinds of layers; no chart shows them together with categories.
PARTS: Final[dict[str, Swatch]] = {
    "routed_experts": Swatch("navy", held=True),
    "shared_experts": Swatch("navy", "hatch", held=True),
    "router": Swatch("cyan", "hatch", held=True),
    "latent_projections": Swatch("cyan", held=True),
    "mamba": Swatch("green", held=True),
    "delta_net": Swatch("green", "hatch", held=True),
    "attention": Swatch("plum", held=True),
    "mlp": Swatch("gold", held=True),
    "norms": Swatch("slate", held=True),
    "embedding": Swatch("apricot", held=True),
    "lm_head": Swatch("rust", held=True),
    "mtp": Swatch("rose", held=True),
    "adapters": Swatch("mint", held=True),
    "expert_adapters": Swatch("mint", "bars", held=True),
    "moe": Swatch("navy"),
    "moe_decoder": Swatch("navy"),
    "decoder": Swatch("sky"),
    "dense": Swatch("sky"),
    "head": Swatch("rust"),
    "loss": Swatch("rose"),
    "final_norm": Swatch("slate"),
    "between stages": Swatch("silver", "bars"),
    "outside the allocator": Swatch("silver", "hatch"),
}
_OTHER: Final = Swatch("apricot", "bars")


def swatch(category: str) -> Swatch:
    """Returns colour and texture of a category, component or kind of layer; unknown names share one."""
    return CATEGORIES.get(category) or PARTS.get(category, _OTHER)


def luminance(colour: str) -> float:
    """Returns the relative luminance of `#rrggbb`, 0 to 1."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def style_rules() -> str:
    """Returns the text of CSS rules of every colour: on light and dark paper, fills, labels on them."""
    schemes = [" ".join(_variables(name, pair[dark]) for name, pair in TONES.items()) for dark in (0, 1)]
    rules = [f":root {{ {schemes[0]} }}", f"@media (prefers-color-scheme: dark) {{ :root {{ {schemes[1]} }} }}"]
    for name in TONES:
        rules.append(f".fill-{name} {{ fill: var(--{name}) }}")
        rules.append(f".on-{name} {{ fill: var(--on-{name}); stroke: var(--{name}) }}")
    return "\n".join(rules)


def _variables(name: str, colour: str) -> str:
    ink = "#ffffff" if luminance(colour) < 0.26 else "#10141a"
    return f"--{name}: {colour}; --on-{name}: {ink};"


def texture_definitions() -> Markup:
    """Returns the SVG `<defs>` with the patterns of every texture; a page contains them once."""
    textured = {s for s in (*CATEGORIES.values(), *PARTS.values(), _OTHER) if s.texture != "plain"}
    patterns = {(s.tone, s.texture): s for s in textured}
    return element("defs", *_waits(), *(_pattern(patterns[name]) for name in sorted(patterns)))


def _waits() -> Iterator[Markup]:
    """Yields textures of waits: slanted red lines for communication, dots for a bubble, upright lines for the host."""
    marks = {"communication": element("path", d="M-1 7L7-1", class_="wait-line"),
             "bubble": element("circle", cx=3, cy=3, r=1.1, class_="wait-dot"),
             "host": element("path", d="M3 0V6", class_="wait-host-line")}
    for name, mark in marks.items():
        ground = element("rect", width=6, height=6, class_=f"wait-ground-{name}")
        yield element("pattern", ground, mark, id=f"wait-{name}", width=6, height=6, patternUnits="userSpaceOnUse")


def _pattern(paint: Swatch) -> Markup:
    """Returns slanted or upright lines on the tone: both are visible on a band of any thickness."""
    period, tilt = (7, "rotate(45)") if paint.texture == "hatch" else (11, "rotate(90)")
    ground = element("rect", width=period, height=period, class_=f"fill-{paint.tone}")
    thread = element("rect", width=period, height=2.5, class_="thread")
    return element("pattern", join((ground, thread)), id=f"{paint.tone}-{paint.texture}", width=period, height=period,
                   patternUnits="userSpaceOnUse", patternTransform=tilt)
