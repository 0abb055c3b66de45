"""Files of a tokenizer that decide the vocabulary, and what is taken for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.recipes.answers import Answers
from simcore.recipes.importing import import_recipe

TEXT = """\
MODEL_ARGS:
  --num-layers: 2
  --hidden-size: 64
  --num-attention-heads: 4
  --seq-length: 64
  --max-position-embeddings: 64
  --micro-batch-size: 1
  --global-batch-size: 8
  --bf16: true
  --vocab-file: /data/mine/vocab.json
  --merge-file: /data/mine/merges.txt
"""


@pytest.mark.parametrize("kind", ["", "  --tokenizer-type: GPT2BPETokenizer\n"])
def test_files_that_are_taken_for_gpt_2s_are_not_without_effect(tmp_path: Path, kind: str) -> None:
    (tmp_path / "model_config.yaml").write_text(TEXT + kind, encoding="utf-8")
    found = import_recipe([str(tmp_path / "model_config.yaml")], Answers.of_options(8, None, "dgx-h100"))
    told = {one.key.rpartition("--")[2]: one.why for one in found.decides}
    for name in ("vocab-file", "merge-file"):
        assert told[name].startswith("taken to be GPT-2's 50,257 tokens")
    assert found.values["model"]["overrides"]["vocab_size"] == 50304
