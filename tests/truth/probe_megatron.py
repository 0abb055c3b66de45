"""Measures cases given as JSON, one per line on standard input or one per argument; prints ``ROW <json>`` lines."""

from oracle import megatron
from oracle.rows import megatron_row
from oracle.worker import serve

if __name__ == "__main__":
    serve(megatron.measure, megatron_row)
