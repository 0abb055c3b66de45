"""Steps of optimizers that hold other memory than Adam's, one module each.

Input: the tensors that a rank updates, in order. Output: bytes held at most, bytes moved.
Start: `table.STEPS`.

`own_step`: what such a module answers. `adafactor`: [Note: Adafactor's step]. `projection`: shapes of
gradients that GaLore and APOLLO project; `low_rank`: [Note: GaLore's step].
"""
