"""vLLM: what an inference engine holds on a rank, how large its KV cache is, how fast it decodes.

Input: a `Scenario` with a `generation` block, a `Topology`. Output: `Engine`, its `Serving` result, or the `Report` of
the workload `serve`. Start: `workload.serve`, `engine.Engine`.

`cache`: KV cache: size of a page and of a block, number of blocks, sequences that fit. `weights`: parameters of a
tensor parallel rank. `quantization`, `quantized/`: weights in 8 and 4 bits. `profile`: the highest moment of vLLM's
profile run. `engine`: memory before, during and after, limits on tokens and sequences. `decode`: seconds of one decoded
token. `parallel`: collectives of tensor parallelism. `adapters`: buffers of LoRA serving. `drafter`, `speculation`:
speculative decoding. `release`: what differs between versions (0.12.0, 0.25.1). `checks`: what it
refuses. `workload`: from a scenario to a report, with its assumptions.
"""
