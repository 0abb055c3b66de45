"""Golden values of Megatron-LM's functional tests: the rule that turns a case's configuration into a scenario.

The last rank logs. `allocated_peak` is the highest reading of the whole run, `allocated_peak_first` that of iteration 1
(no Adam states before its optimizer step), `allocated_end` what is allocated after the optimizer step, before gradients
are zeroed. Options are written where they differ from Megatron-Bridge's recipes, whose defaults `framework: megatron`
stands for; the overlap switches and the distributed optimizer are always written.
"""

from __future__ import annotations

from golden_words import ARGUMENTS, REFUSED, WORDS
from measured_runs import MODULES
from source_row import (
    Always,
    Block,
    Listed,
    Missing,
    Number,
    Opinion,
    Prose,
    Refused,
    SourceRow,
    Unheard,
    Unread,
    Unsayable,
    Words,
    named,
)

OTHER = "mcore-golden-other"
MODELS = {  # its group, and why it has no scenario
    "gpt": ("mcore-golden-gpt", ""), "moe": ("mcore-golden-moe", ""), "mixtral": ("mcore-golden-moe", ""),
    "hybrid": ("mcore-golden-hybrid", ""), "nemotron": ("mcore-golden-hybrid", ""), "bert": (OTHER, "BERT"),
    "t5": (OTHER, "T5 (encoder and decoder)"), "multimodal-llava": (OTHER, "LLaVA (vision tower)"),
    "mimo": (OTHER, "MIMO (vision tower)")}
"""By folder of the case."""
LOGGED = {"log_num_zeros_in_grad": True}
"""All cases that train say so (Megatron-LM d98e8a64 `tests/functional_tests/test_cases/*/*/model_config.yaml`); the
collection leaves it out."""
TOPOLOGY = {"A100": "dgx-a100", "H100": "dgx-h100", "GB200": "gb200-nvl72"}
RAN_ON = {"mlm:moe/gpt3_mcore_te_tp2_pp1_te_a2a_ovlp_8experts_etp1_ep4/dev": "dgx-h100"}
"""Machines of files whose name has none, and which the collection takes for A100. The losses of this one are, digit for
digit, those of the H100 file of the same case at that time (Megatron-LM f5590597c4, 2025-10-31: 10.77518, 10.78038);
other GPUs have others."""
UNSAYABLE = {
    "reinforcement-learning run (inference memory, offload)":
        "a reinforcement-learning step: rollouts and offload between phases are not stated",
    "teacher model": "distillation with a teacher model beside the student",
    "flextron": "Flextron: several widths of one model in a step",
    "world size not stated": "world size not stated",
    "vocabulary size unknown from the case files": "vocabulary size unknown from the case files",
}
"""What the collection says of a row and no scenario can say; the first of several is told."""
SAYABLE = (*(f"{model} model not covered by the accounting script" for model, (_, told) in MODELS.items() if told),
           "deferred embedding wgrad buffers", "optimizer muon", "fsdp: megatron_fsdp", "expert all-to-all overlap",
           "CUDA graph pools", "fp8", "selective recompute", "TE op fuser", "latent MoE")
"""What it says and a scenario can say."""
UNFUSED = "attention backend auto, which ran unfused: the configuration does not say so"
OTHER_GPU = "values of another GPU's run: the file is an inferred copy"
MEASURING = "a first step in which an older torch.compile measured kernels over copies of the logits: the run's peak"
HELD_AFTER = "states that Megatron-LM of January 2026 held after a resume: later records of the same tests hold none"
INFERRED = (MEASURING, HELD_AFTER, UNFUSED, OTHER_GPU)
"""Reasons that are inferred from readings: such a row has its configuration as it was published."""
OF_MEMORY = (MEASURING, HELD_AFTER)
"""Reasons of memory alone: times are those of the configuration."""
FLAGS = {"peak_matches_unfused_attention": UNFUSED, "a100_file_with_h100_workspaces": OTHER_GPU, **dict.fromkeys((
    "case_not_in_current_recipes", "older_than_nov_2025", "steady_varies", "config_changed_after_golden",
    "resumed_from_checkpoint", "same_bytes_and_loss_as", "world_not_divisible", "copy_of"), "")}
"""Flags of the collection, and why a row that has one has no scenario."""
LATER_LTS = "2025-11-05"
"""Since then tests of the environment lts run in pytorch:25.09-py3. Before (Megatron-LM 23a1dcaf74, removed
docker/Dockerfile.ci.lts), TransformerEngine had no fused attention that is deterministic with dropout: all nine such
files that the collection can account for ran unfused by their peaks. It cannot account for deferred embedding
gradients."""
HELD = "2026-01-15"
"""All six dev H100 files of resumed runs with a tied embedding over stages and without the distributed optimizer that
Megatron-LM ad2ab2ca12 recorded that day read 172 MiB more at the end of a step than the runs that they resume, 8 bytes
a parameter. Four were recorded again (4e85d74ae9, 2026-04-14) and read none of it, nor does any file of another
day."""
LATER_CONTAINER = "2026-05-07"
"""Since then tests of the environment dev run in pytorch:26.04-py3, before in 26.02 (Megatron-LM 5fe3f06658,
docker/.ngc_version.dev); lts stays with 25.09."""
WITHOUT_END = "2026-04-22"
"""Since then NullTokenizer counts no token for the end of a document beside its vocabulary (c9dfe34798)."""


class Flags:
    """Flags without what follows in brackets or behind a colon: the reasons that they are, in order."""

    def meaning(self, told):
        words = Words(FLAGS)
        return [words.meaning(one.partition("(")[0].partition(":")[0]) for one in told]


SWITCH = Words({True: True, False: False})
NEVER = Always(False)
FIELDS = {
    **{name: Number() for name in (
        "opt_instances", "tp", "pp", "cp", "ep", "etp", "seq", "mbs", "hidden", "heads", "groups", "head_dim", "ffn",
        "max_pos", "adrop", "hdrop", "q_lora", "kv_lora", "qk_head_dim", "qk_pos_dim", "v_head_dim", "experts", "topk",
        "moe_ffn", "shared_ffn", "mamba_heads", "mamba_head_dim", "mamba_groups", "mamba_state", "mtp", "moe_latent",
        "vpp", "padded_vocab")}, "layers": Number(or_none=True), "gbs": Number(or_none=True),
    **dict.fromkeys((
        "fp8_param_gather", "dist_opt", "overlap_grad_reduce", "overlap_param_gather", "high_bw", "grad_accum_fusion",
        "sp", "swiglu", "squared_relu", "bias", "qk_layernorm", "untie", "masked_softmax_fusion", "mask_in_loader",
        "bias_gelu_fusion", "deterministic", "mla", "mtp_repeat", "tp_comm_overlap", "a2a_overlap", "op_fuser",
        "defer_embedding_wgrad", "grouped_gemm", "permute_fusion"), SWITCH),
    **dict.fromkeys(("geglu", "qkv_bias", "precision_aware", "acct_embed", "acct_loss", "attention_output_gate",
                     "offload", "shared_gate"), NEVER),
    "impl": Words({"transformer_engine": "transformer_engine", "local": "local"}),
    "dtype": Words({one: one for one in ("bf16", "fp16", "fp32")}), "optimizer": Words({
        "adam": "adam", "muon": "muon"}), "norm": Words({"LayerNorm": "LayerNorm", "RMSNorm": "RMSNorm"}),
    "pos": Words({"learned_absolute": "learned_absolute", "rope": "rope", "none": "none", "mla_rope": "mla_rope"}),
    "attention_backend": Words({one: one for one in ("auto", "flash", "fused", "unfused", "local")}),
    "grad_reduce_dtype": Words({one: one for one in ("fp32", "fp16", "bf16")}),
    "xent_fusion": Words({"native": "megatron", "te": Missing(
        "cross entropy of a TransformerEngine of which it is not stated whether it works in place")}),
    "fsdp": Words({"megatron_fsdp": "megatron_fsdp"}),
    "fp8": Words({"hybrid": "hybrid", "e4m3": "e4m3"}), "fp8_recipe": Words({
        one: one for one in ("tensorwise", "blockwise", "mxfp8", "delayed")}),
    "cuda_graph": Words({"transformer_engine": "transformer_engine", "local": "local"}),
    "cuda_graph_modules": WORDS["cuda-graph-modules"], "dispatcher": Words({
        one: one for one in ("allgather", "alltoall", "flex")}),
    "score_fn": Words({"softmax": "softmax", "sigmoid": "sigmoid"}), "recompute": Always("selective"),
    "recompute_modules": Listed(MODULES), "hybrid_pattern": Prose(), "moe_layer_pattern": Prose(), "pp_layout": Prose(),
    "num_buckets": Refused(REFUSED["ddp-num-buckets"].reason), "optimizer_state_bytes": Block(
        {name: Always(4) for name in ("main", "exp_avg", "exp_avg_sq")}),
    **named(Unread, {
        "the raw argument is read": "router_dtype fsdp_strategy",
        "follows from another field": "grad_fp32 gated param_dtype", "of other models": "dec_seq spec",
        "the padded vocabulary is read": "vocab_div tokenizer vocab vocab_source",
        "small beside everything else": "ln1p rotary_percent rope_fusion softmax_fp32 expert_bias_router router_lb",
        "changes no byte and no kernel": "per_token_loss use_mcore tp_pp_dp_mapping aux_coeff"})}
"""Of `config`, in which one collection restates the arguments of a case."""
READ = ("cp-comm-type", "hierarchical-context-parallel-sizes", "moe-router-dtype", "use-fused-weighted-squared-relu",
        "cuda-graph-warmup-steps", "wgrad-deferral-limit", "data-parallel-sharding-strategy",
        "outer-dp-sharding-strategy", "delay-wgrad-compute", "first-last-layers-bf16", "num-layers-at-start-in-bf16",
        "num-layers-at-end-in-bf16", "moe-router-num-groups", "moe-router-group-topk",
        "no-use-layer-wise-param-layout")
"""Arguments that `config` leaves out and the rule reads."""
GROUPED = ("moe-router-num-groups", "moe-router-group-topk")
RAW = {name: kind if name in READ or isinstance(kind, Unread | Refused) else Unread("`config` restates it", kind)
       for name, kind in ARGUMENTS.items()} | {"tokenizer-type": Unread("`config` restates it", Always(
           "BertWordPieceCase", "HuggingFaceTokenizer", "NullTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer",
           "TikTokenizer", "GPT2BPETokenizer", "${TOKENIZER_TYPE}"))}
VARIABLES = {
    "CUDA_DEVICE_MAX_CONNECTIONS": Unread("queues of the device: no byte and no kernel"),
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": Unread("the case's deterministic mode says it", Always(0, 1, "0", "1")),
    "NVTE_FUSED_ATTN": Unread("allows what is allowed anyway", Always(1)), "CUBLAS_WORKSPACE_CONFIG": Words(
        {":4096:8": {"cublas_workspace_config": ":4096:8"}}), "PYTORCH_CUDA_ALLOC_CONF": Words({
            one: {"expandable_segments": True} for one in (
                "expandable_segments:True", "expandable_segments:True,garbage_collection_threshold:0.8")})}
VOCABULARY = {
    "id": Prose(), "source": Prose(), "case": Prose(), "model": Words(MODELS), "environment": Words(
        {"dev": "dev", "lts": "lts"}), "gpu": Words(TOPOLOGY), "second_run": Opinion({True: True, False: False}),
    "dp": Number(or_none=True), "golden_changed": Prose(), "memory_values_changed": Prose(), "flags": Flags(),
    "not_modelled": Listed({told: told for told in (*UNSAYABLE, *SAYABLE)}), "config": Block(FIELDS),
    "raw_args": Block(RAW), "env_vars": Block(VARIABLES, or_none=True), "measured": Prose(),
    "logging_rank": Always("last (world-1)"), "complete": Opinion({True: True, False: False}), **named(Unread, {
        "dp and the degrees say it": "nodes gpus_per_node world world_source world_inferred_from_steady expert_dp",
        "follows from the other keys": "family platform memory_values_commit"})}


def copied_from(golden):
    """The file that has the same iteration times: the same run, stored twice; "" for none."""
    return next((flag.removeprefix("copy_of:") for flag in golden["flags"] if flag.startswith("copy_of:")), "")


def row(golden):
    """Our row of one golden file. Raises Unheard for words and keys that it does not know."""
    golden = SourceRow(golden, VOCABULARY, golden["id"])
    made = {"id": golden["id"], "group": _apart(*golden["model"], resumed=golden["second_run"]),
            "source": golden["source"]}
    made |= _scenario_or_reason(golden)
    measured = golden["measured"]
    readings = [_reading("allocated_peak", measured["peak_bytes"]), _reading("allocated_end", measured["steady_bytes"])]
    if measured["first_iteration"] == 1:
        readings.append(_reading("allocated_peak_first", measured["peak_iter1_bytes"]))
    return made | {"readings": readings, "verdict": "fits", "step_s": measured["iteration_time_s_median"],
                   "kind": "untuned", "release": f"{golden['environment']} {golden['golden_changed']}"}


def rows(golden):
    """Our rows of one golden file: `row`, or two where a reason is one of memory alone.

    The first then has the time of its scenario, the second (`...:memory`) the readings and the reason. A file that was
    taken for one without fused attention stays one row, as no fit saw its time.
    """
    made = row(golden)
    flagged = any(flag.startswith("peak_matches_unfused_attention") for flag in golden["flags"])
    if made.get("not_modelled") not in OF_MEMORY or flagged:
        return [made]
    names = ("id", "group", "source")
    time = {"step_s": made.pop("step_s"), "kind": made.pop("kind"), "release": made.pop("release")}
    first = {name: made[name] for name in names} | {"scenario": made["as_published"]} | time
    return [first, made | {"id": f"{made['id']}:memory"}]


def _scenario_or_reason(golden):
    reason = _reason(golden)
    if reason and reason not in INFERRED:
        return {"not_modelled": reason}
    try:
        made = scenario(golden)
        golden.leave("not_modelled", "flags", "second_run", "measured")
        golden.check_all_read()
    except Unsayable as told:
        return {"not_modelled": reason or str(told)}
    return {"not_modelled": reason, "as_published": made} if reason else {"scenario": made}


# ---- files that one collection alone has ----------------------------------------------------------------------------
def unfiled(run):
    """A golden file that only the collection of runs has: its YAML as written, defaults are Megatron-LM's own."""
    measured, model = run["measured"], run["source"].split("/test_cases/")[1].partition("/")[0]
    if model not in MODELS or MODELS[model][0] == OTHER:
        raise Unheard(f"row {run['id']}: model: unknown word {model!r}; known: {', '.join(MODELS)}")
    gpu = Words({"GB200 192GB": "GB200", "H100 80GB SXM": "H100", "A100 80GB SXM": "A100"})
    raw = SourceRow(run["config"], ARGUMENTS, run["id"], "config.")
    made = {"id": run["id"], "source": run["source"], "group": MODELS[model][0]}
    made |= {"not_modelled": "world size not stated"} if run["gpus"] is None else _of_yaml(run, raw, model, gpu)
    return made | {
        "readings": [_reading("allocated_peak", measured["peak_alloc_bytes"]),
                     _reading("allocated_end", measured["steady_alloc_bytes"]),
                     _reading("allocated_peak_first", round(measured["first_iter_peak_alloc_gib"] * 2**30))],
        "verdict": "fits", "step_s": measured["step_time_s"], "kind": "untuned"}


def _of_yaml(run, raw, model, gpu):
    golden = SourceRow({
        "id": run["id"], "case": run["model"], "config": _filled(raw), "raw_args": {
            name: value for name, value in run["config"].items() if name in READ}, "dp": run["dp"], "model": model,
        "gpu": gpu.meaning(run["gpu_type"]), "environment": "lts", "memory_values_changed": "",
        "env_vars": _suite_variables(raw), "flags": [], "not_modelled": []}, VOCABULARY, run["id"])
    made = _scenario_or_reason(golden)
    raw.leave(*READ)
    try:
        raw.check_all_read()
    except Unsayable as told:
        return {"not_modelled": str(told)}
    return made


def _suite_variables(raw):
    """The collection leaves variables out; in the other one all deterministic GPT cases and hybrids set this one."""
    sets = raw.get("deterministic-mode") or "hybrid-layer-pattern" in raw
    return {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if sets else {}


def _filled(raw):
    """The configuration of a dense or hybrid case from its YAML: what is left out is Megatron-LM's default.

    Defaults: d98e8a64 `megatron/training/arguments.py`. Without a tokenizer's name the suite gives GPT-2's files. Made
    from the YAMLs of the 298 language models in the other collection, these fields are equal to the ones that it
    lists, but for runs of reinforcement learning, MLA's positions and five vocabularies.
    """
    hidden, heads, tp = raw["hidden-size"], raw["num-attention-heads"], raw["tensor-model-parallel-size"]
    swiglu, biased = bool(raw.get("swiglu")), not raw.get("disable-bias-linear")
    rows = raw.get("make-vocab-size-divisible-by", 128) * tp
    pattern = raw.get("hybrid-layer-pattern") or raw.get("hybrid-override-pattern")
    ssm = {"hybrid_pattern": pattern, "mamba_head_dim": raw.get("mamba-head-dim", 64), "mamba_groups": raw.get(
        "mamba-num-groups", 8), "mamba_state": raw.get("mamba-state-dim", 128)} if pattern else {}
    switches = {name: bool(raw.get(key)) for name, key in SWITCHES.items()}
    grouped = bool(raw.get("group-query-attention"))
    if not raw.get("bf16"):
        raise Unheard("a case that is not in bf16 needs its main gradients' format")
    raw.leave("num-query-groups", "use-mcore-models", "spec", "sequence-parallel", "no-bias-gelu-fusion")
    return switches | ssm | {name: raw.get(key, default) for name, (key, default) in VALUES.items()} | {
        "dtype": "bf16", "grad_reduce_dtype": "fp32", "hidden": hidden, "heads": heads, "tp": tp,
        "groups": raw["num-query-groups"] if grouped else heads, "ep": 1, "etp": tp,
        "head_dim": raw.get("kv-channels", hidden // heads), "swiglu": swiglu, "bias": biased,
        "ffn": raw.get("ffn-hidden-size", int(4 * hidden * 2 / 3 / 64) * 64 if swiglu else 4 * hidden),
        "sp": bool(raw.get("sequence-parallel")) and tp > 1, "padded_vocab": -(-_tokens(raw) // rows) * rows,
        "bias_gelu_fusion": biased and not swiglu, "masked_softmax_fusion": not raw.get("no-masked-softmax-fusion"),
        "grad_accum_fusion": not raw.get("no-gradient-accumulation-fusion"), "mask_in_loader": not raw.get(
            "no-create-attention-mask-in-dataloader"), "mtp_repeat": False, "fp8_param_gather": False}


def _tokens(raw):
    """Tokens before padding: NullTokenizer has one more than its vocabulary up to `WITHOUT_END`, as core 0.16.1 does.

    These files say no date: they are read as of 0.16.1 everywhere.
    """
    return raw.get("tokenizer-type", 50257) or raw["vocab-size"] + 1


SWITCHES = {"dist_opt": "use-distributed-optimizer", "overlap_grad_reduce": "overlap-grad-reduce",
            "overlap_param_gather": "overlap-param-gather", "high_bw": "ddp-pad-buckets-for-high-nccl-busbw",
            "untie": "untie-embeddings-and-output-weights", "squared_relu": "squared-relu",
            "qk_layernorm": "qk-layernorm", "deterministic": "deterministic-mode", "mla": "multi-latent-attention",
            "tp_comm_overlap": "tp-comm-overlap", "a2a_overlap": "overlap-moe-expert-parallel-comm",
            "op_fuser": "use-transformer-engine-op-fuser", "defer_embedding_wgrad": "defer-embedding-wgrad-compute"}
VALUES = {"impl": ("transformer-impl", "transformer_engine"), "optimizer": ("optimizer", "adam"),
          "opt_instances": ("num-distributed-optimizer-instances", 1), "pp": ("pipeline-model-parallel-size", 1),
          "cp": ("context-parallel-size", 1), "seq": ("seq-length", None), "mbs": ("micro-batch-size", None),
          "gbs": ("global-batch-size", None), "layers": ("num-layers", None),
          "max_pos": ("max-position-embeddings", None),
          "norm": ("normalization", "LayerNorm"), "pos": ("position-embedding-type", "learned_absolute"),
          "adrop": ("attention-dropout", 0.1), "hdrop": ("hidden-dropout", 0.1),
          "attention_backend": ("attention-backend", "auto")}


def _reading(quantity, num_bytes):
    return {"of": quantity, "rank": "last", "bytes": num_bytes}


def group_of(model, *, resumed):
    """Group of a case in the folder `model`. Runs that resumed from a checkpoint are apart: their peak includes it."""
    return _apart(*MODELS[model], resumed=resumed)


def _apart(group, _reason, *, resumed):
    return "mcore-golden-resumed" if resumed and group != OTHER else group


def _reason(golden):
    _, other = golden["model"]
    if other:
        return f"no model family: {other}"
    for said, told in UNSAYABLE.items():
        if said in golden["not_modelled"]:
            return told
    reasons = (*golden["flags"], *(reason for reason, holds in OLDER.items() if holds(golden)))
    return next((told for told in INFERRED if told in reasons), "")


def _measured_kernels(golden):
    """Cross entropy fused by torch.compile, recorded on A100 before `LATER_LTS`.

    Inductor clones what a kernel changes whenever it times one (torch 2.2 `_inductor/triton_heuristics.py`, `bench`;
    2.13 `runtime/triton_heuristics.py`:1237 copies to the host first). All six such files have a peak in their first
    step that no later one passes, although Adam's states come after it: 394 MiB, a copy of the logits in 32 bits, lie
    between those of the two containers.
    """
    fused = golden["config"].get("xent_fusion") == "megatron"
    return fused and golden["gpu"] == TOPOLOGY["A100"] and "" < golden["memory_values_changed"] < LATER_LTS


def _held_after_resume(golden):
    of_then = golden["memory_values_changed"] == HELD and golden["environment"] == "dev"
    on_h100 = golden["gpu"] == TOPOLOGY["H100"]
    config = golden["config"]
    tied_over_stages = config["pp"] > 1 and not config["untie"]
    return bool(of_then and on_h100 and golden["second_run"] and tied_over_stages and not config["dist_opt"])


def _had_no_fused_attention(golden):
    """Deterministic attention with dropout, whose implementation TransformerEngine chose, in the lts of that time."""
    config = golden["config"]
    old = golden["environment"] == "lts" and "" < golden["memory_values_changed"] < LATER_LTS
    chosen = config["impl"] == "transformer_engine" and config["attention_backend"] == "auto"
    return bool(old and chosen and config["deterministic"] and config["adrop"])


OLDER = {MEASURING: _measured_kernels, HELD_AFTER: _held_after_resume, UNFUSED: _had_no_fused_attention}
"""What software of a day did, by the reason; of several the first in `INFERRED` is told."""


def scenario(golden):
    """The scenario of a case: what ran, how it was laid out, how it was trained."""
    config = golden["config"]
    return {"model": _model(config, golden["raw_args"]), "framework": config.get("fsdp", "megatron"),
            **_version(golden), "topology": RAN_ON.get(golden["id"], golden["gpu"]), "mesh": _mesh(golden),
            "training": _training(config),
            "framework_options": _options(config) | _graphs(golden) | _context(golden) | LOGGED, **_environment(golden)}


def _version(golden):
    """A `|` in a hybrid's pattern is a word of versions after core 0.16.1; their container is a later one too."""
    later = golden["environment"] == "dev" and golden["memory_values_changed"] >= LATER_CONTAINER
    later |= "|" in golden["config"].get("hybrid_pattern", "")
    return {"framework_version": "main 2026-08-22"} if later else {}


# ---- model ----------------------------------------------------------------------------------------------------------
def _model(config, raw):
    """A hybrid, DeepSeek (latent attention, RMSNorm, SwiGLU), or GPT-2 with changes.

    The vocabulary is the padded one, which is what is stored.
    """
    if config.get("hybrid_pattern"):
        _same(raw, **dict.fromkeys(GROUPED, (1,)))
        return _hybrid(config)
    latent = config["mla"] and config["norm"] == "RMSNorm" and config["swiglu"] and not config["bias"]
    return _deepseek(config, raw) if latent else _gpt(config)


def _gpt(config):
    """GPT-2 has biases, LayerNorm, learned positions and GELU; what else a case has is written in Megatron's words."""
    overrides = {"n_embd": config["hidden"], "n_layer": config["layers"], "n_head": config["heads"],
                 "n_inner": config["ffn"], "n_positions": config["max_pos"], "vocab_size": config["padded_vocab"],
                 "tie_word_embeddings": not config["untie"]}
    overrides |= {"attn_pdrop": config["adrop"], "resid_pdrop": config["hdrop"], "embd_pdrop": config["hdrop"]}
    changes = {  # key: (as it ran, as GPT-2 has it)
        "normalization": (config["norm"], "LayerNorm"), "add_bias_linear": (config["bias"], True),
        "position_embedding_type": (config["pos"], "learned_absolute"),
        "activation_function": ("relu2" if config["squared_relu"] else "gelu", "gelu"),
        "swiglu": (config["swiglu"], False), "qk_layernorm": (config["qk_layernorm"], False),
        "num_query_groups": (config["groups"], config["heads"]), "multi_latent_attention": (config["mla"], False),
        "mtp_num_layers": (config.get("mtp", 0), 0)}
    overrides |= {key: ran for key, (ran, usual) in changes.items() if ran != usual}
    if config["mla"]:
        overrides |= _latent(config)
        config.leave("head_dim")
    elif config["head_dim"] * config["heads"] != config["hidden"]:
        raise Unsayable("heads that are not as wide together as the model")
    return {"config": "gpt2", "overrides": overrides | (_gpt_experts(config) if config.get("experts") else {})}


def _gpt_experts(config):
    """Some cases have dense layers first (moe-layer-freq), and a router by sigmoid."""
    dense = config.get("moe_layer_pattern", "").count("0")
    score = config.get("score_fn", "softmax")
    return _experts(config) | ({"first_k_dense_replace": dense} if dense else {}) | (
        {"moe_router_score_function": score} if score != "softmax" else {})


def _deepseek(config, raw):
    """Groups of experts are of the case too: the preset's 4 of 8 are another model's."""
    pattern = config["moe_layer_pattern"]
    _same(config, layers=(None, len(pattern)), qk_layernorm=(True,), pos=("mla_rope",), score_fn=("sigmoid",),
          squared_relu=(False,), adrop=(0,), hdrop=(0,))
    config.leave("groups", "head_dim")
    overrides = {
        "hidden_size": config["hidden"], "vocab_size": config["padded_vocab"], "intermediate_size": config["ffn"],
        "num_hidden_layers": len(pattern), "first_k_dense_replace": pattern.count("0"),
        "num_attention_heads": config["heads"], "num_key_value_heads": config["heads"], **_latent(config),
        "n_routed_experts": config["experts"], "num_experts_per_tok": config["topk"],
        "moe_intermediate_size": config["moe_ffn"],
        "n_shared_experts": config.get("shared_ffn", 0) // config["moe_ffn"],
        "n_group": raw.get("moe-router-num-groups", 1), "topk_group": raw.get("moe-router-group-topk", 1),
        "tie_word_embeddings": not config["untie"], "max_position_embeddings": config["max_pos"]}
    if config.get("mtp"):
        overrides["mtp_num_layers"] = config["mtp"]
    return {"config": "deepseek-v3", "overrides": overrides}


def _same(config, **known):
    """Unsayable where a field is not as the preset has it, which is what is simulated."""
    for name, values in known.items():
        if name in config and config[name] not in values:
            raise Unsayable(f"{name} {config[name]} in a model whose preset has {values[-1]}")


def _latent(config):
    return {"q_lora_rank": config["q_lora"], "kv_lora_rank": config["kv_lora"],
            "qk_nope_head_dim": config["qk_head_dim"], "qk_rope_head_dim": config["qk_pos_dim"],
            "v_head_dim": config["v_head_dim"]}


def _experts(config):
    return {"n_routed_experts": config["experts"], "num_experts_per_tok": config["topk"],
            "moe_intermediate_size": config["moe_ffn"],
            "moe_shared_expert_intermediate_size": config.get("shared_ffn", 0)}


def _hybrid(config):
    """Megatron's Mamba layers without a head count have 2 x hidden / head_dim heads (`ssm/mamba_mixer.py`)."""
    pattern, *heads = config["hybrid_pattern"].replace("|", "").split("/")
    overrides = {
        "hidden_size": config["hidden"], "vocab_size": config["padded_vocab"], "intermediate_size": config["ffn"],
        "tie_word_embeddings": not config["untie"], "num_attention_heads": config["heads"],
        "num_key_value_heads": config["groups"], "head_dim": config["head_dim"],
        "max_position_embeddings": config["max_pos"], "hybrid_override_pattern": pattern,
        "num_hidden_layers": len(pattern), "n_groups": config["mamba_groups"],
        "mamba_num_heads": config.get("mamba_heads", 2 * config["hidden"] // config["mamba_head_dim"]),
        "mamba_head_dim": config["mamba_head_dim"], "ssm_state_size": config["mamba_state"]}
    if config.get("experts"):
        overrides |= _experts(config)
    _same(config, layers=(None, len(pattern)), mtp=(len(heads),), mla=(False,), qk_layernorm=(False,))
    if config["norm"] == "RMSNorm":
        _same(config, score_fn=("sigmoid",), pos=("none",), adrop=(0,), hdrop=(0,), bias=(False,), squared_relu=(True,))
    else:
        overrides |= {"normalization": config["norm"], "add_bias_linear": config["bias"],
                      "mlp_hidden_act": _activation(config), "position_embedding_type": config["pos"],
                      "hidden_dropout": config["hdrop"], "attention_dropout": config["adrop"]}
    if heads:
        overrides |= {"mtp_num_layers": len(heads), "mtp_hybrid_override_pattern": heads[0],
                      "mtp_use_repeated_layer": config["mtp_repeat"]}
    return {"config": "nemotron-3-nano-30b-a3b", "overrides": overrides}


def _activation(config):
    return "silu" if config["swiglu"] else "relu2" if config["squared_relu"] else "gelu"


# ---- layout ---------------------------------------------------------------------------------------------------------
def _mesh(golden):
    config, dp = golden["config"], golden["dp"]
    mesh = {"pp": config["pp"], "dp_replicate": config["opt_instances"], "dp_shard": dp // config["opt_instances"],
            "cp": config["cp"], "tp": config["tp"]}
    mesh = {axis: size for axis, size in mesh.items() if size > 1}
    if config.get("experts"):
        mesh |= {"ep": config["ep"], "etp": config["etp"]}
    elif config["ep"] != 1:
        raise Unsayable("expert parallel ranks without experts")
    config.leave("etp")
    return mesh


def _training(config):
    made = {"seq_len": config["seq"], "micro_batch_size": config["mbs"], "global_batch_size": config["gbs"],
            "sequence_parallel": config["sp"], "loss": config.get("xent_fusion", "megatron")}
    if config.get("recompute_modules"):
        made["recompute"] = config["recompute_modules"]
    segments = config.get("hybrid_pattern", "").partition("/")[0].split("|")
    chunks = config.get("vpp") or max(1, len(segments) // config["pp"])
    if chunks > 1:
        made["pipeline"] = {"virtual_stages": chunks}
    if len(segments) > 1:
        made.setdefault("pipeline", {})["layers"] = [len(segment) for segment in segments]
    compute = "fp8" if config.get("fp8") else config["dtype"]
    grads = config["grad_reduce_dtype"]
    made["precision"] = {"compute": compute, "main_grads": grads, "grad_reduce": grads}
    if compute == "fp8" and config["dtype"] == "fp32":  # neither --bf16 nor --fp16: all but the linears is in fp32
        made["precision"]["params"] = "fp32"
    # Later versions say dist_muon as muon with the distributed optimizer; a layout of its buffers came later still.
    made["optimizer"] = {"name": "dist_muon" if _is_layer_wise(config) else config["optimizer"]}
    return made


def _is_layer_wise(config):
    return config["optimizer"] == "muon" and config["dist_opt"]


def _context(golden):
    """What only the YAML says: how attention crosses context parallel ranks, and the router's format."""
    kind, router = (golden["raw_args"].get(name) for name in ("cp-comm-type", "moe-router-dtype"))
    crosses = {} if kind in (None, "p2p") else {"cp_comm_type": kind}
    if kind == "a2a+p2p":
        crosses["hierarchical_context_parallel_sizes"] = golden["raw_args"]["hierarchical-context-parallel-sizes"]
    if golden["config"]["squared_relu"] and golden["config"].get("experts"):
        crosses["use_fused_weighted_squared_relu"] = bool(golden["raw_args"].get("use-fused-weighted-squared-relu"))
    if _is_layer_wise(golden["config"]):  # the others were read before there was a layout
        crosses["use_layer_wise_param_layout"] = golden["case"].endswith("_param_layout")
        golden["raw_args"].leave("no-use-layer-wise-param-layout")  # newer than the golden values of its case
    if golden["raw_args"].get("delay-wgrad-compute"):
        crosses["delay_wgrad_compute"] = True
    limit = golden["raw_args"].get("wgrad-deferral-limit")
    crosses |= {"wgrad_deferral_limit": limit} if limit else {}
    return crosses | ({"moe_router_dtype": router} if router else {}) | _sharded(golden) | _fp8(golden)


def _sharded(golden):
    """Megatron-FSDP's own arguments. All its cases say `--log-params-norm: true`, which the collection leaves out."""
    if not golden["config"].get("fsdp"):
        golden["raw_args"].leave("data-parallel-sharding-strategy")  # Megatron-FSDP's own
        return {}
    raw = golden["raw_args"]
    outer = {"outer_dp_sharding_strategy": raw["outer-dp-sharding-strategy"]} if "outer-dp-sharding-strategy" in raw \
        else {}
    return {"data_parallel_sharding_strategy": raw["data-parallel-sharding-strategy"], "log_params_norm": True} | outer


def _graphs(golden):
    """What is captured, by the name that the version has for it."""
    config, warm = golden["config"], golden["raw_args"].get("cuda-graph-warmup-steps")
    if "cuda_graph" not in config:
        return {}
    name = "cuda_graph_modules" if _version(golden) else "cuda_graph_scope"
    return {"cuda_graph_impl": config["cuda_graph"], name: config["cuda_graph_modules"]} | (
        {} if warm is None else {"cuda_graph_warmup_steps": warm})


def _fp8(golden):
    """Megatron-LM's own defaults differ from Bridge's presets, so all that decides bytes is written."""
    config, raw = golden["config"], golden["raw_args"]
    if not config.get("fp8"):
        return {}
    made = {"fp8_format": config["fp8"], "fp8_recipe": config["fp8_recipe"],
            "fp8_param_gather": config["fp8_param_gather"],
            "first_last_layers_bf16": bool(raw.get("first-last-layers-bf16"))}
    counts = {name: raw[name.replace("_", "-")] for name in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
              if name.replace("_", "-") in raw}
    return made | counts


def _environment(golden):
    """Variables of a case that change memory."""
    told = golden["env_vars"]
    found = told.get("CUBLAS_WORKSPACE_CONFIG", {}) | told.get("PYTORCH_CUDA_ALLOC_CONF", {})
    return {"environment": found} if found else {}


def _options(config):
    fused = "xent_fusion" in config
    wanted = {  # option: (as it ran, as Megatron-Bridge's recipes have it)
        "transformer_impl": (config["impl"], "transformer_engine"),
        "attention_backend": (config["attention_backend"], "auto"),
        "deterministic_mode": (config["deterministic"], False),
        "masked_softmax_fusion": (config["masked_softmax_fusion"], True),
        "cross_entropy_loss_fusion": (fused, True),
        "gradient_accumulation_fusion": (config["grad_accum_fusion"], True),
        "create_attention_mask": (config["mask_in_loader"], False),
        "bias_activation_fusion": (config["bias_gelu_fusion"] or not config["bias"], True),
        "tp_comm_overlap": (config["tp_comm_overlap"], False),
        "overlap_moe_expert_parallel_comm": (config["a2a_overlap"], False),
        "defer_embedding_wgrad_compute": (config["defer_embedding_wgrad"], False),
        "use_transformer_engine_op_fuser": (config["op_fuser"], False),
        "ddp_pad_buckets_for_high_nccl_busbw": (config["high_bw"], False),
        "pipeline_model_parallel_layout": (_unquoted(config.get("pp_layout")), None),
        "moe_latent_size": (config.get("moe_latent"), None),
        "moe_grouped_gemm": (config.get("grouped_gemm", True), True),
        "moe_permute_fusion": (config.get("permute_fusion", True), True),
    }
    made = {"use_distributed_optimizer": config["dist_opt"] and not _is_layer_wise(config),
            "overlap_grad_reduce": config["overlap_grad_reduce"]}
    if made["use_distributed_optimizer"]:
        made["overlap_param_gather"] = config["overlap_param_gather"]
    if config.get("experts"):
        made["moe_token_dispatcher_type"] = config["dispatcher"]
    return made | {name: ran for name, (ran, default) in wanted.items() if ran != default}


def _unquoted(layout):
    """A case quotes the signs that a shell would read: `(tt\\|)`."""
    return layout and layout.replace("\\", "")
