"""The scenario of torchtitan's sample, as a person writes it."""

from __future__ import annotations

WRITTEN = """\
name: mine
model: qwen3-14b
framework: fsdp2
implementation: torchtitan
topology: dgx-h100
mesh: {dp_replicate: 2, dp_shard: 8}
training:
  seq_len: 256
  micro_batch_size: 3
  global_batch_size: 48
  recompute: {mode: per_op}
  precision: {params: fp32, compute: bf16, grad_reduce: fp32}
  optimizer: {name: adamw, implementation: foreach}
checkpoint: {load: none, save: none}
framework_options: {reshard_after_forward: true, early_stop: true}
"""
