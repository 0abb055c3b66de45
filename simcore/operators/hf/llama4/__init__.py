"""Layers of Llama 4 in transformers 5.23 (`modeling_llama4.py`): attention, and experts that all get every token.

Input: a block, its input and functions for its linears. Output: records on the tape.
Start: `attention.attention`, `experts.moe`; functions of its family in `families` call them.

Most layers turn pairs of a head as complex numbers and see their own chunk of the sequence; every fourth turns nothing
and sees all. A table of complex numbers takes the place of cosines and sines.
"""
