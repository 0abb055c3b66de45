"""Measures the same as `probe_vision.py` of a tower that is trained: Qwen 2.5 VL's, Mistral 3's, Gemma 3's.

    python tests/truth/probe_vision_trained.py

It writes tape/vision-trained-torch-2.13.0-transformers-5.23.0.json, and others with -mistral3- or -gemma3- in their
names: the case, and signed bytes of every section.
"""

from __future__ import annotations

import json
from pathlib import Path

from probe_vision import measured

HERE = Path(__file__).resolve().parent / "tape"


def main() -> None:
    cases = json.loads((HERE / "cases-vision.json").read_text(encoding="utf-8"))
    for name, word, given in (("qwen2.5-vl", "", {}), ("mistral3", "mistral3-", {"attention": "sdpa"}),
                              ("gemma3-vision-b2", "gemma3-", {"attention": "sdpa"})):
        case = next(one for one in cases if one["name"] == name) | {"frozen": [], **given}
        text = json.dumps({"case": case, **measured(case)})
        (HERE / f"vision-trained-{word}torch-2.13.0-transformers-5.23.0.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
