"""Measured training runs: what rules of all groups share. A rule turns a row's published configuration into a scenario.

A rule raises `Unsayable` where the configuration is not complete, or is of something that a scenario has no key for.
What a scenario *can* say and the engine cannot model yet is written down all the same: the engine refuses it by name.
Beside each rule stands its vocabulary (`source_row.py`): what may stand in a row, and what it means.
"""

from __future__ import annotations

import hashlib
import math
import re

from source_row import Always, Block, Figure, Number, Opinion, Prose, SourceRow, Unheard, Unread, Unsayable, Words

GIB, MIB = 2**30, 2**20


def converted(run, rule, vocabulary):
    """Our row of a run by a rule and its vocabulary; None for one without memory reading, verdict and time.

    Raises Unheard for words that the vocabulary does not know, and for keys that say something and are not read.
    """
    row = SourceRow(run, vocabulary, run.get("id"))
    return restated(row, rule)


def restated(run, rule):
    """The row that a rule makes of a run."""
    verdict = _verdict(run)
    readings = _readings(run) if verdict == "fits" else []  # what is printed before a run ends is no peak of a step
    step = run["measured"].get("step_time_s") or _from_tokens(run)
    if not (readings or verdict == "oom" or step):
        return None
    made = {"id": run["id"], "group": run["group"], "source": run["source"]}
    try:
        made["scenario"] = rule(run)
        run.check_all_read()
    except Unsayable as reason:
        made["not_modelled"] = str(reason)
    if readings or verdict == "oom":
        made |= {"readings": readings, "verdict": verdict}
    if step is not None:
        made |= {"step_s": step} | _timed(run)
    is_kept_out = step is not None or (run.get("config_group") or "").startswith(LATER)
    return made | (kept_out(run.get("config_group")) if is_kept_out else {})


LATER = "later/"
"""How names of layouts begin that came after the fit of 29 November 2026: all of them are kept out of every fit."""


def kept_out(layout):
    """Mark of a run that is kept out of every fit of times: a third of the layouts, by a hash of their names.

    A layout is model, GPU, degrees (tp, pp, virtual stages, cp, ep), micro batch and precision, so that no equal run of
    another site, round or size is on the other side. A run without such a name (None) is of before the rule: it is not.
    One whose name begins with `LATER` is, whatever its hash.
    """
    if layout and (layout.startswith(LATER) or int(hashlib.sha256(layout.encode()).hexdigest(), 16) % 3 == 0):
        return {"kept_out": True}
    return {}


# ---- words that all groups have -------------------------------------------------------------------------------------
OUTCOMES = Words({"ok": "fits", "completed 12 steps": "fits", "OOM": "oom", "OOM in iteration 1": "oom",
                  "OOM during DTensorPolicyWorker init": "oom",
                  "OOM in optimizer.step Adam state init (3.56 GiB request)": "oom"})
MEASURED = Block({name: Figure() for name in (
    "peak_alloc_gib", "peak_reserved_gib", "device_mem_gib_per_gpu", "max_context_tokens", "step_time_s",
    "tokens_per_s_per_gpu", "tflops_per_gpu")} | {
    "per_rank_max_alloc_mib": Prose(), "per_rank_max_reserved_mib": Prose(), "outcome": OUTCOMES,
    **{name: Unread("another figure of what is read") for name in (
        "mfu", "hfu", "tps_std", "fwd_ms", "bwd_ms", "tokens_per_s_as_printed", "peak_gb_as_printed",
        "peak_alloc_gb_as_printed", "tflops_without_cp", "steady_model_gib", "activation_gib")}})
COMMON = {**{name: Prose() for name in ("id", "group", "config_group", "source", "notes")}, "measured": MEASURED,
          "params": Unread("they follow from the model"), "complete": Opinion({True: True, False: False}),
          **{name: Number() for name in ("gpus", "tp", "pp", "cp", "dp")},
          "vpp": Always(None, 1), **{name: Number(or_none=True) for name in (
              "ep", "etp", "dp_shard", "seq_len", "micro_batch", "global_batch")},
          "config": Block({}, or_none=True), "peft": Always(None)}
"""What a vocabulary begins with; a group's own has the other keys, and what differs."""


# ---- time -----------------------------------------------------------------------------------------------------------
TUNED = ("mbridge-perf-summary", "simumax-b200", "torchtitan", "torchtitan-log", "kempnerforge", "automodel-perf",
         "fms-fsdp", "llm-foundry", "korthikanti", "primus")
"""Groups that are tables of performance. Of Bridge's verification cards those of benchmark recipes are tuned too."""
UNTUNED = ("mbridge-card", "mbridge-skill", "mbridge-est", "automodel-blog", "automodel-docs", "torchtune", "ms-swift",
           "axolotl", "unsloth", "issues", "arctic-training", "peft", "llamafactory", "soup")
OF_RL = ("nemo-rl-perf", "nemo-rl-article", "verl")
"""Groups whose steps generate too."""


def _from_tokens(run):
    """The step of a source that prints tokens a second alone; None where their number is not stated."""
    rate, batches = run["measured"].get("tokens_per_s_per_gpu"), (run["global_batch"], run["seq_len"], run["gpus"])
    return round(batches[0] * batches[1] / batches[2] / rate, 4) if rate and all(batches) else None


def _timed(run):
    """What the time is of, whether somebody made the run fast, and the release of the software."""
    group = run["group"]
    known = (*TUNED, *UNTUNED, *OF_RL)
    if group not in known:
        raise Unheard(f"row {run['id']}: group: unknown word {group!r}; known: {', '.join(known)}")
    card = group == "mbridge-card" and run.told("task") == "pretrain" and "performance" in run["id"]
    part = {"timed": "forward_backward"} if "(fwd+loss+bwd timed)" in run.told("task") else {}
    tuned = "tuned" if group in TUNED or (card and run["config"].get("recipe")) else "untuned"
    made = part | {"kind": "rl" if group in OF_RL else tuned}
    release = _release(run)
    return made | ({"release": release} if release else {})


def _release(run):
    """Bridge names its container or commit; a dated file is of its month; other sources are read at a commit."""
    told = re.match(r"Megatron-Bridge (?:/ NeMo container )?(\S+(?: \d+)?)", run.told("framework"))
    dated = re.search(r"_(20\d{4})_", run["source"])
    commit = re.search(r"@([0-9a-f]{7,})", run["source"])
    found = told or dated or commit
    return found[1] if found else ""


# ---- readings -------------------------------------------------------------------------------------------------------
QUANTITIES = {"peak_alloc_gib": "allocated_peak", "peak_reserved_gib": "reserved_peak",
              "device_mem_gib_per_gpu": "device_peak"}
MAX_GROUPS = ("torchtitan",)
"""Groups whose source prints the maximum over the GPUs; all others print one rank, the first unless their notes say."""
CARDS = {"12 GB class": 11.75, "24 GB class": 23.64, "80 GB class (A100 80GB)": 79.15}
"""GiB that torch says a card of so many GB has: an RTX 3060 (issue 12 of Kunhao-Liu/StyleGaussian), an RTX 4090 and an
A100 (`topologies/`)."""


def _readings(run):
    measured = run["measured"]
    if "max_context_tokens" in measured:
        return [{"of": "device_peak", "rank": 0, "bytes": round(CARDS[run.told("gpu_type")] * GIB)}]
    if "per_rank_max_alloc_mib" in measured:
        return _per_stage(run)
    rank = _rank(run)
    return [{"of": quantity, "rank": rank, "bytes": round(measured[key] * GIB)}
            for key, quantity in QUANTITIES.items() if measured.get(key) is not None]


def _per_stage(run):
    """All ranks were read: the first of each pipeline stage stands for its stage (they agree within a few MiB)."""
    size = run["gpus"] // run["pp"]
    readings = []
    for quantity, key in (("allocated_peak", "per_rank_max_alloc_mib"), ("reserved_peak", "per_rank_max_reserved_mib")):
        readings += [{"of": quantity, "rank": rank, "bytes": round(run["measured"][key][str(rank)] * MIB)}
                     for rank in range(0, run["gpus"], size)]
    return readings


def _rank(run):
    if run["group"] in MAX_GROUPS or "worst rank" in run["notes"]:
        return "max"
    told = re.search(r"rank (\d+) = last", run["notes"])
    return int(told[1]) if told else 0


def _verdict(run):
    """Ran, unless the outcome says otherwise, or the notes do."""
    return "oom" if "OOMed" in run["notes"] else run["measured"].get("outcome", "fits")


# ---- what rules share -----------------------------------------------------------------------------------------------
NANO = "nemotron-3-nano-30b-a3b"
BUCKET = {"bucket_size": 128 * 1024 * 1024}
"""What a Bridge recipe with a `CommOverlapConfig` sets where there is more than one data parallel rank: `training/
comm_overlap.py`, _get_optimizer_overlap_cfgs, at every tag from v0.2.0 on."""


def unsayable(reason):
    """Leave a rule: no scenario can be written."""
    raise Unsayable(reason)


def over(config, **overrides):
    """A model as a preset with other values."""
    return {"config": config, "overrides": overrides}


def degrees(run):
    """Degrees of a row whose keys are counted as they are read."""
    mesh = mesh_of(run)
    run.leave("dp_shard")
    return mesh


def mesh_of(run):
    """`dp` leaves out context parallel ranks, `dp_shard` sometimes counts them; `etp` only with experts."""
    mesh = {"pp": run["pp"], "dp_shard": run["dp"] or run["dp_shard"], "cp": run["cp"], "tp": run["tp"]}
    world = math.prod(size or 1 for size in mesh.values())
    if world != run["gpus"]:
        unsayable(f"the degrees make {world} ranks, on {run['gpus']} GPUs")
    mesh = {axis: size for axis, size in mesh.items() if size and size > 1}
    if run["ep"]:
        mesh["ep"] = run["ep"]
        mesh |= {"etp": run["etp"]} if run["etp"] else {}
    return mesh


def batch(run):
    """Length and batches."""
    made = {"seq_len": run["seq_len"], "micro_batch_size": run["micro_batch"]}
    return made | ({"global_batch_size": run["global_batch"]} if run["global_batch"] else {})


MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "gdn_norm_out",
           "gdp_in_proj", "gdp_qkv", "mhc")
"""Megatron-LM d98e8a64 `transformer_config.py`:1945, recompute_modules."""


class Recomputed:
    """What is recomputed, as the part of `training` that it is.

    `selective [...]` with modules of Megatron's, or `words`.
    """

    def __init__(self, words):
        self.words = Words(words)

    def meaning(self, told):
        listed = re.fullmatch(r"selective \[(.*)\]", told or "")
        if not listed:
            return self.words.meaning(told)
        modules = re.findall(r"[^\s,']+", listed[1])
        for module in modules:
            if module not in MODULES:
                raise Unheard(f"of its modules {module!r} is unknown; known: {', '.join(MODULES)}")
        return {"recompute": modules}
