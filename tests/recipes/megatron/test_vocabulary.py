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


@pytest.mark.parametrize(("changed", "tokens"), [("", 50304), ("  --vocab-size: 32000\n", 50304)])
def test_without_a_tokenizers_type_the_program_sets_gpt_2s(tmp_path: Path, changed: str, tokens: int) -> None:
    """Megatron-LM d98e8a64 pretrain_gpt.py:527, pretrain_hybrid.py:544 args_defaults; --vocab-size is not read then."""
    bare = "".join(line for line in TEXT.splitlines(keepends=True) if "-file" not in line)
    (tmp_path / "model_config.yaml").write_text(bare + changed, encoding="utf-8")
    found = import_recipe([str(tmp_path / "model_config.yaml")], Answers.of_options(8, None, "dgx-h100"))
    assert found.values["model"]["overrides"]["vocab_size"] == tokens
    origin = str(found.origins["model", "overrides", "vocab_size"])
    assert "pretrain_gpt.py:527" in origin
    assert "training/arguments.py" not in origin
    assert [one.kind for one in found.left if one.key.endswith("--vocab-size")] == ["no effect"] * bool(changed)
