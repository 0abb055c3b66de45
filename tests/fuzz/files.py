"""Files and words that are mutated: what is drawn of each kind, and the command that it is given to."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any, Final

from fuzz import seeds
from fuzz.case import PIPE, Input, Tree
from fuzz.commands import LINES
from fuzz.drawing import drawn_layout
from fuzz.models import configuration, drawn_model, shortened
from fuzz.mutations import EXTREMES, extremes_of_schema, mutated_bytes, mutated_tree, with_value
from simcore.models.graph import known_presets

__all__ = ["arguments", "extreme", "measured", "model", "readings", "results", "scenario", "settings", "topology"]

FILE: Final = "f.yaml"
_COMMANDS: Final = (
    ("run", FILE, "--json"), ("run", FILE, "--json"), ("run", FILE, "--json"), ("run", FILE), ("check", FILE),
    ("place", FILE), ("place", FILE, "--json"), ("explain", FILE), ("explain", FILE, "trainable"),
    ("explain", FILE, "step", "--json"), ("run", FILE, "--html", "p.html"), ("run", FILE, "-o", "out"),
    ("run", FILE, "--rank", "0", "--json"), ("run", FILE, "--format", "junit"), ("run", FILE, "--format", "github"),
    ("export", "chrome", FILE, "-o", "c.json"), ("export", "csv", FILE, "-o", "t.csv"),
    ("export", "snapshot", FILE, "-o", "s.pickle"))  # fmt: skip
_ONE: Final = ("--set", "sweep=null")
_LINES: Final = (LINES,)


def _times(random: Random) -> int:
    return random.choice((1, 1, 1, 2, 3))


def scenario(random: Random) -> Input:
    """A shipped scenario as text, or a drawn one as a tree; a sweep is only checked."""
    command = random.choice(_COMMANDS)
    if random.random() < 0.5:
        content = mutated_bytes(random.choice(seeds.scenarios()), random, _times(random))
        return Input({FILE: content}, ("check", FILE) if random.random() < 0.2 else (*command, *_ONE),
                     _LINES)
    return Input({FILE: mutated_tree(drawn_layout(random), random, _times(random))}, command, _LINES)


def extreme(random: Random) -> Input:
    """A drawn scenario with one number of the schema at an end of its range."""
    path, value = random.choice(extremes_of_schema())
    return Input({FILE: with_value(drawn_layout(random), path, value)}, ("run", FILE, "--json"), _LINES)


def model(random: Random) -> Input:
    """A configuration that is mutated, or mutated overrides of one."""
    preset = random.choice(known_presets())
    fields = dict(configuration(preset))
    fields |= shortened(fields, random.choice((1, 2, 4)), random) if random.random() < 0.8 else {}
    command = random.choice(_COMMANDS)
    base = drawn_layout(random)
    if random.random() < 0.7:
        content: Any = mutated_tree(fields, random, _times(random))
        if random.random() < 0.15:
            content = mutated_bytes(Input({"m.json": fields}).content("m.json"), random, _times(random))
        return Input({FILE: {**base, "model": "m.json"}, "m.json": content}, command, _LINES)
    given = drawn_model(random)
    overrides = given["overrides"] if isinstance(given, dict) else {"num_hidden_layers": 2}
    overrides = mutated_tree(overrides, random, _times(random))
    if random.random() < 0.5:
        overrides = {**overrides, random.choice(sorted(fields)): deepcopy(random.choice(EXTREMES))}
    return Input({FILE: {**base, "model": {"config": preset, "overrides": overrides}}}, command, _LINES)


def topology(random: Random) -> Input:
    """A machine, its efficiency or its measured curves."""
    machine = deepcopy(seeds.tree_of(random.choice(seeds.shipped(""))))
    base = {**drawn_layout(random), "topology": "t.yaml"}
    kind = random.choice(("", "", "efficiency", "nccl"))
    files: dict[str, Any] = {FILE: base, "t.yaml": machine}
    if kind == "efficiency":
        machine["efficiency"] = "e.yaml"
        files["e.yaml"] = _mutated(seeds.tree_of(random.choice(seeds.shipped(kind))), "e.yaml", random)
    elif kind == "nccl":
        level = machine["node"].get("nvlink") or machine["node"].get("pcie")
        if isinstance(level, dict):
            level["curves"] = "n.yaml"
        files["n.yaml"] = _mutated(seeds.tree_of(random.choice(seeds.shipped(kind))), "n.yaml", random)
    else:
        files["t.yaml"] = _mutated(machine, "t.yaml", random)
    return Input(files, random.choice(_COMMANDS), _LINES)


def _mutated(tree: Tree, name: str, random: Random) -> Any:
    """As a tree; rarely as a text."""
    if random.random() < 0.85:
        return mutated_tree(tree, random, _times(random))
    return mutated_bytes(Input({name: tree}).content(name), random, _times(random))


def results(random: Random) -> Input:
    """Results of earlier runs, given to what reads them."""
    rows = [deepcopy(row) for row in random.sample(seeds.results(), random.randint(1, 3))]
    name = random.choice(("r.json", "r.jsonl"))
    at = random.randrange(len(rows))
    rows[at] = mutated_tree(rows[at], random, _times(random))
    content: Any = rows
    if random.random() < 0.25:
        content = mutated_bytes(Input({name: rows}).content(name), random, _times(random))
    command = random.choice((
        ("report", name, "-o", "p.html"), ("report", name, "--figures", "figures"), ("compare", name, FILE),
        ("compare", name, "s.json", "--json"), ("run", FILE, "--baseline", name),
        ("run", FILE, "--json", "--baseline", name),
        ("export", "csv", name, "-o", "t.csv"), ("export", "csv", name, "--table", "ranks", "-o", "t.csv")))
    return Input({FILE: seeds.PLAIN, "s.json": [seeds.results()[0]], name: content}, command)


def measured(random: Random) -> Input:
    """Rows of measured runs."""
    rows = [deepcopy(row) for row in random.sample(seeds.measured(), 2)] + [deepcopy(seeds.measured()[0])]
    at = random.randrange(len(rows))
    rows[at] = mutated_tree(rows[at], random, _times(random))
    content: Any = rows
    if random.random() < 0.3:
        content = mutated_bytes(Input({"r.jsonl": rows}).content("r.jsonl"), random, _times(random))
    return Input({"r.jsonl": content}, ("validate", "r.jsonl", *random.choice(((), ("--json",), ("-j", "1")))))


def readings(random: Random) -> Input:
    """A log, or a memory snapshot."""
    is_log = random.random() < 0.5
    content = mutated_bytes(random.choice(seeds.LOGS if is_log else seeds.snapshots()), random, _times(random))
    return Input({FILE: seeds.PLAIN, "m.log": content},
                 ("read", "m.log", FILE, *random.choice(((), ("--json",), ("--rank", "0")))))


_KEYS: Final = ("name", "model", "mesh", "mesh.tp", "mesh.dp_shard", "training.seq_len", "training.lora.rank", "sweep",
                "sweep.mesh.tp", "framework_options.prefetch", "limits.usable_memory", "generation", "rl.prompts",
                "model.overrides.num_hidden_layers", "training.recompute", "topology.num_nodes", "", ".", "a..b", "<<",
                "training", "training.routing", "training.lengths", "framework_options", "training.global_batch_size",
                "x", "mesh.x", "\u00fc", "generation.max_lora_rank", "workload", "framework")  # fmt: skip


def settings(random: Random) -> Input:
    """`--set` with whatever may be typed there."""
    words: list[str] = []
    for _ in range(random.choice((1, 1, 2))):
        key, value = random.choice(_KEYS), str(random.choice(EXTREMES))
        text = f"{key}{random.choice(('=', '=', '=', '=', '', ' = ', '==', ':'))}{value[:3000]}"
        if random.random() < 0.3:
            text = mutated_bytes(text.encode(errors="surrogatepass"), random).decode(errors="replace")
        words += ["--set", text.replace("\x00", "0")]  # no argument of a program can hold it
    return Input({FILE: seeds.PLAIN}, (random.choice(("run", "check", "place", "explain")), FILE, *words), _LINES)


_WORDS: Final = (
    "run", "place", "check", "compare", "validate", "schema", "explain", "export", "read", "report", "--json",
    "--help", "--set", "--rank", "-j", "-o", "--html", "--max-fill", "--baseline", "--format", "--example", "--advise",
    "--no-advise", "--figures", "--png", "--table", "--result", "chrome", "csv", "snapshot", "kineto", "github",
    "junit", "ranks", "peak", "step", FILE, FILE, FILE, "r.json", "nowhere.yaml", "*.yaml", "**", "[", ".", "..",
    "/dev/null",
    "sub", "sub/", "-", "--", "-1", "0", "1", "7", "8", "1e3", "92%", "nan", "first-look", "x" * 300, "y/" * 200, "",
    " ", "\u00fc", "a\nb", "mesh.tp=2", "--force", "init", "~", "$HOME", "/dev/zero",
    PIPE)  # fmt: skip
_BEGINNINGS: Final = (
    ("run", FILE), ("check", FILE), ("place", FILE), ("explain", FILE), ("compare", FILE, FILE), ("report", "r.json"),
    ("export", "csv", FILE, "-o", "t.csv"), ("read", "m.log", FILE), ("init", "new.yaml"), ("schema",), ())  # fmt: skip


def arguments(random: Random) -> Input:
    """Words in any order, behind the beginning of a command."""
    words = (*random.choice(_BEGINNINGS), *random.choices(_WORDS, k=random.randint(0, 4)))
    files: dict[str, Any] = {FILE: seeds.PLAIN, "r.json": [seeds.results()[0]], "m.log": seeds.LOGS[0],
                             "sub/g.yaml": seeds.PLAIN, PIPE: b""}
    return Input(files, words)
