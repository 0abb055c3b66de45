"""The architecture of a model: from a Hugging Face `config.json` to a graph of layers with their tensors.

Input: the name of a preset (`presets/*.json`) or a configuration, and the name of an implementation.
Output: a `ModelGraph`: layers in running order, the distinct kinds of layers (`LayerKind`), and for each kind its
`TensorSpec`s (name, shape, dtype, component), unsplit.
Start: `graph.build`; `graph.model_config` finds the configuration.

`blocks`: what layers are made of (attention, latent attention, Mamba-2, MLP, MoE, embedding, head, loss, MTP).
`config`: strict reader of a configuration, and `Architecture`, which a family returns. `families/`: one module a model
family. `tensor`: one parameter or buffer. `lora`: what a scenario asks of LoRA. `frozen`: parameters frozen by name
(`training.frozen`). `flops`: FLOPs a token by the formula of each framework (for TFLOP/s and MFU). Which tensors exist
depends on the implementation: each one lists them in `operators/<implementation>/tensors.py`.
"""
