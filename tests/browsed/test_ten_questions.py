"""Ten questions that people bring, answered on the page: clicks, seconds, and a picture of each answer.

A click is one of the mouse, a value of a list, a text typed into a field, or a file that is dropped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from browsed_page import Page
from studio_jobs import RECIPE

CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
          "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
          "vocab_size": 151936, "rms_norm_eps": 1e-6, "max_position_embeddings": 40960, "tie_word_embeddings": False,
          "attention_bias": False, "rope_theta": 1000000, "hidden_act": "silu", "torch_dtype": "bfloat16"}
FAILED = (b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of "
          b"79.11 GiB of which 512.00 MiB is free. Process 1 has 78.60 GiB memory in use. Of the allocated memory "
          b"74.10 GiB is allocated by PyTorch, and 2.40 GiB is reserved by PyTorch but unallocated.\n")
LONG_S = 300.0


@contextmanager
def question(page: Page, number: int, words: str, expected: str) -> Iterator[None]:
    """Prints clicks and seconds of a question, with its answer; takes pictures of it."""
    page.open()
    start = time.monotonic()
    yield
    took, clicks = time.monotonic() - start, page.clicks
    answer = " ".join(page.text(expected).split())[:230]
    sys.stdout.write(f"\n{number}. {words}: {clicks} clicks, {took:.1f} s\n   {answer}\n")
    assert answer
    for width, dark in ((390, True), (390, False), (1280, True), (1280, False)):
        page.tab.shape(width, dark=dark)
        page.picture(f"question-{number}-{width}-{'dark' if dark else 'light'}")


def limit(page: Page, quantity: str) -> None:
    page.click(f"[data-limit={quantity}]")
    page.until("/:/.test(document.getElementById('limit').innerText)", LONG_S)


def searched(page: Page) -> None:
    page.click("#searching [type=submit]")
    page.until("document.querySelector('#frontier tbody')", LONG_S)


def test_1_the_longest_sequence(page: Page) -> None:
    with question(page, 1, "Nano, LoRA, 4 x H100, 8k: does it fit, how long can it be", "#limit"):
        page.step("ep", -1)
        page.step("gpus", -1)
        page.set("training.seq_len", "8192")
        assert "Fits" in page.text("[data-part=verdict]")
        limit(page, "sequence")
        assert "longest sequence" in page.text("#limit")


def test_2_the_fewest_gpus(page: Page) -> None:
    with question(page, 2, "fewest H100 for full fine-tuning of Nano, per framework", "#frontier"):
        page.set("training.method", "full")
        page.set("training.recompute", "full")
        page.choose("#search-gpus", "4, 8, 16")
        page.click("#searching [value='training.micro_batch_size']")  # as it is in the job
        page.click("#searching [value='training.recompute']")
        for framework in ("automodel", "fsdp2", "megatron"):
            page.click(f"#searching [name=framework][value={framework}]")
        page.click("#search-fewest")
        page.until("/frameworks: /.test(document.getElementById('progress').innerText)", LONG_S)
        rows = json.loads(page.run("""JSON.stringify([...document.querySelectorAll('#frontier tbody tr:not(.below)')]
            .map(row => [row.cells[1].innerText, row.cells[2].innerText]))"""))
        host, device = "with states on the host", "all on the device"
        several = "automodel, several options at once"
        assert dict(rows) == {"automodel": "8", several: "4", f"megatron, {host}": "4", f"megatron, {device}": "8",
                              f"fsdp2, {host}": "4", f"fsdp2, {device}": "8"}
        page.click("#frontier tbody tr:not(.below) button")
        page.settled()
        assert "Fits" in page.text("[data-part=verdict]")


def test_2_the_fewest_gpus_of_the_framework_beside_the_verdict(page: Page) -> None:
    page.open()
    page.set("training.method", "full")
    page.click("[data-limit=gpus]")
    page.until("/^[0-9]+ GPU/.test((document.querySelector('#least b') || {}).innerText)", LONG_S)
    assert page.text("#least b").startswith("8 GPUs")
    assert "Every layout on fewer was tried" in page.text("#least")
    page.click("#least button")
    page.settled()
    assert "Fits" in page.text("[data-part=verdict]")


def test_3_the_best_layout(page: Page) -> None:
    with question(page, 3, "best layout of Qwen3-30B-A3B on 16 H100, two frameworks", "#frontier tbody tr"):
        page.set("model", "qwen3-30b-a3b")
        page.set("training.method", "full")
        page.choose("#search-gpus", "16")
        page.click("#searching [value='training.micro_batch_size']")  # as it is in the job
        for framework in ("automodel", "fsdp2"):
            page.click(f"#searching [name=framework][value={framework}]")
        searched(page)
        page.until("/ranked/.test(document.getElementById('progress').innerText)", LONG_S)
        page.click("#frontier tbody button")
        page.settled()
        assert "Fits" in page.text("[data-part=verdict]")


def test_4_a_config_by_hand(page: Page) -> None:
    with question(page, 4, "config.json, QLoRA, RTX 4090, batch 1, 4096", "[data-part=verdict]"):
        page.drop("config.json", json.dumps(CONFIG).encode())
        page.until("document.getElementById('field-model').value === 'config.json'")
        page.set("training.method", "qlora")
        page.set("training.recompute", "full")
        page.set("topology", "rtx-4090")
        page.set("framework", "ddp")
        page.set("training.global_batch_size", "1")
        page.until("!document.getElementById('plain').hidden")
        page.click("#plain button")
        page.settled()
        assert "Fits" in page.text("[data-part=verdict]"), page.text("[data-part=problems]")


def test_5_why_it_does_not_fit(page: Page) -> None:
    with question(page, 5, "FSDP2 out of memory: why, and what to change", "[data-part=verdict]"):
        page.set("training.method", "full")
        page.set("framework", "fsdp2")
        assert "Out of memory" in page.text("[data-part=verdict]")
        page.click("[data-explain=peak]")
        page.until("document.querySelector('#steps details')")
        page.until("document.querySelector('[data-changes]')", LONG_S)
        page.click("[data-changes]")
        page.settled()
        assert "Fits" in page.text("[data-part=verdict]")


def test_6_two_frameworks_side_by_side(page: Page) -> None:
    with question(page, 6, "Megatron against FSDP2 on 64 GPUs, USD", "[data-part=versus]"):
        for _ in range(3):
            page.step("gpus", 1)
        page.set("training.method", "full")
        page.set("framework", "fsdp2")
        page.click("#pin")
        page.set("framework", "megatron")
        page.until("/megatron/.test((document.querySelector('.versus') || {}).textContent)", LONG_S)
        assert "USD" in page.text(".versus")


def test_7_my_recipe(page: Page) -> None:
    with question(page, 7, "an axolotl recipe: does it fit", "[data-part=verdict]"):
        page.drop("recipe.yaml", RECIPE.encode())
        page.until("!document.getElementById('recipe').hidden")
        page.answer()
        page.until("document.getElementById('field-model').value.includes('wen3-8')")
        page.settled()
        assert page.text("[data-part=verdict] .verdict")


def test_8_my_measurement(page: Page) -> None:
    with question(page, 8, "the text of an out-of-memory error beside the job", "[data-part=measured]"):
        page.drop("error.txt", FAILED)
        page.until("document.querySelector('[data-part=measured] table')", LONG_S)


def test_9_a_thousand_layouts(page: Page) -> None:
    with question(page, 9, "1,120 layouts and their frontier", "#progress"):
        page.choose("#search-gpus", "8")
        searched(page)
        page.until("/ranked/.test(document.getElementById('progress').innerText)", LONG_S)
        assert "Refused most often:" in page.text("#frontier")


def test_10_a_gate_for_ci(page: Page) -> None:
    with question(page, 10, "a gate in CI", "#dialog"):
        page.choose("#copy", "gate")
        page.until("document.getElementById('dialog').open")
        assert "--max-fill" in page.run("document.getElementById('dialog-text').value")
        page.click("#dialog-close")
        page.choose("#copy", "scenario")
        page.until("document.getElementById('dialog').open")
