"""Tables and lines of a terminal; nothing is simulated here.

Input: results (`results/report.py`, `results/compare.py`, `results/found.py`). Output: tables and text of rich.
Start: `first_screen.first_screen`.

`first_screen`: verdict, one table, why; `summary`: all columns, a line a scenario; `memory`: bars; `time`: parts of a
step; `engine`: vLLM; `phases`: RL; `comparison`: results side by side; `found`: a search; `stages`: its progress;
`limits`: answers of solve; `validation`: measured runs; `tables`: placement, advice; `columns`: layout of wide tables;
`levels`: heights of small curves.
"""
