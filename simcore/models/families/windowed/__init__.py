"""Families whose layers with a window have attention of other sizes than whole layers.

Input: a configuration. Output: its layers. Start: `FAMILY` of a module, by `models/registry.py`.
"""
