"""The engine of verl's reinforcement learning: block `actor_rollout_ref.rollout`, a server on the same GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, Says, Unmodelled, read_rows
from simcore.recipes.verl.actor import RELEASE, refuse_said, said

__all__ = ["ENGINES", "ROLLOUT", "read_rollout"]

ROLLOUT: Final = "actor_rollout_ref.rollout"
_SERVER: Final = "workers/rollout/vllm_rollout/vllm_async_server.py"
_VLLM: Final = f"{ROLLOUT}.engine_kwargs.vllm"
_SGLANG: Final = f"{ROLLOUT}.engine_kwargs.sglang"
_SGLANG_SERVER: Final = "workers/rollout/sglang_rollout/async_sglang_server.py"
_UTILS: Final = "workers/rollout/vllm_rollout/utils.py"
_UNSENT: Final = f"a switch that is off never reaches vLLM ({_UTILS} build_cli_args_from_config)"
_ONE: Final = {1: "one"}
_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM makes room for (0.12.0 `config/lora.py` MaxLoRARanks)."""
_DEFAULTS: Final = (("tensor_model_parallel_size", "generation.tp", 2),
                    ("max_num_seqs", "generation.max_num_seqs", 256))
"""Whole numbers with their defaults (`trainer/config/_generated_ppo_trainer.yaml`)."""
_ROWS: Final = (
    Says(f"{ROLLOUT}.pipeline_model_parallel_size", "", idle=_ONE, words={None: None}, what="an engine over stages:"),
    Says(f"{ROLLOUT}.data_parallel_size", "", idle=_ONE, words={None: None}, what="an engine over copies:"),
    Says(f"{ROLLOUT}.expert_parallel_size", "", idle=_ONE, words={None: None}, what="an engine over experts:"),
    Says(f"{ROLLOUT}.enforce_eager", "generation.enforce_eager", "flag"),
    Says(f"{ROLLOUT}.dtype", "", "text", idle={"bfloat16": "as it is simulated"}, words={None: None},
         what="an engine in"),
    Says(f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes", "rl.refit_bucket"),
    Says(f"{ROLLOUT}.checkpoint_engine.backend", "", "text", idle={"naive": "the default"}, words={None: None},
         what="weights that are sent by"),
    Says(f"{ROLLOUT}.mode", "", "text", idle={"async": "a server, the only mode"}, words={None: None},
         what="an engine in the mode"),
    Idle((f"{ROLLOUT}.disable_log_stats",), "what is logged"),
    Off(f"{ROLLOUT}.skip_rollout", "sequences from a file"),
    Off(f"{ROLLOUT}.enable_rollout_routing_replay", "replay of the router's choices"),
    Off(f"{ROLLOUT}.mtp.enable", "speculative decoding"),
    Unmodelled((f"{ROLLOUT}.multi_turn.enable",), "turns and tools: a sequence is counted as one answer of full length",
               (None, False)),
    Idle((f"{ROLLOUT}.engine_kwargs.vllm.*", f"{ROLLOUT}.engine_kwargs.sglang.*",
          f"{ROLLOUT}.engine_kwargs.trtllm.*"), "settings of other engines"),
    Idle((f"{ROLLOUT}.over_sample_rate", f"{ROLLOUT}.multi_stage_wake_up"), "no line of the release reads it"),
    Idle((f"{ROLLOUT}.temperature", f"{ROLLOUT}.top_k", f"{ROLLOUT}.top_p", f"{ROLLOUT}.do_sample",
          f"{ROLLOUT}.ignore_eos", f"{ROLLOUT}.seed", f"{ROLLOUT}.repetition_penalty", f"{ROLLOUT}.val_kwargs.*"),
         "which tokens are drawn; every sequence is decoded to its longest"),
    Idle((f"{ROLLOUT}.load_format",), "weights come from the actor before the first step"),
    Idle((f"{ROLLOUT}.calculate_log_probs", f"{ROLLOUT}.logprobs_mode"), "a number for each token"),
    Idle((f"{ROLLOUT}.multi_turn.*", f"{ROLLOUT}.agent.*", f"{ROLLOUT}.trace.*", f"{ROLLOUT}.prometheus.*",
          f"{ROLLOUT}.profiler.*", f"{ROLLOUT}.skip_dump_dir", f"{ROLLOUT}.server.*",
          f"{ROLLOUT}.skip_tokenizer_init", f"{ROLLOUT}.scheduling_policy", f"{ROLLOUT}.mtp.*",
          f"{ROLLOUT}.checkpoint_engine.engine_kwargs.*"),
         "how requests come to the engine, and what is logged"),
)


def read_rollout(reader: Reader, draft: Draft) -> None:
    """Writes the engine."""
    draft.default("rl.trainer", "verl", RELEASE, "the recipe's trainer")
    for name, key, default in _DEFAULTS:
        taken = reader.integer(f"{ROLLOUT}.{name}")
        said(draft, key, taken, taken.value if taken else default)
    share = reader.number(f"{ROLLOUT}.gpu_memory_utilization")
    said(draft, "generation.gpu_memory_utilization", share, share.value if share else 0.5)
    named = reader.text(f"{ROLLOUT}.name")
    ENGINES[named.value if named else "vllm"](reader, draft)
    draft.use(named, why="the engine")
    frees = reader.flag(f"{ROLLOUT}.free_cache_engine")
    level = 0 if frees is not None and not frees.value else 2
    if frees is not None:
        draft.put("generation.sleep_level", frees, level)
    else:
        draft.default("generation.sleep_level", level, RELEASE, f"{_SERVER} sleep")
    _read_adapters(reader, draft)
    for name in ("quantization", "quantization_config_file"):
        refuse_said(reader, draft, f"{ROLLOUT}.{name}", "an engine in few bits")
    read_rows(reader, draft, _ROWS)


# ---- vLLM ------------------------------------------------------------------------------------------------------------
_OF_VLLM: Final = (
    Idle((f"{ROLLOUT}.enable_chunked_prefill",), f"vLLM's default: {_UNSENT}"),
    Unmodelled((f"{_VLLM}.compilation_config.*", f"{ROLLOUT}.cudagraph_capture_sizes"),
               "graphs of the engine are those of its defaults", (None,)),
    Unmodelled((f"{_VLLM}.attention_backend",), "kernels of the engine are not told apart", (None,)),
    Idle((f"{_VLLM}.disable_mm_preprocessor_cache", f"{_VLLM}.limit_mm_per_prompt.*", f"{_VLLM}.swap_space"),
         "inputs of other kinds than text, or memory of the host"),
)


def _read_vllm(reader: Reader, draft: Draft) -> None:
    tokens, caches = (reader.integer(f"{ROLLOUT}.max_num_batched_tokens"),
                      reader.flag(f"{ROLLOUT}.enable_prefix_caching"))
    said(draft, "generation.max_num_batched_tokens", tokens, tokens.value if tokens else 8192)
    draft.infer("generation.prefix_caching", value=True, rule="true, or vLLM's own default: a switch that is off never "
                "reaches it", source=f"{RELEASE} {_UTILS} build_cli_args_from_config")
    draft.idle(caches, f"on in any case: {_UNSENT}")
    read_rows(reader, draft, _OF_VLLM)
    for taken in reader.matching(f"{_VLLM}.*"):
        draft.refuse(taken, "a setting of vLLM that is not described")


def _read_adapters(reader: Reader, draft: Draft) -> None:
    """Writes buffers for the actor's adapter (vllm_async_server.py:350), and how it is gathered."""
    layered, training = reader.flag(f"{ROLLOUT}.layered_summon"), draft.values["training"]
    if training.get("method") != "lora":
        draft.idle(layered, "how adapters are gathered, and there are none")
        return
    said(draft, "rl.layered_summon", layered, bool(layered and layered.value))
    rank = training["lora"]["rank"]
    room = next((most for most in _RANKS if most >= rank), None)
    if room is None:
        draft.fail(draft.path, f"lora_rank must be less than or equal to {_RANKS[-1]}, but got {rank} ({RELEASE} "
                   f"{_UTILS}:77)")
        return
    draft.infer("generation.max_loras", 1, "the actor's adapter", source=f"{RELEASE} {_SERVER}:353")
    draft.infer("generation.max_lora_rank", room, f"the least rank of vLLM's for {rank}",
                source=f"{RELEASE} {_UTILS} get_vllm_max_lora_rank")


# ---- SGLang ----------------------------------------------------------------------------------------------------------
_OF_SGLANG: Final = (
    Says(f"{_SGLANG}.attention_backend", "", "text", idle={"fa3": "the default"}, words={None: None},
         what="kernels of SGLang:"),
    Idle((f"{ROLLOUT}.enable_chunked_prefill", f"{ROLLOUT}.enable_prefix_caching",
          f"{ROLLOUT}.max_num_batched_tokens", f"{ROLLOUT}.cudagraph_capture_sizes"),
         f"verl sends it to other engines alone ({_SGLANG_SERVER} launch_server): SGLang's own defaults"),
)


def _read_sglang(reader: Reader, draft: Draft) -> None:
    draft.infer("generation.engine", "sglang", "rollout.name", reader.text(f"{ROLLOUT}.name"))
    read_rows(reader, draft, _OF_SGLANG)
    for taken in reader.matching(f"{_SGLANG}.*"):
        draft.refuse(taken, "a setting of SGLang that is not described")


ENGINES: Final[Mapping[str, Callable[[Reader, Draft], None]]] = {"vllm": _read_vllm, "sglang": _read_sglang}
"""Engines by `rollout.name`: what each reads of the block."""
