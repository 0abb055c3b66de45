"""Steps of optimizers that hold other memory than Adam's, one module each.

Input: the tensors that a rank updates, in the optimizer's order. Output: bytes held at most, and bytes moved.

Start: `table.STEPS`, which names them; `own_step.py` says what a module gives. `adafactor`: [Note: Adafactor's step].
`projection.py`: shapes of gradients that GaLore and APOLLO project, whose step is in `low_rank.py`.
"""
