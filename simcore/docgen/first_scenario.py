"""The file that `init` writes: every main key of a scenario, with a comment."""

from __future__ import annotations

import json
import re
from typing import Final

from simcore.errors import InputError, Problem
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.simulate import check

__all__ = ["expect_readable", "starter_text"]

_SAFE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")

_TEXT: Final = """\
# yaml-language-server: $schema=scenario.schema.json
name: {name}  # unique in a batch
workload: train  # train | dpo | grpo (with rl and generation) | distillation | serve (with generation: {{tp: 4}})
model: {model}  # preset, Hugging Face id, path of a config.json, or {{config: ..., overrides: {{...}}}}
implementation: auto  # whose layer code runs; auto: the framework's own
framework: {framework}  # fsdp2 | fsdp1 | automodel | megatron | megatron_fsdp | ddp | zero0 | zero1 | zero2 | zero3
framework_version: auto  # auto: the newest one that is described; other versions in quotes
topology: {topology}  # a name in topologies/, a path, or {{file: ..., num_nodes: 2}}

mesh:  # world size = pp x dp_replicate x dp_shard x cp x tp
  pp: 1  # pipeline stages
  dp_replicate: 1  # copies of the sharded data-parallel group
  dp_shard: 8  # ranks that split parameters, gradients or optimizer states, as the framework does
  cp: 1  # ranks that split the sequence
  tp: 1  # ranks that split a layer's matrices
  ep: 1  # ranks that split experts by count

training:
  method: full  # full | lora | qlora
  seq_len: 4096  # tokens of one sequence, before cp splits it
  micro_batch_size: 1  # sequences of one microbatch, per data-parallel rank
  # global_batch_size: 8  # sequences per optimizer step; left out: one microbatch on every rank
  lengths: fixed  # fixed, packed, {{mean: 900, max: 4096, seed: 0}}, {{observed: [312, 2048]}}
  sequence_parallel: auto  # auto: where tp > 1
  recompute: full  # none | full | [modules], as far as the framework has them
  pipeline: {{schedule: 1f1b, virtual_stages: 1, layers: auto}}  # used where pp > 1
  loss: auto  # auto: the framework's own
  routing: auto  # how tokens fall on experts: balanced, {{imbalance: 1.3}}, {{seed: 0, draws: 1000}}
  precision: {{params: auto, compute: bf16, grad_reduce: auto, main_grads: auto}}  # auto | fp32 | bf16 | fp16
  optimizer: {{name: adamw, implementation: auto, master: auto, moments: auto}}  # auto: the framework's own
  offload: {{params: none, optimizer: none, gradients: none, activations: none}}  # none | host
  lora: {{rank: 8, alpha: 32, target_modules: auto}}  # used by lora and qlora
  quantization: {{format: nf4, block_size: 64, double_quant: true}}  # used by qlora

framework_options: {{}}  # what only this framework knows, in its own spelling
checkpoint: {{load: auto, save: auto}}  # auto: the framework's own; fsdp2: every_rank, rank0, sharded; full, sharded
environment: {{cublas_workspace_config: auto, expandable_segments: false}}  # variables that change memory
limits: {{usable_memory: auto, max_fill: 1.0}}  # device memory the job may use, and how full it may be

# sweep: {{mesh.dp_shard: [1, 2, 4, 8]}}  # one scenario for each value
"""


def starter_text(name: str, model: str, framework: str, topology: str) -> str:
    """YAML text of a complete scenario file with a comment beside every key, and the given values.

    Values that YAML could read as another type are quoted.
    """
    values = {"name": name, "model": model, "framework": framework, "topology": topology}
    return _TEXT.format(**{key: _quoted(value) for key, value in values.items()})


def expect_readable(text: str, path: str) -> None:
    """Raises InputError if the scenario `text` is wrong; a layout that the framework refuses is accepted.

    `path`: file that the messages name.
    """
    checked = check(parse_scenario(parse_document(text, path)))
    if checked.status == "error":
        raise InputError([Problem(row.where, row.message, row.rule) for row in checked.problems])


def _quoted(text: str) -> str:
    plain = _SAFE.fullmatch(text) and text.lower() not in ("true", "false", "null")
    return text if plain else json.dumps(text, ensure_ascii=False)
