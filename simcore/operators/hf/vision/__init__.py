"""Vision towers of transformers models on eager PyTorch: their parameters, and what they allocate and compute.

Input: a part of a tower (`models/vision_blocks.py`) and the workload of a microbatch, with its number of images.
Output: its recording, or with `specs` its tensors. The parts are those of transformers' SigLIP and Gemma 3; in
`class_token` those of LLaVA and InternVL.

Start: `parts.record_part`. A tower whose parameters are frozen is run without a graph: it keeps nothing, and no
gradient reaches it; of a tower that is trained parts keep what their backward needs.

`specs`: parameters in registration order. `parts`: patches, layers, the norm behind them. `projector`: the averaged
and projected patches, put among the embedded tokens. `scatter`: `masked_scatter`, forward and backward.
`rotation`: of query and key.
"""
