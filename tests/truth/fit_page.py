"""What the fit of step times found, as a page: each factor, the rows it rests on, and errors on rows left out.

    python tests/truth/fit_page.py > docs/calibration.md

Comes in: `measured/fitted.json`, which `fit_time.py --write` made, `measured/left_out.json` of `fit_left_out.py`, and
`measured/judged.json` of `fit_judged.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fit_priors import FACTORS, NUMBERS

MEASURED = Path(__file__).resolve().parent / "measured"
HEAD = """# Calibration

Made by `python tests/truth/fit_page.py`; `python tests/truth/fit_time.py --write` fits anew, and
`python tests/truth/fit_left_out.py` leaves rows out, `python tests/truth/fit_judged.py` tells what `validate` finds.

Every calibrated number of `topologies/efficiency/` is a value known before (its source stands beside it, in
`tests/truth/fit_priors.py`) times the factors below. A factor belongs to a kind of kernel, GPU or host, never to a
row. `spread` is that of a factor's logarithm: what was thought before, and what is left. `rests on` gives the groups
of measured rows that say most about it, with their shares; where there is none, the value is as it was before. Numbers
without a factor are what was known before: rows that were left out came out worse with one.

Rows of one source, model family and machine share what the source leaves unsaid, so n of them count as
n / (1 + 0.3 (n - 1)), and a factor's spread is 0.7 of what was thought (`fit_time.py`, shrinkage)."""
LEFT_OUT = """## Errors on rows that the fit did not see

Median and 90th percentile of the error of a step's time, by configuration. `fitted` is with the rows. For `left out`
the fit is solved again without them: on a straight line through each row, taken anew wherever a row's time moves by
more than 8 %, until no factor moves; the rows are then simulated by it.
`rankscope validate` judges by the first table, where rows of one source, model family and machine are left out
together: they share what a source leaves unsaid. Whole sources and machines are predicted on the lines of the whole
fit, not simulated again. A factor rests on a group alone if the other rows leave at least 90 % of its spread as it
was before, and all rows together less than 80 %. Priors and the model's form were chosen by people who knew the rows,
so all of these flatter it."""
NOTES = """## What is known of this fit

Rows of MLPerf were in no fit before. Before anything was fitted to them it was decided that all of them that are not
kept out enter. A third (by a hash of the layout) is kept out and was first compared when the numbers were written.

Ten parts of the model were changed before a fit, and rows had been seen before each:

- Megatron's loop, `host.step`, was read from golden tests of Megatron-LM. All of these count the zeros of every
  gradient each step, and most take norms of all parameters and log memory and timers; runs for speed do not. What
  they take more is `host.statistics` now. That MLPerf's short steps came out 30 to 55 ms too long was known; the 9 ms
  of other runs are older than those rows.
- TransformerEngine quantises the rows of each expert by a kernel of its own, but for delayed scaling and nvfp4
  (`csrc/extensions/cast.cpp`), and the host issues them one by one. That Nemotron 3 Super, with 64 experts a rank, came
  out too fast was known.

- Pairs of passes hide each other's exchanges of tokens (`overlap_moe_expert_parallel_comm`): the rule is that of
  Megatron-Core's schedule, in the place of a fixed share. That DeepSeek-V3 on GB300 came out too slow was known.
- Steps of rings over many nodes take the time that NCCL counts for them (`simcore/timing/nccl_latency.py`). That runs
  of small models on 256 and 512 GPUs came out 10 to 20 % too fast was known, and that DeepSeek-V3 on thousands of
  GPUs, already too slow, becomes slower.
- Attention over few heads or few tokens is slower, by tiles and waves (`simcore/timing/kernel_efficiency.py`): the rule
  was held to kernels that SimuMax measured. That runs with long sequences came out too slow beside those with short
  ones, and its tensor-parallel runs too fast, was known.
- What products in 4 bits keep of the share in 16 bits is a GPU's own (`fit_priors.py`, FP4_SHARE). That on GB200 those
  in 4 bits were too slow was known.
- HybridEP's permutations and copies to pages have streams of their own (`simcore/timing/exchanges.py`), read from
  Megatron-LM. That DeepSeek-V3 on GB300 was too slow was known; GPT-OSS there, too fast already, becomes faster.
- SimuMax's steps are of a machine of their own (`topologies/dgx-b200-simumax.yaml`), whose products, grouped products
  and attention reach what SimuMax timed of them alone, on that machine: it publishes both. No step of it entered these
  shares, and no factor is fitted to it, so its rows say nothing of other machines any more. That they came out 10 to
  20 % too fast was known, not which way each of them would go: products take those of more than a millisecond, over
  their summed time, a rule that was set before a step was simulated by it. The 21 runs of its table that nobody had
  looked at until then (`source_rows.jsonl`) decided: with a B200's shares 9.6 % in the median and 6 of 21 within 6 %,
  with the machine's own 2.6 % and 19 of 21. A third of them is kept out of every fit, as everywhere.
- Composer gathers the metrics of a batch from all ranks after each step, number by number, into lists with a tensor
  for each rank (`simcore/frameworks/common/llmfoundry.py`, LOGGED). That MPT on 128 to 512 GPUs was too fast, by 0.11
  ms more for each further GPU whatever the model, was known; the constants are older.
- A collective of torch that kernels wait for takes 20 us more than NCCL alone (`in_line`), as SimuMax measured between
  both on a B200. That runs under TP of 4 and 8 were too fast was known; one of them that was too slow becomes slower.

Three parts were changed after the fit, and all numbers stand as they were: the whole fit would move no factor by more
than 0.02. Rows left out are by fits with the new parts.

- Rings of context parallelism are simulated step by step, as TransformerEngine's and torch's own code runs them. That
  runs with rings were too fast was known.
- Norm and product of gradients are timed where torch makes them.
- The share of flash-attention 2 on torchtitan's part of 500 W is that of 700 W less what the limit takes, as of its
  other kernels. That its long sequences were too fast was known; Qwen3 32B there, too slow, becomes slower.

After these fits two more parts were changed, and neither factors nor rows left out were computed anew: ratios of errors
left out are those of the fits before, for the four golden rows with a2a+p2p too, whose scenarios got a key.

- Exchanges of heads (`cp_comm_type: a2a` and `a2a+p2p`) are simulated as TransformerEngine runs them, with copies
  before and behind. That golden tests with a2a+p2p were 32 to 36 % too fast was known; runs with a2a become up to 2 %
  slower.
- torch's memory-efficient attention is 2.56 times as slow for keys wider than 128 (`simcore/timing/
  kernel_efficiency.py`): the difference of two logged runs of one commit, which are kept out of every fit and say
  nothing for it any more. That two other runs of the model were 16 and 17 % too fast was known; they are 3 and 1 %
  too slow.
- Rows of Automodel's benchmark files say which norm runs (`backend.rms_norm: te`, as the files do): since its release's
  default, which casts to fp32 and back, is simulated, they had become up to 6 % slower.

Spreads are narrower than thought and rows of a group count less (`fit_time.py`, shrinkage): a share of 0.7 and an
agreement of 0.3 were chosen with 75 factors, by the loss of groups that were left out.

Then 45 factors were taken away: of products, attention and memory, of 8 bits by GPU, of contention, of the host's
operators. Errors of rows left out, on straight lines through the rows of 29 November 2026 (medians; `loss`: the mean of
the robust loss, by row and by group):

| factors and priors | tuned | 16 bits | 8 and 4 bits | MLPerf | tuned within 15 % | loss, rows | loss, groups |
| --- | --- | --- | --- | --- | --- | --- | --- |
| 75 factors, before | 7.3% | 7.8% | 7.5% | 9.0% | 85.2% | -4.194 | -4.111 |
| and rows as their recipes are, streams of their own | 7.2% | 7.9% | 7.5% | 8.9% | 86.1% | -4.203 | -4.115 |
| and products in 4 bits by isolated ones | 7.1% | 7.9% | 7.1% | 7.8% | 87.2% | -4.221 | -4.146 |
| no factor of attention, of flash-attention 2, of operators | 6.9% | 7.7% | 6.9% | 7.9% | 88.4% | -4.262 | -4.170 |
| and none of products | 6.2% | 7.6% | 6.0% | 6.7% | 89.0% | -4.275 | -4.184 |
| and none of 8 bits by GPU | 6.2% | 7.6% | 6.0% | 6.7% | 89.3% | -4.282 | -4.202 |
| 30 factors | 6.0% | 7.5% | 6.0% | 6.6% | 89.6% | -4.286 | -4.210 |
| with that of operators again | 6.0% | 7.2% | 6.0% | 6.4% | 89.6% | -4.275 | -4.192 |
| without those of grouped products | 6.4% | 8.3% | 6.1% | 6.8% | 89.6% | -4.262 | -4.155 |

Factors were taken away in sets, as long as the loss of groups became less; the medians were seen, so these are a
little too good. Over 4000 draws of groups the loss is less with 30 factors than with 75 in 99 of 100, and without any
one group it is less too. On the 16 configurations that no fit saw medians are 10.0 % with 75 factors and 10.3 % with
30, losses -4.297 and -4.338. What a factor of products told was the machine of one source: B200's was SimuMax's.

The last three of the changes above came after the factors were taken away. Medians of rows left out went from 6.1 %
(tuned) and 7.5 % (16 bits) to 5.1 and 6.2 % with SimuMax's machine and Composer's lists, to 5.0 and 6.0 % with
collectives in line, and to 4.9 and 5.6 % with the 21 added runs; the 16 configurations that no fit saw before, of which
these changes touch few, stayed at 10.3 and came to 10.5 %. On straight lines through the rows as they are now, each
factor that had been taken away was tried again, alone or with its like: with none is the loss of groups, -4.2296, less
(products -4.227, contention -4.228, eager operators -4.228, flash-attention 2 -4.228, the host's operators -4.213).

Two changes were tried and dropped, since rows that were left out became worse. 8 bits by isolated products of each GPU,
as 4 bits: 7.4 % for tuned runs and a loss of groups of -4.139, where it was -4.146. No time of the host for HybridEP's
permutations, which its two calls issue: 7.2 %, -4.140, and Nemotron 8.8 % where it was 7.4 %."""
LINES = """## Lines of `validate`

Errors of step times as `rankscope validate` prints them: by a fit that had not seen a run, beside them those of the
whole fit."""
GROUPS = """## Where tuned runs are off

Groups of tuned runs with errors above 10 % by a fit that had not seen them: how many they are, and the median error
with its sign (above zero: simulated too slow)."""
KEPT_OUT = """## Rows that no fit saw

Layouts that are kept out by the hash of their names, of MLPerf and of rows that came after it, and all rows that came
after this fit (`later_rows.jsonl`, `README.md`): nothing was fitted to them, and no choice of factors made by them.
Steps of `nemo-rl-perf` and `nemo-rl-article` generate too, and are in none of the lines above."""
CAUSES = """## Causes that are known

- **Two kinds of B200**: on SimuMax's machine products of more than a millisecond, in loops, reach 0.49 of the peak with
  their bytes, those of half a millisecond 0.6 and more (4dcaae51 `configs/system/b200_bf16_ceperm.json`): a power cap
  slows what lasts. MLPerf's and Bridge's systems, which vendors tuned, take steps that a share of 0.6 explains. Nothing
  says power or clocks of either, so a B200 is as the many are, and SimuMax's is a machine of its own. What is left of
  its errors is under TP of 8.
- **DeepSeek-V3 on GB300** with a graph of the whole iteration, in Bridge as in MLPerf, is still too slow: the kernels
  of TransformerEngine's grouped MLP are taken to be as fast as others. That passes, permutations and pages hide each
  other was read from Megatron-Core after these rows had been seen too slow.
- **GPT-OSS on B300 and GB300** is too fast, with and without a graph; so is **Nemotron 3 Super on B300**, whose ranks
  have 64 experts, and not on B200, where they have 8.
- **MLPerf's LoRA under TP on H200** is too fast; on L40S and MI300X the rates are assumed, on L40S those of collectives
  between cards too, which are 3.5 of the 5 s of a step that takes 2.9.
- **One configuration, two times.** Bridge 26.02 and 26.02.01 differ by 1.8 for Qwen3-30B on H100 in 8 bits and for
  GPT-OSS on B300: no number is right for both.
- **torchtitan's ring attention over four and eight GPUs of one host** (8B): too fast, not explained. From two to four
  GPUs the time for a token's attention rises by half and stays there; over hosts (405B) it does not. Steps over 1, 4
  and 8 GPUs are 8.4 s and 7.35 s for each further step of the ring, as if each took twice a causal one: the work of a
  ring that is not balanced. Over 2 GPUs it is 4.5 s, of a balanced one, which is torch's default. **405B under TP
  of 8** is too fast since its asynchronous tensor parallelism is simulated, and was right without it.
- **A scale a row in torchtitan's fp8** is 9 to 11 % too fast where one a tensor is at most 6 %. Not in its shares: what
  torch's own kernel of such products loses (most shapes 0 to 10 %, some half; pytorch issue 147971), and that casts by
  columns reach 1.4 of the 2.2 TB/s of others on an H100 (pytorch issue 133242).
- **DeepSeek-V3 16B in torchtitan** with experts over eight GPUs is 12 to 14 % too fast at the 90th step, 8 and 9 % over
  the first ten: its router, which nothing has trained, fills ranks unevenly (tokens/s of one log fall from 9,066 to
  8,240 within 40 steps), and loads are simulated balanced.
- **Qwen3-32B in torchtitan**: runs with FSDP alone over 8 GPUs are too slow, those of other days on 16 and with TP are
  not (d66b72a6a): logs name other machines, and nothing says their power.
- **Steps of GRPO** (NeMo RL) are 2 % too slow to 60 % too fast. Of the parts that an article prints (0.3, four runs on
  H100) generation is 10 to 33 % too fast, most for Qwen3-30B-A3B, whose products of few rows by expert are taken to
  read weights as fast as others; training is 25 to 48 % and log-probabilities are 22 to 56 % too fast: prompts, whose
  length is not printed, would add 3 to 30 % with 120 tokens; refit took 4 to 14 s and takes 0.6 to 2.6 here. On GB200
  whole steps are 11 to 46 % too fast: what its hosts take beside an engine is not published. What Ray takes to start a
  pass over several GPUs, rewards and the step's own bookkeeping (2 to 8 s) are not counted. DeepSeek-V3, whose engines
  span four hosts, is 24 to 60 % too fast.
- **Golden runs whose own steps vary.** Of 184 golden runs with a time of each step, 14 have quartiles that lie a fifth
  of the median apart or more: their median error is 76 %, that of others 6 to 16. Ten of the fifteen worst errors are
  of runs whose quartiles lie 19 to 68 % apart: tests on one host of GB200 (`_1node`), which take 3 to 13 times as long
  as the same tests over two, and two of a cluster (`dgxh100_dgxc`), one of which took a fourteenth elsewhere. Their
  hosts were not theirs alone. They stay in the fit, in which all but one (a fifth) count for 0 to 3 hundredths of a row
  without an error. On the straight lines of c03050cd (`tests/truth/changes_refits.py`), left out, others have a median
  of 8.4 %; without these 14 too, and no factor moves by more than 3 %; with weights by the variance of a run's own
  steps 8.4 %, and Bridge's table 10.8 to 11.3 instead of 10.6. This was looked at before it was decided.
- **Qwen3-30B-A3B under ZeRO-3** (ms-swift) takes 91 s and 3.4 here: in transformers 4 experts are modules, and ZeRO-3
  fetches the 18,432 linears one by one, three times a step. Its loop (`implementation: hf4`) takes 10.8 s without
  packs, which are not served there; the rest would be 1.5 ms of the host for each fetch, which nothing tells.
- **PEFT on an L40S**: LoRA was 46 to 69 % too slow while kernels were counted from memory: tensors of 840 tokens are 5
  MiB, and that card's cache holds 96. Full fine-tuning was 17 % too fast while torch's `foreach` counted as one kernel.
  With the cache and its passes they are 5 % too fast to 15 % too slow.
- **Nemotron 3 Super in Automodel on 64 H100** is 35 % too slow: kernels alone take as long as the printed step, and 2.2
  s are exchanges of tokens over eight hosts. Its file is of later than the release that the table names.
- **Fine-tuning cards of Bridge**: lengths and routing are not told. Those over long packed sequences with CP take 2.4
  (Moonlight) and 18 times (GPT-OSS) as long as simulated, over 20 steps; their layouts and batches are read right."""
ROW = "| {} |"


def page() -> str:
    """The whole page."""
    fitted, left = (json.loads((MEASURED / f"{name}.json").read_text()) for name in ("fitted", "left_out"))
    factors = table(("factor", "value", "spread before", "spread", "rests on", "numbers"),
                    [factor(name, fitted[name]) for name in FACTORS])
    groups = table(("source", "model family", "machine", "configurations", "fitted, median", "left out, median",
                    "left out, worst", "factors that rest on it alone"),
                   [together(found) for found in left["together"]])
    out = [table((what, "configurations", "fitted, median", "left out, median", "left out, 90 %", "bias"),
                 [error(name, found) for name, found in left[key].items()])
           for what, key in (("source", "group"), ("machine", "gpu"))]
    told = json.loads((MEASURED / "judged.json").read_text())
    return "\n\n".join((HEAD, factors, NOTES, LEFT_OUT, groups, *out, LINES, lines(told["lines"]), GROUPS,
                        errors(told["groups"], ("source", "preset", "machine", "format")), KEPT_OUT,
                        errors(told["kept_out"], ("source", "machine")), CAUSES)) + "\n"


def lines(told: list[dict[str, Any]]) -> str:
    """The lines that `validate` judges step times by."""
    return table(("line", "runs", "found", "allowed", "by the whole fit", "kept"), [
        (one["what"].removeprefix("step time, "), str(one["num"]), *(share(one, key) for key in (
            "found", "allowed", "fitted")), "yes" if one["is_kept"] else "no") for one in told])


def share(line: dict[str, Any], key: str) -> str:
    if line[key] is None:
        return ""
    return f"{line[key]:.2f}" if line["what"].endswith("over fitted") else f"{line[key]:.1%}"


def errors(told: list[dict[str, Any]], heads: tuple[str, ...]) -> str:
    """A table of groups of runs, by what they agree in."""
    return table((*heads, "runs", "above 10 %", "median", "bias", "from", "to"), [
        (*one["of"], str(one["num"]), str(one["large"]), f"{one['median']:.1%}",
         *(f"{one[key]:+.1%}" for key in ("bias", "least", "most"))) for one in told])


def together(found: dict[str, Any]) -> tuple[str, ...]:
    alone = f"{len(found['alone'])}: {', '.join(found['alone'])}" if found["alone"] else "0"
    return (found["source"], found["family"], found["machine"], str(found["configurations"]),
            *(f"{found[key]:.1%}" for key in ("fitted", "left_out", "worst")), alone)


def factor(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    rests = ", ".join(f"{group} {share:.0%}" for group, share in found["rows_of"].items())
    rests = rests or "nothing"
    places = {".".join(number.keys) for number in NUMBERS if name in number.factors}
    numbers = (f"{found[key]:.2f}" for key in ("factor", "prior_spread", "spread"))
    return (name, *numbers, rests, ", ".join(sorted(places)))


def error(name: str, found: dict[str, float]) -> tuple[str, ...]:
    return (name, str(found["configurations"]), *(f"{found[key]:.1%}" for key in (
        "fitted_median", "median", "percentile_90")), f"{found['bias']:+.1%}")


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(ROW.format(" | ".join(cells)) for cells in (heads, ("---",) * len(heads), *rows))


if __name__ == "__main__":
    sys.stdout.write(page())
