"""The engine of a GRPO recipe: block `policy.generation`."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.nemo_rl.keys.environment import read_variables
from simcore.recipes.nemo_rl.keys.lengths import read_lengths
from simcore.recipes.nemo_rl.keys.switches import read_switches
from simcore.recipes.nemo_rl.sglang import read_sglang
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Says, Unmodelled, key_of, read_rows

__all__ = ["read_generation"]

_AT: Final = "policy.generation"
_VLLM: Final = f"{_AT}.vllm_cfg"
_KWARGS: Final = f"{_AT}.vllm_kwargs"
_DTYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_DRAFTS: Final = f"{_KWARGS}.speculative_config"
_MODULES: Final = ("mtp", "deepseek_mtp")
_ONE: Final = {1: "one"}
_FILTERED: Final = "the policy's logits are sorted and masked as well (algorithms/logits_sampling_utils.py:254): " \
                   "neither memory nor time of it is counted"
_ROWS: Final = (
    Says(f"{_VLLM}.tensor_parallel_size", "generation.tp"),
    Says(f"{_VLLM}.pipeline_parallel_size", "", idle=_ONE, words={None: None}, what="an engine over stages:"),
    Says(f"{_VLLM}.gpu_memory_utilization", "generation.gpu_memory_utilization", "number"),
    Says(f"{_VLLM}.enforce_eager", "generation.enforce_eager", "flag"),
    Says(f"{_VLLM}.enable_prefix_caching", "generation.prefix_caching", "flag"),
    Says(f"{_VLLM}.kv_cache_dtype", "generation.kv_dtype", "text", {"auto": "auto", "fp8": "fp8", "fp8_e4m3": "fp8"},
         what="a cache in"),
    Says(f"{_VLLM}.num_last_layers_in_bf16", "", idle={0: "none"}, words={None: None}, what="last layers in bf16:"),
    Says(f"{_VLLM}.num_first_layers_in_bf16", "", idle={0: "none"}, words={None: None}, what="first layers in bf16:"),
    Idle((f"{_VLLM}.http_refit_*", f"{_VLLM}.zmq_refit_*", f"{_AT}.refit_cfg.*",
          f"{_AT}.real_quant_export_cpu_offload"),
         "settings of other ways to send weights"),
    Idle((f"{_VLLM}.async_engine", f"{_VLLM}.skip_tokenizer_init", f"{_VLLM}.expose_http_server",
          f"{_VLLM}.http_server_*", f"{_VLLM}.reasoning_parser_plugin", f"{_VLLM}.tool_parser_plugin",
          f"{_VLLM}.enable_thinking", f"{_AT}.port_range_*", f"{_AT}.use_async_rollouts"),
         "how requests come to the engine, and ports of its servers"),
    Idle((f"{_VLLM}.*metrics*", f"{_VLLM}.use_tqdm", f"{_AT}._debug_payload_metrics"), "what is logged"),
    Idle((f"{_VLLM}.load_format",), "weights come from the policy before the first step"),
    Idle((f"{_VLLM}.logprobs_mode", f"{_VLLM}.cap_max_tokens_to_context"),
         "every sequence is decoded to max_model_len, and has a number for each token"),
    Idle(tuple(f"{_VLLM}.{name}" for name in ("enable_expert_parallel", "enforce_monotonicity",
                                              "enable_return_routed_experts", "max_num_seqs")),
         "no line of the release reads it here"),
    Idle((f"{_VLLM}.env_vars",), "no variable is set"),
    Idle((f"{_AT}.model_name", f"{_AT}._pad_token_id", f"{_AT}._mtp_weights_from_refit"), "the run sets it itself"),
    Unmodelled((f"{_KWARGS}.moe_backend", f"{_KWARGS}.kernel_config.*",
                f"{_KWARGS}.attention_backend", f"{_KWARGS}.attention_config.*",
                f"{_KWARGS}.disable_custom_all_reduce"), "kernels of the engine are not told apart"),
    Says(f"{_KWARGS}.enable_chunked_prefill", "generation.chunked_prefill", "flag"),
    Says(f"{_KWARGS}.max_num_seqs", "generation.max_num_seqs"),
    Says(f"{_KWARGS}.block_size", "generation.block_size"),
    Says(f"{_KWARGS}.max_num_batched_tokens", "generation.max_num_batched_tokens"),
    Says(f"{_KWARGS}.mamba_ssm_cache_dtype", "generation.ssm_dtype", "text", _DTYPES, what="Mamba's state in"),
    Says(f"{_KWARGS}.mamba_cache_mode", "generation.mamba_cache_mode", "text", {"align": "align", "all": "all"},
         {"none": "the default (vllm/config/cache.py CacheConfig)"}, "Mamba's states for prefixes:"),
    Idle((f"{_KWARGS}.tokenizer",), "which tokens a text becomes"),
    Idle((f"{_KWARGS}.mm_processor_cache_gb", f"{_KWARGS}.skip_mm_profiling",
          f"{_KWARGS}.allowed_local_media_path", f"{_KWARGS}.language_model_only", f"{_KWARGS}.limit_mm_per_prompt.*",
          f"{_VLLM}.limit_mm_per_prompt.*", f"{_VLLM}.video.*",
          f"{_VLLM}.reset_encoder_cache_after_weight_update"), "inputs of other kinds than text"),
    Idle((_KWARGS,), "no further settings"),
    Idle((f"{_VLLM}.distributed_executor_backend",), "how the engine's ranks are started"),
    Idle((f"{_AT}.val_*",), "validation: not part of a step"),
    Unmodelled((f"{_AT}.top_k",), _FILTERED, (None, -1)),
    Unmodelled((f"{_AT}.top_p",), _FILTERED, (None, 1)),
    Idle(tuple(f"{_AT}.{name}" for name in ("temperature", "stop_*", "bad_words")),
         "which tokens are drawn; every sequence is decoded to max_model_len"),
    Idle((f"{_AT}.mcore_generation_config.*", f"{_AT}.sglang_cfg.*", f"{_AT}.trtllm_cfg.*", f"{_AT}.trtllm_kwargs.*",
          f"{_AT}.dynamo_cfg.*"), "settings of other engines"),
)
_ENGINE: Final = "models/generation/vllm/vllm_worker.py"
_FP8: Final = "models/generation/vllm/quantization/fp8.py"


def read_generation(reader: Reader, draft: Draft) -> int:
    """Writes the engine, and returns the GPUs that only generate: 0 where it shares those that train."""
    backend = reader.text(f"{_AT}.backend")
    is_sglang = backend is not None and backend.value == "sglang"
    if backend is not None and backend.value not in ("vllm", "sglang"):
        draft.refuse(backend, f"generation by {backend.value}")
    elif not is_sglang:
        draft.idle(backend, "the default")
    for key in ("quant_cfg", "real_quant", "real_quant_ignore"):
        draft.refuse(reader.take(f"{_AT}.{key}"), "an engine with weights that ModelOpt quantises")
    draft.refuse(reader.take(f"{_AT}.refit_transport"), "weights that are sent in another way than NeMo RL's default")
    draft.refuse(reader.take("policy.refit_buffer_size_gb"), "a buffer of a stated size for the weights that are sent")
    if is_sglang:
        read_sglang(reader, draft)
        read_rows(reader, draft, [row for row in _ROWS if not key_of(row).startswith((_VLLM, _KWARGS))])
        return _read_resources(reader, draft)
    _read_speculation(reader, draft)
    _read_experts(reader, draft)
    for taken in reader.matching(f"{_KWARGS}.compilation_config.*"):
        draft.unmodelled(taken, "graphs of the engine are those of its defaults")
    read_lengths(reader, draft, _AT, f"{_VLLM}.max_model_len", f"NeMo RL 7ea279ab {_ENGINE}:71")
    _read_precision(reader, draft)
    _read_cache(reader, draft)
    read_switches(reader, draft, {f"{_VLLM}.use_deep_gemm": "kernels of the engine are not told apart"})
    read_rows(reader, draft, _ROWS)
    read_variables(reader, draft, _VLLM)
    for taken in reader.matching(f"{_KWARGS}.*"):
        draft.refuse(taken, "a setting of vLLM that is not described")
    return _read_resources(reader, draft)


def _read_experts(reader: Reader, draft: Draft) -> None:
    """Writes whether experts are cut; 7ea279ab vllm_generation.py:134: expert parallel ranks are copies times tp."""
    size, tp = reader.integer(f"{_VLLM}.expert_parallel_size"), reader.look(f"{_VLLM}.tensor_parallel_size")
    if size is None or size.value == 1:
        draft.idle(size, "the default")
    elif isinstance(tp, int) and size.value % tp:
        draft.fail(size.where, "When EP > 1, EP must be a multiple of TP since vLLM's EP = DP * TP [NeMo RL 7ea279ab "
                               "models/generation/vllm/vllm_generation.py:134]")
        draft.use(size)
    elif size.value != (tp or 1):
        draft.refuse(size, f"an engine over experts: {size.value}, of copies")
    else:
        draft.infer("generation.expert_parallel", True, "expert_parallel_size as large as tensor_parallel_size",  # noqa: FBT003
                    size,
                    source=_ENGINE)


def _read_speculation(reader: Reader, draft: Draft) -> None:
    """Writes the tokens that the model's own module drafts; another drafter is refused."""
    method, count = (reader.take(f"{_DRAFTS}.{name}") for name in ("method", "num_speculative_tokens"))
    if method is not None and method.value in _MODULES and count is not None:
        draft.use(method, why="the model's own module of multi-token prediction drafts")
        draft.put("generation.num_speculative_tokens", count)
    else:
        for taken in (method, count):
            draft.refuse(taken, "speculative decoding by another drafter than the model's own module")
    for taken in reader.matching(f"{_DRAFTS}.*"):
        draft.refuse(taken, "speculative decoding of this kind")


def _read_precision(reader: Reader, draft: Draft) -> None:
    """Writes the format of the engine's weights, and the parameters that are left out of it (`fp8.py` init_fp8)."""
    narrow = Says(f"{_VLLM}.precision", "generation.quantization", "text", {"fp8": "fp8"},
                  {"bfloat16": "the format of the policy"}, "an engine in")
    in_exponents = reader.flag(f"{_VLLM}.is_mx")
    is_narrow = reader.look(f"{_VLLM}.precision") == "fp8"
    if in_exponents is None or not in_exponents.value:
        draft.idle(in_exponents, "the default")
        read_rows(reader, draft, (narrow,))
    elif is_narrow:
        draft.infer("generation.quantization", "mxfp8", "is_mx with precision fp8", in_exponents,
                    reader.text(f"{_VLLM}.precision"), source=f"{_FP8}:212")
    else:
        draft.fail(in_exponents.where, f"is_mx=True requires precision='fp8' [NeMo RL 7ea279ab {_FP8}:194]")
        draft.use(in_exponents, reader.take(f"{_VLLM}.precision"))
    kept = reader.words(f"{_VLLM}.quantization_ignored_layer_kws")
    if is_narrow and kept is not None and kept.value:
        draft.put("generation.unquantized", kept)
    else:
        draft.idle(kept, "nothing is left out" if is_narrow else "the engine is in 16 bits")


def _read_cache(reader: Reader, draft: Draft) -> None:
    size = reader.integer(f"{_KWARGS}.kv_cache_memory_bytes")
    if size is not None:
        draft.put("generation.kv_cache_memory", size, f"{size.value} B")


def _read_resources(reader: Reader, draft: Draft) -> int:
    """GPUs that only generate: a part of the only node, or nodes of their own (algorithms/grpo.py setup)."""
    shares = reader.flag(f"{_AT}.colocated.enabled")
    each, nodes = (reader.integer(f"{_AT}.colocated.resources.{name}") for name in ("gpus_per_node", "num_nodes"))
    if shares is None or shares.value:
        draft.put("generation.colocated", shares)
        draft.idle([one for one in (each, nodes) if one], "the engine shares the GPUs that train")
        return 0
    draft.put("generation.colocated", shares)
    draft.use(each, nodes, why="GPUs of the engine")
    if each is None:
        draft.fail(shares.where, "colocated.enabled false: expected resources.gpus_per_node beside it")
        return 0
    gpus, tp = each.value * (nodes.value if nodes else 1), int(draft.values["generation"].get("tp", 1))
    if gpus % tp or gpus < 1:
        draft.fail(each.where, f"{gpus} GPUs that generate are no multiple of tensor_parallel_size {tp}")
        return gpus
    draft.infer("generation.engines", gpus // tp, "GPUs that generate over tensor_parallel_size", *_both(each, nodes),
                source=_ENGINE)
    return gpus


def _both(*taken: Taken[int] | None) -> list[Taken[int]]:
    return [one for one in taken if one is not None]
