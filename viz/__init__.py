"""Draws finished reports: HTML pages, cards in notebooks, figures, and traces and snapshots for other tools.

A `Report` or a `SearchResult` of `simcore.results` comes in, text or bytes go out; nothing here simulates or computes a
result, and nothing but `simcore.results` and `simcore.units` is imported from the engine. The command line and the
`_repr_html_` methods of results import these folders when they are asked for, so that the engine starts without them.

- `charts/`: the drawings themselves, as SVG text.
- `layouts/`: drawings of the layouts that a search found.
- `exports/`: files for other tools: Chrome and Kineto traces, PyTorch memory snapshots, figures as SVG and PNG.
- `pages/`: the self-contained HTML page with one report, two reports side by side, or a batch of reports.
- `notebook/`: the cards with which results show themselves in a notebook.

Each folder imports only from those above it and from the modules next to this file: `markup` (HTML and SVG text with
everything escaped), `palette` (one colour and texture for each category) and `stylesheet`. Start at `pages/page.py`.
"""
