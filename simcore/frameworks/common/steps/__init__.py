"""Steps of optimizers that hold other memory than Adam's, one module each.

Input: the tensors that a rank updates, in the optimizer's order. Output: bytes held at most, and bytes moved. Start:
`table.py`, which names them.
"""
