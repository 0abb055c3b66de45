"""SGLang: what an inference engine beside a trainer holds on a rank, and how many tokens its pool has room for.

Input: a `Scenario` with a block `generation` whose engine is sglang, a `Topology`. Output: an `Engine`, which is an
`InferenceEngine` as vLLM's is (`vllm/protocol.py`). Start: `workload.engine_of`, `engine.Engine`.

`engine`: the pool of keys and values, CUDA graphs, what stays while weights and pool are released. `settings`: defaults
by the memory of the device. `workload`: an engine from a scenario, what is refused, and its assumptions. Weights, pages
and decoding are those of `vllm/`: SGLang's linears, heads and experts are cut as vLLM's, from which they come.
"""
