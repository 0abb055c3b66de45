"""torchtitan 0.2.2: tensors, layers and losses, eager and compiled, operator by operator."""
