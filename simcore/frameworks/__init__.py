"""Frameworks: one folder each, with the table of its rules, what it refuses, its hooks and its buffers."""
