"""Dense layers of NeMo Automodel that torch.compile runs on one by one (nemo-automodel 0.7.0, torch 2.13).

Input: a `Tape`, a layer's workload, its kind and hidden state. Output: the layer's output, on the tape. Start: `layer`.

`distributed.enable_compile` calls `nn.Module.compile` on each decoder layer (`components/distributed/parallelizer.py`,
_apply_per_layer_compile). `layer`: what AOTAutograd keeps and in which order the kernels of a layer run; `linears`:
products with their adapters, split over tp as DTensor's plan does it inside the graph. Measured on a CPU by
`tests/truth/probe_automodel_compiled.py`.
"""
