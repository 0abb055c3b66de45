"""Measures cases given as JSON, one per line on standard input or one per argument; prints ``ROW <json>`` lines."""

from oracle import automodel
from oracle.rows import automodel_any_row
from oracle.worker import serve

if __name__ == "__main__":
    serve(automodel.measure, automodel_any_row)
