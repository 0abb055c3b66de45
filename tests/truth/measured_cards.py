"""Megatron-Bridge's verification cards: one run of a recipe each, with its time and sometimes its memory.

Memory is printed after iteration 2, before CUDA graphs are captured: they are no part of the reading.
"""

from __future__ import annotations

import json
import re

import measured_bridge
from measured_runs import BUCKET, COMMON, NANO, Recomputed, batch, degrees, over, unsayable
from source_row import Always, Block, Missing, Number, Prose, Unread, Words

COMMITS = {  # whether TransformerEngine is 2.17, and whether the runner sets the recipe's variables
    "f3ae2767b5e1": (True, False), "0e6c1837edeb": (True, False), "619cc20bd3c7": (True, True),
    **dict.fromkeys(("411c6b1dc26e", "4b8a6929348d", "8645cda8738c", "44f3031a2e77", "968ab25dd0e8", "a8038f6d99d8",
                     "6799f099712c", "f3130a0e37c7", "c93251151ade"), (True, True)),
    **dict.fromkeys(("edca4a7d868c", "9b0c2dff42e6", "619a2df1da95", "e79f756196e0", "cc190939aad0", "79308d0d99fb",
                     "fbb7570cf7ee", "d790e32a8865", "0480586879f2", "2e945d0734f2"), (False, True))}
"""By commit of Megatron-Bridge. `uv.lock`: 2.17.0 until 27 July 2026 (a03fccfdb), then 2.18, 2.17.1 from 8 August
(c95e0e65a) to 13 August (b1711263f), 2.18 since. Its cross entropy works in place up to 2.17.1. Variables:
`scripts/training/recipe_runner.py`, apply_environment_variables, since cce495373 (20 July). Five commits are of pull
requests, in no snapshot: 968ab25dd0e8 was verified on 24 July, 9b0c2dff42e6 on 28 July, the others on 4 August."""
FP8_RECIPES = {"fp8_cs": "tensorwise", "fp8_ds": "delayed", "fp8_mx": "mxfp8"}
"""Megatron-Bridge 067f987d `perf_recipes/_common.py`, _perf_precision."""
NO_FAMILY = {name: Missing(f"no model family: {name}") for name in (
    "DeepSeek-V4-Flash", "gemma-4-26b-a4b-it", "glm5-2", "Nemotron-3-Super-120B-A12B", "qwen3.8-27b")}
OSS_120B = over("gpt-oss-20b", num_hidden_layers=36, num_local_experts=128)
LIGHTNING = over(NANO, mtp_num_layers=2, mtp_hybrid_override_pattern="*E", mtp_use_repeated_layer=True)
MODELS = {  # our model, and its name in the performance tables, if it is in them
    "Moonlight-16B-A3B": ("moonlight-16b-a3b", None), "Nemotron-3-Nano-4B": ("nemotron-3-nano-4b", None),
    "Qwen3-8B": ("qwen3-8b", None), "Qwen3-30B-A3B": ("qwen3-30b-a3b", "Qwen3_30B_a3B"),
    "gpt-oss-20b": ("gpt-oss-20b", None), "gpt-oss-120b": (OSS_120B, "GPT OSS 120B"),
    "DeepSeek-V3": ("deepseek-v3", "DeepSeekV3"),
    'Nemotron-3.5-Lightning-30B-A3B (=Nemotron-3-Nano arch + 2 repeated MTP "*E" heads)': (LIGHTNING, None)} | NO_FAMILY
LORA = 32
"""Rank and alpha of a recipe that says neither: 067f987d `peft/lora.py`, LoRA."""
TULU_LENGTH = 571
"""Tokens of packed sequences of tulu3, sum of squares over sum: what FLOPs the card of Lightning's fine-tuning prints
(26.649 GFLOP a token = 26.537 + 196,608 a token of length)."""
BENCHMARKS = ("pretrain_performance", "pretrain_weak_scaling")


class Adam:
    """Adam, with the formats of its parts as JSON behind it. Its meaning: the format of its moments."""

    moments = Words({"bfloat16": "bf16", "float32": "fp32"})

    def meaning(self, told):
        name, _, formats = told.partition(" ")
        Always("adam").meaning(name)
        told = json.loads(formats or "{}")
        for key, value in told.items():
            Always("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype").meaning(key)
            measured_bridge.DTYPES.meaning(value)
        return self.moments.meaning(told.get("exp_avg_dtype", "float32"))


HYBRIDEP = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
FEATURES = {"sequence_packing": Words({"offline": {"lengths": "packed"}}), "context_parallel_size": Unread(
    "restates the layout"), "moe_dispatcher": Unread("restates the dispatcher", Always(
        "hybridep", "deepep", "alltoall")),
    "megatron_fsdp": Unread("restates the task", Always("optim_grads_params"))}
FSDP = Words({"pretrain": False, "sft": False, "sft_long_context": False, "peft": False, "pretrain_fsdp": True,
              "pretrain_weak_scaling": False})
VOCABULARY = COMMON | {
    "model": Words(MODELS), "vpp": Number(or_none=True), "gpu_type": Words(measured_bridge.TOPOLOGY), "task": FSDP,
    "framework": Words({f"Megatron-Bridge {commit}": told for commit, told in COMMITS.items()}),
    "precision": Words({"bf16": None} | FP8_RECIPES), "sharding": Always("zero1", "zero3"),
    "recompute": Recomputed({"none": {}, "full uniform n=1": {"recompute": "full"},
                             # core attention is what Bridge's default recomputes; a fused one keeps nothing of it
                             "selective (default [core_attn])": {}}),
    "peft": Words({None: None, "lora (recipe default rank)": "its own", "lora rank 8": 8, "lora rank 32": 32,
                   "lora rank 8 on linear_qkv+linear_proj": 8}),
    "optimizer": Adam(), "config": Block({
        "recipe": Prose(), "command_overrides": Prose(),
        "sequence_parallel": Unread("Megatron's rule for tensor parallel ranks", Always(None, "True", "False", "true")),
        "cuda_graph": measured_bridge.Graphs(), "mtp_num_layers": Words({None: 0, "1": 1, "2": 2}),
        "dispatcher": Words({
            (None, None): {}, (None, "hybridep"): HYBRIDEP, **{("alltoall", backend): {
                "moe_token_dispatcher_type": "alltoall"} for backend in (None, "hybridep", "deepep")}, **{
                ("flex", name): {
                "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": name} for name in (
                    "hybridep", "deepep")}}),
        "offload_modules": Always(None, "[]"),
        "grad_reduce_fp32": Words({"True": True, "False": False, None: False, "grad_reduce_in_fp32": None}),
        "features": Block(FEATURES, or_none=True)})}


def card(run):
    """The scenario of a card."""
    run["model"]
    table = as_table_row(run)
    if table:
        return _as_of_its_commit(run, measured_bridge.scenario(table))
    if not run["complete"]:
        unsayable("the ten steps include a cold start" if "cold start" in run["notes"] else "batch not stated")
    made = _lightning(run) if run.told("model").startswith("Nemotron-3.5") else _recipe(run)
    return _as_of_its_commit(run, made)


def _as_of_its_commit(run, made):
    """The scenario with the cross entropy and the variables of the run's recipe at the run's commit."""
    recipe, (in_place, sets_variables) = measured_bridge.main_recipe(run["config"]["recipe"]), run["framework"]
    kind = recipe.get("model.cross_entropy_fusion_impl", "native")
    losses = Words({"te": "te_inplace" if in_place else "te", "native": "megatron"})
    fused = recipe.get("model.cross_entropy_loss_fusion", True)
    made["training"]["loss"] = losses.meaning(kind) if fused else "megatron"
    if not fused:
        made["framework_options"]["cross_entropy_loss_fusion"] = False
    made["framework_options"] |= {key: recipe[f"model.{key}"] for key, used in (
        ("cp_comm_type", made["mesh"].get("cp", 1) > 1), ("bias_activation_fusion", True))
        if used and recipe.get(f"model.{key}") is not None}
    return {key: value for key, value in made.items() if key != "environment"} | (
        measured_bridge.allocator(run["config"]["recipe"]) if sets_variables else {})


def as_table_row(run):
    """A card of a benchmark as the performance tables would print it; None for another card."""
    name, precision = run["model"][1], {"bf16": "BF16", "fp8_mx": "MXFP8"}.get(run.told("precision"))
    if not (any(one in run["id"] for one in BENCHMARKS) and name and precision):
        return None
    run.leave(*run)  # the table's rule reads them
    return run.changed(measured_bridge.VOCABULARY, model=name, task="pretrain", config={"recipe": {
        "recipe": run["config"]["recipe"]}}, recompute="none", optimizer="adam", framework=(
            "Megatron-Bridge / NeMo container 26.08"), measured={},
        precision=f"{precision} (bf16 params; FP8=current scaling unless MX)")


def _lightning(run):
    """A hybrid predicts further tokens in Megatron-LM's main branch alone, of which these commits are."""
    config, fsdp = run["config"], run["task"]
    training = batch(run) | _lengths(run) | _adapters(run) | run["recompute"] | {
        "precision": _formats(run), "optimizer": {"name": "adam"}}
    options = {} if fsdp else {"use_precision_aware_optimizer": _is_benchmark(config["recipe"])}
    options |= config["dispatcher"] | _graphs(run)
    if run.told("task") == "pretrain" and run["dp"] > 1:
        options |= BUCKET
    if run["precision"]:
        options["fp8_recipe"] = run["precision"]
        # Bridge 067f987d `perf_recipes/nemotronh/gb200/nemotronh.py`, _build_nemotron_3_5_lightning_gb200_mxfp8
        options["keep_mtp_spec_in_bf16"] = run["precision"] == "mxfp8"
    if run["optimizer"] != "fp32" or config["mtp_num_layers"] != 2:
        unsayable("Lightning with other moments, or with another number of further tokens")
    return {"model": run["model"][0], "framework": "megatron_fsdp" if fsdp else "megatron",
            "framework_version": "main 2026-08-22", "topology": run["gpu_type"],
            "mesh": degrees(run), "training": training, "framework_options": options}


def _recipe(run):
    """What the row restates of its recipe; what it does not is the family's own."""
    config, formats = run["config"], _formats(run)
    moments = {"moments": "bf16"} if run["optimizer"] == "bf16" else {}
    precise = bool(moments) or (run.told("task") == "pretrain" and formats["main_grads"] == "bf16")
    training = batch(run) | _lengths(run) | run["recompute"] | {
        "precision": formats, "optimizer": {"name": "adam"} | moments} | _adapters(run)
    if run["task"] or config["mtp_num_layers"] or run["precision"]:
        unsayable("Megatron-FSDP, further tokens or fp8 in another recipe than Lightning's")
    mesh = degrees(run)
    if run["ep"] and not run["etp"]:
        mesh["etp"] = 1  # tp of them would need more ranks than there are
    options = config["dispatcher"] | _graphs(run) | {"use_precision_aware_optimizer": precise}
    # Alone of these: 067f987d `recipes/moonlight/h100/`.
    if run.told("model").startswith("Moonlight") and run["dp"] > 1:
        options |= BUCKET
    return {"model": run["model"][0], "framework": "megatron", "framework_version": "main 2026-08-22",
            "topology": run["gpu_type"], "mesh": mesh, "training": training, "framework_options": options}


def _is_benchmark(recipe):
    """`..._8gpu_gb200_bf16_config`: the runner switches the precision-aware optimizer on for these."""
    return re.search(r"_\d+gpu_[a-z0-9]+_(bf16|fp8\w*)_", recipe) is not None


def _formats(run):
    """Main gradients are what the recipe reduces in; in Nano 4B's it is an argument: bf16 to pretrain, else fp32."""
    told = run["config"]["grad_reduce_fp32"]
    wide = run.told("task") != "pretrain" if told is None else told
    grads = "fp32" if wide else "bf16"
    return {"compute": "fp8" if run["precision"] else "bf16", "main_grads": grads, "grad_reduce": grads}


def _lengths(run):
    config = run["config"]
    if "sequence_packing" not in config["features"]:
        return {}
    tulu = "--dataset tulu3" in config["command_overrides"]
    return config["features"]["sequence_packing"] | ({"packed_length": TULU_LENGTH} if tulu else {})


def _adapters(run):
    """LoRA as the recipe has it, with the rank that the card says."""
    told = run["peft"]
    if not told:
        return {}
    recipe = measured_bridge.main_recipe(run["config"]["recipe"])
    rank = recipe.get("peft.dim", LORA)
    if told not in (rank, "its own"):
        unsayable(f"the card says rank {told}, its recipe {rank}")
    return {"method": "lora", "lora": {"rank": rank, "alpha": float(recipe.get("peft.alpha", LORA)),
                                       "target_modules": recipe["peft.target_modules"]}}


def _graphs(run):
    told = run["config"]["cuda_graph"]
    if told.get("cuda_graph_impl", "none") == "none":
        return {}
    return {key: value for key, value in told.items() if value}
