"""Printed TFLOP/s and MFU beside printed tokens per second, restated as our own rows.

    python tests/truth/convert_flops.py MEASURED.json

Comes in: the collection of published measurements (a list of runs). Goes out: `flops/GROUP.json`, for every run that
prints tokens/s and TFLOP/s or MFU: the numbers as printed, the model that was run, and by whose convention. What has no
model here gets `not_modelled`, with the reason.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import measured_bridge
from convert_measured import RULES
from measured_torch import kempner_shape
from source_row import SourceRow, Unheard, Unsayable

HERE = Path(__file__).resolve().parent / "flops"
GROUPS = ("mbridge-perf-summary", "mbridge-card", "mbridge-skill", "automodel-perf", "kempnerforge", "llm-foundry")
NANO = "nemotron-3-nano-30b-a3b"


def over(config, **overrides):
    return {"config": config, "overrides": overrides}


LLAMA_405B = over("llama-3-70b", hidden_size=16384, num_hidden_layers=126, num_attention_heads=128,
                  intermediate_size=53248)
QWEN_235B = over("qwen3-30b-a3b", hidden_size=4096, num_hidden_layers=94, num_attention_heads=64,
                 moe_intermediate_size=1536)
GPT_OSS_120B = over("gpt-oss-20b", num_hidden_layers=36, num_local_experts=128)
DEEPSEEK_MTP = over("deepseek-v3", mtp_num_layers=1)
# Until 2026-07-15 Automodel took the hidden size over the heads for the size of a head (its commit 6e5d52b5b).
AUTOMODEL_OSS = {"GPT-OSS 20B": over("gpt-oss-20b", head_dim=45), "GPT-OSS 120B": over(
    "gpt-oss-20b", num_hidden_layers=36, num_local_experts=128, head_dim=45)}
LIGHTNING = over(NANO, mtp_num_layers=2, mtp_hybrid_override_pattern="*E", mtp_use_repeated_layer=True)
SUPER, ULTRA = (over(name, mtp_num_layers=2) for name in ("nemotron-3-super-120b-a12b", "nemotron-3-ultra-550b-a55b"))
MODELS = {
    "LLAMA3_8B": "llama-3-8b", "LLAMA3_70B": "llama-3-70b", "Llama-3-70B": "llama-3-70b", "LLAMA3.1_405B": LLAMA_405B,
    "DeepSeekV3 (w/o MTP)": "deepseek-v3", "DeepSeekV3": DEEPSEEK_MTP, "DeepSeek-V3": DEEPSEEK_MTP,
    "GPT OSS 120B": GPT_OSS_120B, "gpt-oss-120b": GPT_OSS_120B,
    "gpt-oss-20b": "gpt-oss-20b", "Qwen3_30B": "qwen3-30b-a3b",
    "Qwen3-30B": "qwen3-30b-a3b", "Qwen3 MoE 30B": "qwen3-30b-a3b", "Qwen3_235B": QWEN_235B, "Qwen3-8B": "qwen3-8b",
    "Nemotron_3_Nano": NANO, "Nemotron-3-Nano-30B": NANO, "Nemotron V3 Nano": NANO,
    "Nemotron-3-Nano-4B": "nemotron-3-nano-4b", "Nemotron_3_Super": SUPER, "Nemotron-3-Super": SUPER,
    "Nemotron_3_Ultra": ULTRA, "Nemotron V3 Ultra": ULTRA,
    "Nemotron_3_5_Lightning": LIGHTNING, "Nemotron-3.5-Lightning": LIGHTNING, "Moonlight-16B": "moonlight-16b-a3b",
    "DeepSeek-V3 671B": "deepseek-v3", "Qwen2.5 7B": "qwen2.5-7b",
    "Qwen2.5 32B": over("qwen2.5-7b", hidden_size=5120, num_hidden_layers=64, num_attention_heads=40,
                        num_key_value_heads=8, intermediate_size=27648),
}
"""By how the run's name of its model begins; a longer beginning is looked for first."""
MPT = {"1b": (2048, 24, 16), "3b": (2560, 32, 20), "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 48, 56),
       "70b": (8192, 80, 64)}


NO_FAMILY = ("DeepSeekV4 Flash", "DeepSeek-V4-Flash", "gemma-4-26b-a4b-it", "glm5-2", "qwen3.8-27b")


def row(run):
    """Our row of a run; None for one that does not print both. Raises Unheard for words that are not known."""
    vocabulary = measured_bridge.VOCABULARY if run["group"] == "mbridge-perf-summary" else RULES[run["group"]][1]
    SourceRow(run, vocabulary, run["id"])
    printed = run["measured"]
    if not printed.get("tokens_per_s_per_gpu") or not (printed.get("tflops_per_gpu") or printed.get("mfu")):
        return None
    made = {"id": run["id"], "source": run["source"], "gpus": run["gpus"], "gpu": run["gpu_type"].split()[0],
            "precision": run["precision"].split()[0], "tp": run["tp"], "seq_len": run["seq_len"],
            "global_batch": run["global_batch"], "method": run["task"],
            "tokens_per_s_per_gpu": printed["tokens_per_s_per_gpu"], "step_s": printed.get("step_time_s")}
    if run["group"] == "mbridge-perf-summary":
        made["rounded"] = rounded(run)
    made |= {name: printed[name] for name in ("tflops_per_gpu", "mfu") if printed.get(name) is not None}
    try:
        return made | {"convention": convention(run), "model": model(run)}
    except Unsayable as reason:
        return made | {"not_modelled": str(reason)}


def rounded(run):
    """What was rounded before tokens per second were printed: all releases but the dotted ones divide by hundredths."""
    tokens = run["global_batch"] * run["seq_len"] / run["gpus"]
    printed = run["measured"]["tokens_per_s_per_gpu"]
    if printed * run["gpus"] % run["seq_len"] == 0:
        return "samples/s"
    return "hundredths of a second" if abs(tokens / round(tokens / printed, 2) - printed) <= 1.5 else ""


def convention(run):
    """Bridge's releases before 26.06 count as its 0.4 and before do."""
    if run["group"].startswith("mbridge"):
        release = re.match(r"mbridge-(\d\d\.\d\d)", run["id"])
        return "megatron-bridge up to 0.4" if release and release[1] < "26.06" else "megatron"
    if run["group"] == "kempnerforge" and "MoE" not in run["model"]:
        return "llm-foundry"  # its runs of April 2026, by its commit 21248ca, counted in the same way
    return run["group"].removesuffix("-perf")


def model(run):
    """A preset, or one that differs from it in some fields."""
    if run["group"] == "llm-foundry":
        return mpt(run)
    if run["group"] == "kempnerforge":
        return kempner(run)
    name = run["model"]
    if run["group"] == "automodel-perf" and "oss" in name.lower():
        return AUTOMODEL_OSS["GPT-OSS 120B" if "120b" in name.lower() else "GPT-OSS 20B"]
    for beginning in sorted(MODELS, key=len, reverse=True):
        if name.startswith(beginning):
            return MODELS[beginning]
    if name not in NO_FAMILY:
        raise Unheard(f"row {run['id']}: model: unknown word {name!r}; known: {', '.join((*MODELS, *NO_FAMILY))}")
    raise Unsayable(f"no model family: {name}")


def mpt(run):
    """GPT-2's shape, biases too."""
    config = run["config"]
    return over("gpt2", n_embd=config["d_model"], n_layer=config["layers"], n_head=config["heads"],
                vocab_size=config["vocab"], n_positions=run["seq_len"])


def kempner(run):
    """Llama's rule of the feed-forward width: two thirds of 4 x hidden, x 1.3, up to a multiple of 256."""
    moe = re.search(r"MoE E=(\d+) top(\d) \(d(\d+) L(\d+) h(\d+) kv(\d+)", run["model"])
    if moe:
        experts, top, hidden, layers, heads, kv = map(int, moe.groups())
        return over("mixtral-8x7b", num_local_experts=experts, num_experts_per_tok=top, vocab_size=128256,
                    **kempner_shape(hidden, layers, heads, kv))
    size = re.search(r"style (\d+)", run["model"])[1]
    if size not in ("7", "13"):
        raise Unsayable("the shape is in a file of the source that the row does not restate")
    hidden, layers, heads = {"7": (4096, 32, 32), "13": (5120, 40, 40)}[size]
    return over("llama-3-8b", **kempner_shape(hidden, layers, heads, 8))


def main(measured_file):
    """Write one file a group."""
    groups = defaultdict(list)
    for run in json.loads(Path(measured_file).read_text(encoding="utf-8")):
        if run["group"] in GROUPS and (made := row(run)):
            groups[run["group"]].append(json.dumps(made, ensure_ascii=False))
    HERE.mkdir(exist_ok=True)
    for group, lines in sorted(groups.items()):
        (HERE / f"{group}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8", newline="\n")
        print(f"{group}: {len(lines)} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
