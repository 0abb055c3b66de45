"""Hugging Face transformers 5.23: tensors and layers of every family that it runs, operator by operator."""
