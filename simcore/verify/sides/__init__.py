"""One module a framework that `rankscope verify` can run: what it is asked, and what the engine says to that.

Input: `Settings` of a job. Output: a `Side`.
Start: `registry.side_of`.

A module has one value, `SIDE`. Its script lies in `verify/real`, which runs in the environment that has the framework
and knows nothing of this package: they meet in JSON. A side lists the keys of a scenario that it translates; every
other key that is not at its default is refused.
"""
