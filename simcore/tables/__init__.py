"""Results as rows and columns: tables, files of them, data sets, and questions in SQL.

Input: `Report`s. Output: `Frame`s, CSV and Parquet files, rows of an `Answer`.
Start: `tabulate.table`.

Columns: `fields` (what a result came to), `key_fields` (the keys that make its scenario). Files: `frame_file` (CSV and
Parquet), `data_set` (the folder `data` beside a file of results), `query` (DuckDB over it).
"""
