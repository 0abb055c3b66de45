"""Tensors that pass between layers of Gemma 4 E2B and E4B, apart from the hidden state (transformers 5.23 `gemma4`).

Input: a kind of layer and its workload. Output: what the layer is called with besides, on the tape, and its gradients.
Start: `beside.Beside`, which `implementation` makes for each layer.

`lending`: keys and values that later layers use too. `own_input`: inputs of single layers, slices of one tensor.
"""
