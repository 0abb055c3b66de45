"""Mesh axes, layouts of tensors on them, and the plan: what each tensor is on each rank; ranks folded into classes."""
