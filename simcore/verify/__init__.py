"""The engine's answer about one rank beside what the real framework does with it, on a machine without a GPU.

Input: a `Scenario`. Output: `Verified`: placement tensor by tensor, collectives one by one, bytes; or the first
difference.
Start: `verify.verify`.

`sides/` has a module a framework: what it is asked, what the engine says to that. `real/` has the scripts that ask it:
they run in an environment of their own (`environment`, from `pins/`), know nothing of this package and are never
imported here; `ask` sends them JSON and reads JSON. `settings`: a key that a script is not told is refused. `shrink`:
fewer layers and microbatches on both sides. `found`, `compare`: the values that both sides give. The probes of
`tests/truth/` import the same scripts.
"""
