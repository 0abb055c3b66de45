"""NeMo Automodel 0.7.0: its table, what it refuses, how it wraps units, how it matches LoRA modules."""
