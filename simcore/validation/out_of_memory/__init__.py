"""Texts of runs that ran out of memory: torch's error in all its forms, with or without a traceback, and others'.

Input: a text such as a job's log. Output: an `OutOfMemory` for each message of torch's allocator, and a `Told` for each
kind of other text. Start: `message.read_messages`, `other_texts.read_others`.

`message`: the sizes that torch's message names. `traceback`: stack frames before it, and the phase of a step that they
tell. `block`: sizes that torch's allocator asks the driver for. `other_texts`: CUDA, NCCL, cuBLAS, vLLM, Ray, Slurm and
the kernel of the host.
"""
