"""One file per implementation: its tensors, and what each operator keeps, holds for a moment, computes and sends."""
