"""Modelling code that comes with a checkpoint on the Hub (`trust_remote_code`): transformers' layers with changes."""
