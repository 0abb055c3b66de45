"""The engine SGLang of a GRPO recipe: block `policy.generation.sglang_cfg`, which goes to a server of its own.

NeMo RL 7ea279ab `models/generation/sglang/sglang_worker.py` _compute_server_args: which keys SGLang is told, all others
are read by nothing.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.nemo_rl.keys.lengths import read_lengths
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, On, Row, Says, read_rows

__all__ = ["read_sglang"]

_AT: Final = "policy.generation"
_CFG: Final = f"{_AT}.sglang_cfg"
_SERVER: Final = f"{_CFG}.sglang_server_config"
_ONE: Final = {1: "one"}
_TOLD: Final = ("chunked_prefill_size", "max_prefill_tokens", "cpu_offload_gb", "cuda_graph_max_bs", "cuda_graph_bs",
                "disable_cuda_graph_padding")
_ROWS: Final[tuple[Row, ...]] = (
    Says(f"{_CFG}.tp_size", "generation.tp"),
    *(Says(f"{_CFG}.{name}_size", "", idle=_ONE, words={None: None}, what=f"an engine over {what}:")
      for name, what in (("dp", "copies"), ("pp", "stages"), ("ep", "experts"))),
    Says(f"{_CFG}.mem_fraction_static", "generation.gpu_memory_utilization", "number"),
    Says(f"{_CFG}.disable_cuda_graph", "generation.enforce_eager", "flag"),
    Says(f"{_CFG}.kv_cache_dtype", "", "text", idle={"auto": "the model's", "bfloat16": "the model's"},
         words={None: None}, what="a cache in"),
    On(f"{_CFG}.disable_piecewise_cuda_graph", "graphs of prompts in pieces"),
    Idle((f"{_CFG}.dtype",), "the policy's format"),
    Idle((f"{_CFG}.schedule_*", f"{_CFG}.log_level", f"{_CFG}.allow_auto_truncate", f"{_CFG}.random_seed",
          f"{_CFG}.skip_server_warmup", f"{_CFG}.model_path"), "which requests run, or which tokens are drawn"),
    Idle((f"{_SERVER}.*", f"{_CFG}.sglang_router_config.*"), "how requests come to engines on the GPUs that train"),
)


def read_sglang(reader: Reader, draft: Draft) -> None:
    """Writes what the recipe says of SGLang."""
    draft.put("generation.engine", reader.text(f"{_AT}.backend"), "sglang")
    read_lengths(reader, draft, _AT, f"{_CFG}.context_length")
    _read_release(reader, draft)
    running = reader.integer(f"{_CFG}.max_running_requests")
    draft.put("generation.max_num_seqs", running)
    draft.idle(reader.matching(f"{_CFG}.max_running_requests"), "SGLang's own")
    if reader.look(f"{_CFG}.mem_fraction_static") is None:
        draft.fail(draft.path, f"{_CFG}.mem_fraction_static: expected a number (SGLang's own choice is not described)")
        draft.use(reader.take(f"{_CFG}.mem_fraction_static"))
    for name in _TOLD:
        taken = reader.take(f"{_CFG}.{name}")
        if taken is not None and taken.value is not None and taken.value is not False:
            draft.refuse(taken, "a setting of SGLang that is not described")
        else:
            draft.idle(taken, "SGLang's own")
    read_rows(reader, draft, _ROWS)
    draft.idle(reader.matching(f"{_CFG}.*"), "SGLang is not told it")
    draft.idle(reader.matching(f"{_AT}.vllm_cfg.*", f"{_AT}.vllm_kwargs", f"{_AT}.vllm_kwargs.*"),
               "settings of another engine")


def _read_release(reader: Reader, draft: Draft) -> None:
    """Writes where the engine's weights are while the policy trains."""
    offloads, backs = reader.flag(f"{_SERVER}.needs_offload"), reader.flag(f"{_SERVER}.cpu_weight_backup")
    level = 0 if offloads is None or not offloads.value else 1 if backs is not None and backs.value else 2
    draft.infer("generation.sleep_level", level, "enable_memory_saver, enable_weights_cpu_backup", offloads, backs,
                source="NeMo RL 7ea279ab models/generation/sglang/sglang_worker.py:396")
