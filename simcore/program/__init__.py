"""Programs: what a class of ranks does in a step and in which order, without times."""
