"""Many scenarios: worker processes, folders of results, gates for CI, advice, tables of results."""
