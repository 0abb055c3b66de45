"""Ground truth: the real frameworks, driven on one CPU without data and without a GPU."""
