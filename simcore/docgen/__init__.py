"""Pages of `docs/` that are made from the code: glossary, scenario keys, machines, models."""
