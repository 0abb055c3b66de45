"""NeMo Automodel 0.7.0: tensors, layers, experts, head and losses of its own models, operator by operator."""
