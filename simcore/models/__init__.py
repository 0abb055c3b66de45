"""The architecture of a model: from a Hugging Face `config.json` to a graph of layers with their tensors.

Input: the name of a preset (`presets/*.json`) or a configuration, and the name of an implementation.
Output: a `ModelGraph`: a network of layers, the distinct kinds of layers (`LayerKind`), and for each kind its
`TensorSpec`s (name, shape, dtype, component), unsplit.
Start: `graph.build`; `graph.model_config` finds the configuration.

`network`: the networkx graph: data flow, branches, tied weights, shared blocks; owners are read from its edges.

`blocks`: what layers are made of (attention, latent attention, Mamba-2, MLP, MoE, embedding, head, loss, MTP).
`names`: presets by Hugging Face id and alias. `config`: strict reader of a configuration, and `ModelFamily`, whose
records `families/` fills in and `registry` finds.
`tensor`: one parameter or buffer. `frozen`: parameters frozen by name (`training.frozen`). `flops`: FLOPs a token by
the formula of each framework (for TFLOP/s and MFU). Which tensors exist depends on the implementation: each one lists
them in `operators/<implementation>/tensors.py`.
"""
