"""Memory and speed in training logs, one module a format, recognised by what the lines say.

Input: the text of a log. Output: a `Log`, in bytes and seconds, or None. Start: `registry.read_log`. All other lines
are ignored, so mixed logs of several programs and prefixes of launchers do no harm.

`reading`: values that formats produce. `lines`: text cut into lines without colours; prefixes of srun, torchrun and
Ray. `registry`: all formats, and which one is chosen. Formats: `torchtitan`, `megatron` (Megatron-LM and
Megatron-Bridge), `automodel`, `hf_trainer` (the Trainer of transformers), `trl` and `axolotl` (built on it),
`deepspeed`, `nemo_rl`, `verl`. `progress_bar`: step time from tqdm.

[Note: which lines count]
The first line of times is left out if there are others, because it includes one-time work (compilation, autotuning, the
first collectives). The median of the others counts. For memory the highest value counts.
"""
