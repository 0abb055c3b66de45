"""Files for other tools than a browser: traces, memory snapshots, single figures.

Comes in: a report with details (`simulate(..., detail=True)`). Goes out: the text or the bytes of files; writing them
is the command line's part (`rankscope export`, `rankscope report --figures`). What a format cannot hold is returned as
lines of text next to the file, and the command line prints them.

- `chrome`: the step in Chrome's trace format, for Perfetto.
- `kineto`: one trace a rank as PyTorch's profiler writes it, for HolisticTraceAnalysis.
- `slices`: the spans of a report as slices that do not overlap; both traces are made from them.
- `snapshot`: the memory as a snapshot of PyTorch's caching allocator, for its viewer.
- `figures`: each chart as an SVG or PNG file of its own, for papers and slides; `search_figures`: those of a search.

Start at `chrome.py`; each module's docstring says what the readers of its format require.
"""
