"""The command line: its verbs, tables for a terminal, streams and exit codes."""
