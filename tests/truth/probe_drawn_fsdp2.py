"""Measures drawn cases (`draw_fsdp2.py`), given as those of `probe_fsdp2.py`; prints short ``ROW <json>`` lines."""

from oracle.rows import drawn_step_row
from oracle.steps import run as fsdp2_run
from oracle.worker import serve

if __name__ == "__main__":
    serve(fsdp2_run.measure, drawn_step_row)
