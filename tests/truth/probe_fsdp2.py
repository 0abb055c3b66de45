"""Measures cases given as JSON, one per line on standard input or one per argument; prints ``ROW <json>`` lines."""

from oracle.rows import fsdp2_row
from oracle.steps import run as fsdp2_run
from oracle.worker import serve

if __name__ == "__main__":
    serve(fsdp2_run.measure, fsdp2_row)
