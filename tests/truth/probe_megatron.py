"""Measures cases given as JSON, one per line on standard input or one per argument; prints ``ROW <json>`` lines."""

from oracle import drawn_megatron, megatron
from oracle.rows import drawn_placement_row, megatron_row
from oracle.worker import serve


def measure(case):
    return (drawn_megatron if "preset" in case else megatron).measure(case)


def row(raw):
    return (drawn_placement_row if "preset" in raw["case"] else megatron_row)(raw)


if __name__ == "__main__":
    serve(measure, row)
