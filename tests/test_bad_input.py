"""The whole command line against wrong and hostile input: one clear message, exit code 2, no traceback, in time.

Nothing here reaches into the engine: each test starts the command as a person does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from checkout import ROOT
from fuzz.bounds import bounded
from simcore.cli import app as cli

NANO = json.loads((ROOT / "simcore/models/presets/nemotron-3-nano-30b-a3b.json").read_text(encoding="utf-8"))
PATTERN = NANO["hybrid_override_pattern"]
SECONDS = 60
"""Seconds of the processor within which any refusal comes: an input that blows up takes minutes, or all memory."""


def scenario(**changed: str) -> str:
    keys = {"name": "s", "model": "nemotron-3-tiny", "framework": "fsdp2", "topology": "dgx-h100",
            "mesh": "{dp_shard: 8}", "training": "{seq_len: 64, global_batch_size: 8}"}  # fmt: skip
    return "".join(f"{key}: {value}\n" for key, value in (keys | changed).items())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Ran:
    """One call in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        start = time.process_time()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["rankscope", *arguments])
            with pytest.raises(SystemExit) as end:
                cli.main()
        self.seconds, self.code = time.process_time() - start, end.value.code
        self.out, self.err = capsys.readouterr()

    def refused(self, *words: str) -> str:
        """Checks that this was refused as it should be, and gives the message."""
        assert self.code == 2, self.err
        assert "Traceback" not in self.err
        assert "bug in rankscope" not in self.err
        assert len(self.err) < 3000
        for word in words:
            assert word in self.err
        assert self.seconds < SECONDS
        return self.err


Run = Callable[..., Ran]


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str], folder: Path) -> Run:
    return lambda *arguments: Ran(capsys, *map(str, arguments))


def started(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """One call in a process of its own."""
    return subprocess.run([sys.executable, "-m", "simcore", *arguments], capture_output=True, check=False, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(ROOT), **environment})  # fmt: skip


WRONG = {
    "misspelt key": (scenario(mesh="{dp_shrad: 8}"), ["f.yaml:5", "unknown key 'mesh.dp_shrad'", "'dp_shard'"]),
    "duplicate key": (scenario(mesh="{tp: 1, tp: 2}"), ["f.yaml:5", "duplicate key 'mesh.tp'"]),
    "yes for a number": (scenario(mesh="{tp: true}"), ["mesh.tp: expected a whole number, got true"]),
    "zero": (scenario(mesh="{tp: 0}"), ["mesh.tp: expected at least 1, got 0"]),
    "not a number": (scenario(training="{seq_len: .nan}"), ["training.seq_len: expected a whole number, got nan"]),
    "huge": (scenario(training=f"{{seq_len: {10**30}}}"), ["training.seq_len: expected at most"]),
    "many tokens": (scenario(training="{seq_len: 1048576, micro_batch_size: 65536}"), ["67108864 tokens"]),
    "batch": (scenario(training="{seq_len: 8, global_batch_size: 12}"), ["f.yaml:6", "a multiple of 8", "got 12"]),
    "odd experts": (scenario(model="nemotron-3-nano-30b-a3b", framework="megatron", mesh="{dp_shard: 3, ep: 3}",
                             training="{seq_len: 64}"), ["f.yaml:5", "128 experts", "ep 3", "[core 0.16.1"]),
    "wide tp": (scenario(model="nemotron-3-nano-30b-a3b", framework="megatron", mesh="{tp: 16}",
                         training="{seq_len: 64}"), ["f.yaml:5", "8 Mamba groups", "tp 16", "[core 0.16.1"]),
    "cycle": ("name: &a [*a]\n", ["f.yaml:1", "endless"]),
    "bomb": ("a: &a [1, 1]\n" + "".join(f"{chr(i + 1)}: &{chr(i + 1)} [{', '.join([f'*{chr(i)}'] * 9)}]\n"
                                        for i in range(97, 110)), ["aliases expanded"]),
    "preset": (scenario(model="nemotron-3-nona"), ["f.yaml:2", "unknown model", "did you mean"]),
    "framework": (scenario(framework="fdsp2"), ["f.yaml:3", "did you mean 'fsdp2'"]),
    "topology": (scenario(topology="dgx-h1000"), ["no topology 'dgx-h1000'", "did you mean dgx-h100"]),
    "option": (scenario(framework_options="{warp: layers_root}"), ["f.yaml:7", "unknown option 'warp' of fsdp2"]),
    "machine": (scenario(topology="{file: dgx-h100, num_nodes: 2}", mesh="{dp_shard: 32}", training="{seq_len: 8}"),
                ["f.yaml:5", "32 ranks do not fit", "16"]),
    "format": (scenario(topology="dgx-a100", training="\n  seq_len: 8\n  precision:\n    compute: fp8"),
               ["f.yaml:9", "NVIDIA A100-SXM4-80GB does not compute in fp8; it has fp32, tf32, bf16, fp16"]),
    "bf16 on Volta": (scenario(topology="v100-32gb"), ["f.yaml:6", "does not compute in bf16; it has fp32, fp16"]),
    "fp16 on Pascal": (scenario(topology="gtx-1080-ti", mesh="{}", training="{seq_len: 8, precision: {compute: fp16}}"),
                       ["f.yaml:6", "GTX 1080 Ti does not compute in fp16; it has fp32"]),
    "stage 4": (scenario(framework="zero4", mesh="{}"), ["f.yaml:3", "there is no stage 4 of ZeRO"]),
    "offload on one memory": (scenario(framework="zero3", mesh="{dp_shard: 1}", topology="dgx-spark",
                                       training="{seq_len: 8, offload: {optimizer: host}}"),
                              ["f.yaml:6", "host and device are the same"]),
    "NF4 with Megatron": (scenario(framework="megatron", training="{seq_len: 8, method: qlora}"),
                          ["f.yaml:6", "bitsandbytes packs torch.nn.Linear"]),
    "DoRA with dropout in Megatron": (scenario(framework="megatron", model="llama-tiny",
                                               training="{seq_len: 8, method: lora, lora: "
                                                        "{use_dora: true, dropout: 0.1}}"),
                                      ["f.yaml:6", "not yet: Bridge's DoRA with dropout"]),
    "DoRA with dropout behind it in Megatron": (
        scenario(framework="megatron", model="llama-tiny", training="{seq_len: 8, method: lora, lora: {use_dora: true, "
                 "dropout: 0.1, dropout_position: post}}"),
        ["f.yaml:6", "DoRA only supports pre-adapter dropout", "peft/dora.py:71"]),
    "DoRA of experts in Megatron": (
        scenario(framework="megatron", model="nemotron-3-tiny",
                 training="{seq_len: 8, method: lora, lora: {use_dora: true}}"),
        ["f.yaml:6", "DoRA reads the weight of a grouped GEMM", "self.to_wrap.weight"]),
    "DoRA in 8 bits in Megatron": (
        scenario(framework="megatron", model="llama-tiny",
                 training="{seq_len: 16, method: lora, precision: {compute: fp8}, lora: {use_dora: true}}"),
        ["f.yaml:6", "not yet: DoRA over weights in 8 bits"]),
    "DoRA of LLM.int8()": (
        scenario(framework="ddp", model="llama-tiny", mesh="{dp_replicate: 8}",
                 training="{seq_len: 8, method: qlora, quantization: {format: int8}, "
                 "lora: {use_dora: true}}"),
        ["f.yaml:6", "not yet: DoRA over LLM.int8()"]),
    "rsLoRA with Automodel": (scenario(framework="automodel",
                                       training="{seq_len: 8, method: lora, lora: {use_rslora: true}}"),
                              ["f.yaml:6", "scale by alpha / dim alone"]),
    "rsLoRA with Megatron": (scenario(framework="megatron",
                                      training="{seq_len: 8, method: lora, lora: {use_rslora: true}}"),
                             ["f.yaml:6", "scale by alpha / dim alone"]),
    "dropout of PEFT's output": (
        scenario(training="{seq_len: 8, method: lora, lora: {dropout: 0.1, dropout_position: post}}"),
        ["f.yaml:6", "PEFT drops the adapter's input (pre)"]),
    "a place of no dropout": (scenario(training="{seq_len: 8, method: lora, lora: {dropout_position: pre}}"),
                              ["f.yaml:6", "dropout_position: changes nothing without dropout"]),
    "a word for DoRA": (scenario(training="{seq_len: 8, method: lora, lora: {use_dora: maybe}}"),
                        ["f.yaml:6", "use_dora", "maybe"]),
    "DoRA of experts": (scenario(framework="automodel", model="nemotron-3-tiny", training="{seq_len: 8, method: lora, "
                                 "lora: {use_dora: true, target_modules: ['*experts']}}"),
                        ["f.yaml:6", "DoRA is not supported for MoE expert modules"]),
    "DoRA served": (scenario(workload="serve", mesh="{}", training="{seq_len: 8, lora: {use_dora: true}}",
                             generation="{max_model_len: 4096}"), ["vLLM does not yet support DoRA"]),
    "Unsloth 2024.12 with dropout": (
        scenario(framework="ddp", mesh="{}", model="llama-tiny", training="{seq_len: 8, method: lora, lora: {dropout: "
                 "0.1, target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]}}",
                 framework_options="{FastLanguageModel: 2024.12, attn_implementation: flash_attention_2}"),
        ["not yet: 2024.12's layers around PEFT's own modules"]),
    **{f"Unsloth on Nemotron-H {name}": (
        scenario(framework="ddp", mesh=mesh, model="nemotron-3-tiny", implementation=implementation,
                 training=f"{{seq_len: 64, method: {method}, lora: {{target_modules: [q_proj]}}{more}}}",
                 framework_options="{FastLanguageModel: true}"), [told])
       for name, implementation, method, mesh, more, told in (
           ("in 4 bits", "hub", "qlora", "{}", "", "f.yaml:6: index_add_(): self (BFloat16) and source (Float) must"),
           ("compiled", "hf", "lora", "{}", "", "without trust_remote_code, whose modules FastModel compiles"),
           ("in fp16", "hub", "lora", "{}", ", precision: {compute: fp16}", "fp16 of Unsloth's nemotron_h"),
           ("in fp32", "hub", "lora", "{}", ", precision: {params: fp32}",
            "fp32 parameters of a repository's code in Unsloth"),
           ("on two GPUs", "hub", "lora", "{dp_replicate: 2}", ", recompute: full, offload: {activations: host}",
            "on several GPUs Unsloth takes its checkpointing back"))},
    "fp4 on Hopper": (scenario(training="\n  seq_len: 8\n  precision: {compute: fp4}"),
                      ["f.yaml:8", "H100 80GB HBM3 does not compute in fp4; it has fp32, tf32, bf16, fp16, fp8"]),
    "fp4 on Blackwell": (scenario(topology="dgx-b200", training="\n  seq_len: 8\n  precision: {compute: fp4}"),
                         ["f.yaml:8", "not yet: compute in fp4"]),
    "a machine that ends": (scenario(topology="rtx-4090"), ["f.yaml:5", "8 ranks do not fit on rtx-4090",
                                                                       "1 node(s) of 4 GPU(s) = 4"]),
    "more nodes than there are": (scenario(topology="\n  file: dgx-spark\n  num_nodes: 3"),
                                  ["f.yaml:4", "num_nodes: dgx-spark has 2 node(s), not 3"]),
    "tag": ("name: !!python/object/apply:os.system [ls]\n", ["f.yaml:1", "tag"]),
    "documents": ("name: a\n---\nname: b\n", ["f.yaml:2", "one document"]),
    "control character": (scenario(name='"a\\e[31m"'), ["f.yaml:1", "control characters"]),
    "empty": ("", ["f.yaml:1", "empty"]),
    "sweep of a million": (scenario(sweep=f"{{training.seq_len: {list(range(1, 1001))}, "
                                          f"training.micro_batch_size: {list(range(1, 1001))}}}"), ["1,000,000"]),
    "letter in overrides": (scenario(model="{config: nemotron-3-nano-30b-a3b, overrides: "
                                           f"{{hybrid_override_pattern: 'MQ{PATTERN[2:]}'}}}}"), ["f.yaml:2", "'Q'"]),
    "no heads": (scenario(model="{config: nemotron-3-tiny, overrides: {num_attention_heads: 0}}"), ["f.yaml:2"]),
    "not yet": (scenario(workload="serve", mesh="{}", generation="{engine: sglang}"), ["f.yaml:8", "not yet"]),
    "grpo without its blocks": (scenario(workload="grpo"), ["f.yaml:7", "missing the block rl and generation"]),
    "KV heads not divisible": (scenario(workload="serve", mesh="{tp: 3}", model="{config: llama-3.2-3b, overrides: "
                                        "{intermediate_size: 8184}}"),
                               ["f.yaml:5", "8 KV heads are neither divisible by tp 3", "vLLM 0.12.0"]),
    "layers": (scenario(model="\n  config: llama-tiny\n  overrides: {num_hidden_layers: 1000000000}"),
               ["f.yaml:4", "num_hidden_layers: expected an integer from 1 to 10,000, got 1000000000"]),
    "wide convolution": (scenario(model="{config: nemotron-3-tiny, overrides: {conv_kernel: 4000000}}"),
                         ["f.yaml:2", "conv_kernel: expected an integer from 1 to 128, got 4000000"]),
    "stages": (scenario(mesh="{pp: 1025}"), ["f.yaml:5", "mesh.pp: expected at most 1024, got 1025"]),
    "a batch": (scenario(training="{seq_len: 64, global_batch_size: 16777217}"),
                ["f.yaml:6", "training.global_batch_size: expected at most 16777216, got 16777217"]),
    "half a pair of rotated dimensions": (scenario(model="{config: llama-tiny, overrides: {head_dim: 15}}"),
                                          ["f.yaml:2", "head_dim: expected an even number, got 15", "validate_rope"]),
    "layers and microbatches": (
        scenario(model="{config: llama-tiny, overrides: {num_hidden_layers: 10000}}",
                 training="{seq_len: 64, global_batch_size: 8192}"),
        ["f.yaml:2: expected a step of at most 4,500,000 operations", "10,004 layers (model) x 4 of 1,024 micro"]),
    "a deep prefetch": (scenario(framework_options=f"{{prefetch: {10**30}}}"),
                        ["f.yaml:7", "prefetch: expected null or int (at most 9223372036854775807), got 100000"]),
    "letters for one of a few numbers": (
        scenario(workload="serve", mesh="{}", generation="{max_model_len: 4096, max_lora_rank: x}"),
        ["f.yaml:8", "generation.max_lora_rank: expected 1, 8, 16, 32, 64, 128, 256, 320, 512, got 'x'"]),
    "a key that looks like a tag": (scenario() + "<word>: 1\n", ["f.yaml:7", "unknown key '<word>'"]),
    "negative limit": (scenario(limits="{usable_memory: -5 GiB}"), ["f.yaml:7", "usable_memory"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG)
def test_wrong_scenario(ran: Run, folder: Path, text: str, words: list[str]) -> None:
    (folder / "f.yaml").write_text(text)
    told = ran("run", "f.yaml").refused(*words)
    assert len(told.splitlines()) == 1


def test_wrong_topology_file(ran: Run, folder: Path) -> None:
    text = (ROOT / "topologies" / "dgx-h100.yaml").read_text(encoding="utf-8")
    line = 1 + text[:text.index('"450 GB/s"')].count("\n")
    (folder / "mine.yaml").write_text(text.replace('"450 GB/s"', '"0 GB/s"'))
    (folder / "f.yaml").write_text(scenario(topology="mine.yaml"))
    ran("run", "f.yaml").refused(f"mine.yaml:{line}: node.nvlink.bandwidth: must be more than zero, got '0 GB/s'")


SIZE = 2**18 - 40
HOSTILE = {
    "long tag": b"name: !" + b"x" * SIZE + b" y\n",
    "only tags": b"!" * SIZE,
    "keys": b"".join(b"k%d: 1\n" % i for i in range(22_000)),
    "list": b"a: [" + b"1," * (SIZE // 2) + b"]",
    "nesting": b"a: " + b"[" * SIZE,
    "lines": b"a: '" + b"\n" * SIZE + b"'",
    "anchor": b"a: &" + b"x" * SIZE,
    "alias": b"a: *" + b"x" * SIZE,
    "escapes": b'a: "' + b"\\x41" * (SIZE // 4) + b'"',
    "directive": b"%YAML " + b"1" * SIZE + b".1\n---\na: 1",
    "documents": b"---\n" * (SIZE // 4),
    "latin-1": "name: café\n".encode("latin-1"),
    "zeros": bytes(SIZE),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_file_is_refused_soon(ran: Run, folder: Path, content: bytes) -> None:
    (folder / "f.yaml").write_bytes(content)
    ran("run", "f.yaml").refused("f.yaml:")


@pytest.mark.parametrize("megabytes", [1, 100])
def test_large_file_is_not_even_read(ran: Run, folder: Path, megabytes: int) -> None:
    with (folder / "f.yaml").open("wb") as file:
        file.truncate(megabytes * 2**20)
    assert "expected at most 262,144 bytes" in ran("run", "f.yaml").refused()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (json.dumps(NANO)[:-20], ["m.json:1", "not valid JSON"]),
        ("[1]", ["m.json:1", "expected a mapping"]),
        (json.dumps({**NANO, "hybrid_override_pattern": f"ME*X{PATTERN[4:]}"}), ["'X' at layer 3"]),
        (json.dumps({**NANO, "model_type": "gpt9"}), ["model_type", "'gpt9'"]),
        (json.dumps({k: v for k, v in NANO.items() if k != "hidden_size"}), ["hidden_size"]),
        (json.dumps({**NANO, "hidden_size": 2**40, "vocab_size": 2**40}), ["f.yaml"]),
    ],
    ids=["broken", "list", "letter", "family", "missing", "huge"],
)
def test_wrong_model_file(ran: Run, folder: Path, content: str, words: list[str]) -> None:
    (folder / "m.json").write_text(content)
    (folder / "f.yaml").write_text(scenario(model="m.json"))
    ran("run", "f.yaml").refused(*words)


def test_paths_that_are_no_files(ran: Run, folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "model.json").mkdir()
    os.mkfifo(folder / "pipe.yaml")
    (folder / "f.yaml").write_text(scenario(model="model.json"))
    (folder / "g.yaml").write_text(scenario(model="nowhere/config.json"))
    ran("run", "missing.yaml").refused("missing.yaml: no such file")
    ran("run", "empty").refused("empty: the folder holds no scenario")
    ran("run", "no*.yaml").refused("no file matches")
    ran("run", "pipe.yaml").refused("got a pipe")
    ran("run", "f.yaml").refused("got a directory")
    ran("run", "g.yaml").refused("nowhere/config.json: no such file")


def test_an_engine_of_one_token(ran: Run, folder: Path) -> None:
    (folder / "f.yaml").write_text("{name: s, workload: serve, model: qwen2.5-3b, topology: dgx-h100, "
                                   "generation: {max_model_len: 1}}")
    result = ran("run", "f.yaml", "--json")
    assert result.code == 0, result.err
    (report,) = json.loads(result.out)
    assert report["serving"]["max_model_len"] == 1
    assert report["serving"]["concurrency"] == report["serving"]["num_blocks"]


def test_no_file_is_a_device_or_a_pipe(ran: Run, folder: Path) -> None:
    """Each file that a command reads; one that waits or fills the memory is stopped."""
    os.mkfifo(folder / "pipe")
    (folder / "f.yaml").write_text(scenario())
    for name in ("pipe", "/dev/zero", "."):
        for arguments in (["run", "f.yaml", "--baseline", name], ["run", "f.yaml", "--set", f"topology={name}"],
                          ["report", name], ["validate", name], ["read", name, "f.yaml"]):
            if name == "." and arguments[0] in ("report", "validate"):  # folders of results
                continue
            with bounded():
                done = ran(*arguments)
            done.refused("expected a")


def test_a_long_name_is_no_file(ran: Run, folder: Path) -> None:
    (folder / "f.yaml").write_text(scenario(topology="a" * 300))
    ran("run", "f.yaml").refused("f.yaml:4: no topology")
    ran("validate", "a" * 300).refused("cannot be read: file name too long")


@pytest.mark.parametrize("setting", ["", "=", "mesh.tp", "mesh..tp=1", "mesh.tp=[", "mesh.tp=&a *a", "name.x=1",
                                     "mesh.tpp=2", "mesh.tp=!!int 2", "training=7", "sweep.mesh.tp=2", "<<=1",
                                     "<map>=1", "training.<word>=1", "training.lengths={<lengths>: 1}",
                                     "model.<map>=1"])  # fmt: skip
def test_nonsense_settings(ran: Run, folder: Path, setting: str) -> None:
    (folder / "f.yaml").write_text(scenario())
    ran("run", "f.yaml", "--set", setting).refused("--set")


def test_options_that_cannot_be(ran: Run, folder: Path) -> None:
    (folder / "f.yaml").write_text(scenario())
    ran("run", "f.yaml", "--rank", "8").refused("expected a rank from 0 to 7, got 8")
    for arguments in (["--rank", "-1"], ["-j", "0"], ["--max-fill", "nan"], ["--max-fill", "0"],
                      ["--baseline", "f.yaml"], ["--format", "html"], ["--example", "../x"]):  # fmt: skip
        ran("run", "f.yaml", *arguments).refused()


def test_a_name_is_no_path(ran: Run, folder: Path) -> None:
    (folder / "f.yaml").write_text(scenario(name='"../../escaped"'))
    assert ran("run", "f.yaml", "-o", "out").code == 0
    assert [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"))] == [
        "f.yaml", "out", "out/.batch", "out/.batch/contents.json", "out/.batch/lock", "out/data",
        "out/data/_about.json", "out/data/part-00000.parquet", "out/results.jsonl"]  # fmt: skip


def test_a_page_or_results_where_there_is_no_place(ran: Run, folder: Path) -> None:
    (folder / "f.yaml").write_text(scenario())
    ran("run", "f.yaml", "-o", "f.yaml/out").refused("cannot be written")
    ran("run", "f.yaml", "--html", "no/such/folder/page.html").refused("cannot be written")


def test_one_of_a_hundred(ran: Run, folder: Path) -> None:
    for i in range(100):
        (folder / f"s{i:02}.yaml").write_text(scenario(name=f"s{i:02}", mesh="{dp: 8}" if i == 37 else "{dp_shard: 8}"))
    result = ran("run", folder, "--json")
    found = json.loads(result.out)
    assert result.code == 2
    assert [report["name"] for report in found if report["status"] != "ok"] == ["s37"]
    assert len(found) == 100
    assert len(result.err.splitlines()) == 1


def test_what_a_sweep_makes_may_be_illegal(ran: Run, folder: Path) -> None:
    text = scenario(framework="megatron", mesh="{dp_shard: 6, ep: 4}", training="{seq_len: 64}")
    (folder / "f.yaml").write_text(text)
    (folder / "g.yaml").write_text(text + "sweep: {mesh.ep: [4, 1]}\n")
    ran("run", "f.yaml").refused("f.yaml:5", "[core 0.16.1")
    result = ran("run", "g.yaml", "--json")
    assert [(r["status"], bool(r["problems"])) for r in json.loads(result.out)] == [("illegal", True), ("ok", False)]
    assert result.code == 0


def test_ten_thousand_layers(ran: Run, folder: Path) -> None:
    (folder / "m.json").write_text(json.dumps({**NANO, "num_hidden_layers": 10_000,
                                               "hybrid_override_pattern": "MEM*E" * 2000}))  # fmt: skip
    (folder / "f.yaml").write_text(scenario(model="m.json"))
    result = ran("run", "f.yaml", "--json")
    assert result.code == 1
    assert json.loads(result.out)[0]["ranks"][0]["at_rest"]["mamba"]["num_params"] > 0
    assert result.seconds < SECONDS


def test_results_do_not_depend_on_workers_or_hashing(ran: Run, folder: Path) -> None:
    """Those of a sweep with every kind of outcome but a bug."""
    (folder / "many.yaml").write_text(scenario(sweep="{framework: [fsdp2, automodel, megatron], mesh.ep: [1, 3, 8], "
                                               "training.seq_len: [64, 128], limits.usable_memory: [79 GiB, 1 MiB]}"))
    other = started("run", "many.yaml", "--json", "-j", "2", "-o", "other", PYTHONHASHSEED="1")
    here = ran("run", "many.yaml", "--json", "-j", "1", "-o", "here")
    assert (other.returncode, here.code) == (1, 1), other.stderr
    assert other.stdout.decode() == here.out
    assert len(json.loads(here.out)) == 36
    assert (folder / "other/results.jsonl").read_bytes() == (folder / "here/results.jsonl").read_bytes()
