"""A launch script of the user's is changed only where it asks for something else, and keeps its comments."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

import pytest

from simcore.errors import NotYet
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.conversion.converting import convert
from simcore.recipes.importing import import_recipe

MINE = """\
#!/bin/bash
# my run
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS=8          # of a node
TP=2
LENGTH=${LENGTH:-4096}
ARGS=(
    --use-mcore-models
    --num-layers 4 --hidden-size 512   # small
    --num-attention-heads 8
    --group-query-attention --num-query-groups 8
    --ffn-hidden-size 1024
    --swiglu
    --normalization RMSNorm
    --untie-embeddings-and-output-weights
    --disable-bias-linear
    --position-embedding-type rope
    --max-position-embeddings 8192
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --tokenizer-type NullTokenizer
    --vocab-size 1024
    --disable-pad-vocab-size
    --seq-length $LENGTH
    --micro-batch-size 1
    --global-batch-size 64
    --tensor-model-parallel-size ${TP}
    --sequence-parallel
    --bf16
    --use-distributed-optimizer
    --recompute-activations
    --no-create-attention-mask-in-dataloader
    --data-path my/data   # mine
    --lr 3e-4
)
torchrun --nproc-per-node $GPUS pretrain_gpt.py "${ARGS[@]}"
"""


def changes(folder: Path, text: str, **settings: object) -> list[str]:
    """Changed lines of a script, for the scenario that it is read as with other values of some keys."""
    (folder / "mine.sh").write_text(MINE, encoding="utf-8")
    document = import_recipe([str(folder / "mine.sh")], Answers.of_options(None, None, "dgx-h100")).document()
    for key, value in settings.items():
        document = document.with_value(tuple(key.split("__")), value, "")
    (folder / "mine.sh").write_text(text, encoding="utf-8")
    made = convert(parse_scenario(document), "megatron", str(folder / "mine.sh"))
    made.expect_complete()
    found = list(unified_diff(text.splitlines(), made.text.splitlines(), lineterm="", n=0))
    return [line for line in found[2:] if not line.startswith("@@")]


def test_a_script_that_asks_for_the_same_stays(tmp_path: Path) -> None:
    assert changes(tmp_path, MINE) == []


def test_only_what_differs_is_changed_and_variables_where_they_are_set(tmp_path: Path) -> None:
    found = changes(tmp_path, MINE, mesh__tp=4, mesh__dp_shard=4, training__seq_len=8192, training__recompute="full",
                    training__global_batch_size=128)
    assert found == ["-TP=2", "-LENGTH=${LENGTH:-4096}", "+TP=4", "+LENGTH=${LENGTH:-8192}",
                     "-    --global-batch-size 64", "+    --global-batch-size 128", "-    --recompute-activations",
                     "+    --recompute-granularity full", "+    --recompute-method uniform",
                     "+    --recompute-num-layers 1",
                     '-torchrun --nproc-per-node $GPUS pretrain_gpt.py "${ARGS[@]}"',
                     '+torchrun --nnodes 2 --nproc-per-node $GPUS pretrain_gpt.py "${ARGS[@]}"']


def test_what_several_arguments_share_is_refused_at_its_line(tmp_path: Path) -> None:
    shared = MINE.replace("--global-batch-size 64", "--global-batch-size $(( TP * 32 ))")
    with pytest.raises(NotYet, match=r"mine.sh:26: not yet: --into: TP: 2 places have this variable's value"):
        changes(tmp_path, shared, mesh__tp=4, mesh__dp_shard=2)
