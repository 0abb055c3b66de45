"""Measures cases given as JSON, one per line on standard input or one per argument; prints ``ROW <json>`` lines."""

from oracle import automodel, drawn_automodel
from oracle.rows import automodel_any_row, drawn_placement_row
from oracle.worker import serve


def measure(case):
    return (drawn_automodel if "preset" in case else automodel).measure(case)


def row(raw):
    return (drawn_placement_row if "preset" in raw["case"] else automodel_any_row)(raw)


if __name__ == "__main__":
    serve(measure, row)
