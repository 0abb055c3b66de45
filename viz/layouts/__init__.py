"""Drawings of what a search found, as SVG text, without a page around them.

Comes in: the `FoundLayout`s of a `SearchResult`, in order of its ranking, and an identity that makes the ids in the
drawing unique on a page. Goes out: `Markup`, an `<svg>` as wide as its frame.

- `front`: the Pareto chart of two measures; `parallel`: axes of keys and results with a line for each layout.
- `measure`: results that are axes; `layout_keys`: keys that are columns, and names of layouts.
- `name_column`: names beside a chart that do not overlap.

Start at `front.py`, function `front_chart`.
"""
