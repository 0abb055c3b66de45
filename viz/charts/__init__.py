"""Drawings of a report as SVG text, without a page around them.

Comes in: a report, a class of ranks (`RankReport`) or its details (`ClassDetail`), and an identity that makes the ids
in the drawing unique on a page. Goes out: `Markup`, an `<svg>` as wide as its frame, and the entries of its legend.
A function that finds nothing to draw returns None.

- Memory over the step: `memory` draws it from `stack` (the bands), `scale` (bytes to pixels) and `axes`.
- Other charts: `lanes` (streams over time), `placement` (ranks of the mesh), `peak_owners` and `traffic` (bars),
  `pareto` (scenarios by memory and time or cost).
- Shapes that several charts share: `bars`, `scatter`, `value_axis`.
- Legends: `legend`, `memory_legend`; `rank_class` picks a class of ranks out of a report.

Start at `memory.py`, function `memory_chart`.
"""
