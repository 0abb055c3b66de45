"""Commands that look for a scenario instead of simulating a given one.

    search   the best layouts of a scenario with free keys
    solve    the fewest GPUs, the largest micro batch, the longest sequence of a layout
    tables   tables of what `search` found
"""
