"""Cards with which results show themselves in a notebook, without scripts and without network access.

Comes in: a `Report`, a `Comparison`, a `Frame` or a `SearchResult`; their methods `_repr_html_` import these modules.
Goes out: the HTML text of one `<div>` that brings its own rules and textures and changes nothing around it.

- `report`: the card of one result.
- `comparison`: the card of several results, each number with its difference to the first.
- `frame`: the card of a table of results.
- `search`: the card of a search's answer.
- `fragment`: the frame of every card: rules that reach only the card, light or dark as the notebook is.

The cards are made of the charts and the parts of a page. Start at `report.py`.
"""
