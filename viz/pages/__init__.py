"""The HTML page: one file with every picture and number of its reports, without network access or libraries.

Comes in: the reports of one run, or the answers of searches. Goes out: the text of the page (`rankscope run --html`,
`rankscope search --html`, `rankscope report`). Its content policy lets nothing run but its own style sheet and its own
script, `page.js`; without the script everything is still on the page, but the commands of a search's layouts.

- `page`: the page around everything; it chooses among the next four.
- `report` (one report), `comparison` (two or more, side by side), `batch` (many: filters, scatters, a table), `search`
  (layouts that a search found).
- Sections of a report: `phases` (reinforcement learning, inference engine), `ranks` (a class of ranks), `timeline`.
- Parts: `tables`, `detail_tables` (every tensor, every owner at the peak), `verdict` (its badge and bars),
  `scenario_keys` (keys in which scenarios differ).

Start at `page.py`, function `render`.
"""
