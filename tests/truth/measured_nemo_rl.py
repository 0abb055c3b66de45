"""Rows of NeMo RL's performance summary, and of its article on 0.3: the recipe of a printed line, as a scenario.

A line prints model, GPUs, layout, batches, the mean length of what was generated and the time of a whole step; all else
is in the recipes of the release (`recipes/nemo_rl.jsonl`, made by `probe_nemo_recipes.py`), which the page says were
run. Their names follow from what is printed.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

from measured_runs import COMMON, unsayable
from source_row import Always, Block, Number, Prose, Unread, Words

RECIPES = Path(__file__).resolve().parent / "recipes" / "nemo_rl.jsonl"
TAGS = {"0.5": "v0.5.0", "0.6": "v0.6.0"}
"""Releases that have the page, and their tags; v0.7.0 and 7ea279ab repeat the lines of 0.6."""
ARTICLE = ("v0.3.0", ("grpo_math_8B", "grpo_math_8B_megatron", "grpo_math_70B_megatron",
                      "grpo_math_qwen30ba3b_megatron"))
"""Tag of which the article's runs were, and the recipes that it names, or that have the layout it states."""
MACHINES = {"n8g": "dgx-h100", "n4g": "gb200-nvl72"}
"""Machine by the mark of a recipe's name for the GPUs of a host."""
AGENTS = "a step of agents that use tools: what they wait for is not stated"
NAMES = {"LLAMA3.1_8B": "llama3.1-8b-instruct", "DeepSeek V3": "deepseek-v3", "Qwen3-235B": "qwen3-235b",
         "Qwen3-30B3A": "qwen3-30ba3b", "Qwen3-32B": "qwen3-32b", "Nemotron-3-Nano-30B-A3B": "nemotron-nano"}
POLICIES = {"On policy": "", "1-step Off": "-async-1off", "8-step Off": "-async-8off"}
VOCABULARY = COMMON | {
    "model": Words(NAMES), "gpu_type": Words({"DGX-H100": ("n8g", 8), "GB200-NVL72": ("n4g", 4)}),
    "framework": Words({f"NeMo RL {one}": tag for one, tag in TAGS.items()}),
    "task": Words({"GRPO": "grpo", "DAPO": "dapo", "SWE": "swe"}),
    "precision": Words({"Training BF16, Generation BF16": "", "Generation FP8, Training FP8": "-fp8"}),
    "config": Block({
        "policy": Words(POLICIES), "max_seq_len": Number(), "generated": Number(), "generation_tp": Number(),
        "generation_pp": Always(1), "step": Unread("of which it is the mean", Always("5 steps"))})}


BY_ARTICLE = COMMON | {
    "model": Words({"Llama 3.1-8B Instruct": "meta-llama/Llama-3.1-8B-Instruct", "Qwen3 30B-A3B": "Qwen/Qwen3-30B-A3B",
                    "Llama 3.1-70B Base": "meta-llama/Llama-3.1-70B", "Qwen3 32B": "Qwen/Qwen3-32B",
                    "Llama 3.3-70B Instruct": "meta-llama/Llama-3.3-70B-Instruct"}),
    "gpu_type": Words({"DGX-H100": "dgx-h100"}), "framework": Words({"NeMo RL 0.3": ARTICLE[0]}),
    "task": Always("GRPO"), "precision": Always("BF16"),
    "config": Block({"recipe": Words({name: name for name in ARTICLE[1]} | {None: None}), "lacking": Prose(),
                     "step": Unread("of which it is the mean", Always("steps 22-29")),
                     **{phase: Unread("a part of the step") for phase in ("training_s", "refit_s", "generation_s",
                                                                          "logprobs_s")}})}


@cache
def recipes():
    """Recipes by tag and name."""
    lines = RECIPES.read_text(encoding="utf-8").splitlines()
    return {(one["tag"], one["name"]): one for one in map(json.loads, lines)}


def nemo_rl(run):
    """The release's recipe of that name, with sequences of the mean length, as many in a pack as fit on average.

    Lines whose recipe has another layout or batch than is printed are no scenario.
    """
    config, task = run["config"], run["task"]
    if task == "swe":
        unsayable(AGENTS)
    mark, gpus = run["gpu_type"]
    name = f"{task}-{run['model']}-{run['gpus'] // gpus}{mark}{run['precision']}{config['policy']}"
    tag = run["framework"]
    recipe = recipes().get((tag, name)) or unsayable(f"{tag} has no recipe {name}")
    if "reason" in recipe:
        unsayable(f"the recipe {name} of {tag}: {recipe['reason']}")
    made = json.loads(json.dumps(recipe["scenario"]))
    _expect_printed(run, made, name)
    return made | _shortened(made, run["seq_len"])


def article(run):
    """The recipe that the article ran, over the degrees that it prints."""
    config = run["config"]
    if config["recipe"] is None:
        unsayable(config["lacking"])
    recipe = recipes()[run["framework"], config["recipe"]]
    if "reason" in recipe:
        unsayable(f"the recipe {config['recipe']} of {run['framework']}: {recipe['reason']}")
    made = json.loads(json.dumps(recipe["scenario"]))
    degrees = {axis: run[axis] for axis in ("tp", "pp", "cp") if axis in made["mesh"] or run[axis] > 1}
    made["mesh"] |= degrees | {"dp_shard": run["gpus"] // math.prod(degrees.values())}
    made |= {"model": run["model"], "topology": run["gpu_type"]}
    if run["ep"]:
        made["mesh"]["ep"] = run["ep"]
    made["training"]["global_batch_size"] = run["global_batch"]
    return made | _shortened(made, run["seq_len"])


def _expect_printed(run, made, name):
    """Unsayable if the recipe has not what is printed."""
    rl, mesh, config = made["rl"], made["mesh"], run["config"]
    told = {"tp": run["tp"], "cp": run["cp"], "ep": run["ep"], "pp": run["pp"],
            "tokens of the longest sequence": config["max_seq_len"], "sequences of a step": config["generated"],
            "sequences of the optimizer's step": run["global_batch"], "tp of generation": config["generation_tp"]}
    has = {"tp": mesh.get("tp", 1), "cp": mesh.get("cp", 1), "ep": mesh.get("ep") or 1, "pp": mesh.get("pp", 1),
           "tokens of the longest sequence": made["training"]["seq_len"],
           "sequences of a step": rl["prompts"] * rl["generations"],
           "sequences of the optimizer's step": made["training"]["global_batch_size"],
           "tp of generation": made["generation"].get("tp", 1)}
    other = [f"{key} {told[key]} printed, {has[key]} in the recipe" for key in told if told[key] != has[key]]
    if other:
        unsayable(f"the recipe {name} is of another run: {', '.join(other)}")


def _shortened(made, mean):
    """Blocks with sequences of the mean length, up to what context and tensor parallel ranks divide.

    Packs (`sequence_packing`) have as many tokens as the recipe's batch of longest sequences. Engines decode sequences
    of that mean, up to the longest.
    """
    training, mesh, rl = made["training"], made["mesh"], made["rl"]
    cp, tp = mesh.get("cp") or 1, mesh.get("tp") or 1
    multiple = (2 * cp if cp > 1 else 1) * tp
    length = math.ceil(mean / multiple) * multiple
    longest = training["seq_len"]
    ranks = mesh["dp_shard"] * (mesh.get("dp_replicate") or 1)
    fit = _fitting(training.get("micro_batch_size", 1) * longest // length, training["global_batch_size"] // ranks)
    logged = _fitting(rl.get("logprob_batch_size", 1) * longest // length, rl["prompts"] * rl["generations"] // ranks)
    return {"training": training | {"seq_len": length, "micro_batch_size": fit},
            "rl": rl | {"logprob_batch_size": logged, "mean_tokens": math.ceil(mean)},
            "generation": {"max_model_len": longest} | made["generation"]}


def _fitting(most, sequences):
    """The largest batch of at most `most` sequences that divides those of a rank."""
    return next(size for size in range(most, 0, -1) if sequences % size == 0)
