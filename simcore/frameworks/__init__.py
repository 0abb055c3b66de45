"""One file per framework: a table of rules for one job, and functions for what no table can say."""
