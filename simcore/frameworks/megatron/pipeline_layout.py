"""Megatron's layout strings: which layers each chunk of the model holds, as in "Et*3|(tt|)*29,m|L".

Source: megatron-core 0.16.1 `transformer/pipeline_parallel_layer_layout.py`. One letter a layer: E the embedding, t a
decoder layer, m a module of multi-token prediction, L the loss; `|` begins the next chunk, commas are decoration.
(..)*n repeats a group, then x*n one letter. Chunk k lies on rank k mod pp. A list of lists of words says the same.
"""

from __future__ import annotations

import re
from typing import Final

from simcore.errors import IllegalLayout
from simcore.placement.job import Job

__all__ = ["OPTION", "chunks_of", "num_chunks"]

OPTION: Final = "pipeline_model_parallel_layout"
_INSTEAD: Final = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
                   "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
_RULE: Final = "core 0.16.1 transformer/pipeline_parallel_layer_layout.py"
_REPEATS: Final = (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)")
_MOST: Final = 2**20
"""Letters of an unrolled layout that are looked at: far more than any model has layers."""
_DIGITS: Final = 20
_LETTERS: Final = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def chunks_of(job: Job, options: dict[str, object]) -> list[str]:
    """Returns the letters of each chunk, in the order of the model, such as ["Et", "tt", "tL"].

    E is the embedding, t a decoder layer, m multi-token prediction, L the loss. `options`: the framework options that
    the scenario sets, by name. Empty if they give no layout. IllegalLayout for one that Megatron refuses.
    """
    given = options.get(OPTION)
    if given is None:
        return []
    for other in _INSTEAD:
        if options.get(other):
            raise job.illegal(f"framework_options.{other}", f"{OPTION} cannot be set at the same time with {other}",
                              "core 0.16.1 transformer/transformer_config.py:1318")
    chunks = _listed(job, given) if isinstance(given, list) else _unrolled(job, str(given).replace(",", "")).split("|")
    _check(job, chunks)
    return chunks


def num_chunks(given: object) -> int:
    """Returns the number of chunks of a layout, a text or a list, which need not be valid."""
    if isinstance(given, list):
        return len(given)
    text = _plain(str(given).replace(",", ""))
    return 0 if text is None else text.count("|") + 1


def _listed(job: Job, given: list[object]) -> list[str]:
    """A list of chunks, each a list of words, as Bridge's recipes have it."""
    if not all(isinstance(chunk, list) and all(isinstance(word, str) for word in chunk) for chunk in given):
        raise _illegal(job, "a layout must be a text, or a list of lists of words", f"{_RULE}:35")
    words = [[word.strip().lower() for word in chunk] for chunk in given if isinstance(chunk, list)]
    for word in (word for chunk in words for word in chunk):
        if word not in _LETTERS:
            raise _illegal(job, f"{word} is not a valid LayerType: expected {', '.join(_LETTERS)}", f"{_RULE}:69")
    return ["".join(_LETTERS[word] for word in chunk) for chunk in words]


def _unrolled(job: Job, text: str) -> str:
    plain = _plain(text)
    if plain is None:
        raise _illegal(job, f"more than {_MOST:,} layers", "no model has so many")
    return plain


def _plain(text: str) -> str | None:
    """The layout without repeats; None if it is longer than what is looked at."""
    for pattern in _REPEATS:
        length = sum(len(part) * (int(times) if len(times) < _DIGITS else _MOST + 1)
                     for part, times in re.findall(pattern, text))
        if length > _MOST:
            return None
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    return text


def _check(job: Job, chunks: list[str]) -> None:
    letters, pp = "".join(chunks), job.mesh.pp
    for letter in letters:
        if letter not in "EtmL":
            raise _illegal(job, f"Invalid layer character: {letter}; known are E, L, t, m", f"{_RULE}:316")
    if len(chunks) % pp:
        raise _illegal(job, f"{len(chunks)} chunks must be divisible by pipeline_model_parallel_size {pp}",
                       f"{_RULE}:41")
    if not letters.startswith("E") or letters.count("E") != 1:
        raise _illegal(job, "the first layer must be the embedding (E), specified exactly once", f"{_RULE}:96")
    if not letters.endswith("L") or letters.count("L") != 1:
        raise _illegal(job, "the last layer must be the loss (L), specified exactly once", f"{_RULE}:99")
    if letters.count("t") != job.graph.num_blocks:
        raise _illegal(job, f"number of decoder layers {letters.count('t')} must match num_layers "
                       f"{job.graph.num_blocks}", f"{_RULE}:108")
    _check_predicting(job, chunks)


def _check_predicting(job: Job, chunks: list[str]) -> None:
    letters, pp = "".join(chunks), job.mesh.pp
    built = len(job.graph.branches)
    if letters.count("m") != built:
        raise _illegal(job, f"number of mtp layers {letters.count('m')} must match mtp_num_layers {built}",
                       f"{_RULE}:113")
    if "t" in letters.partition("m")[2]:
        raise _illegal(job, "decoder layers must be placed before MTP layers", f"{_RULE}:118")
    if any("m" in chunk for chunk in chunks[:-pp]):
        raise _illegal(job, "MTP should be always in the last virtual pipeline stage of its rank", f"{_RULE}:124")


def _illegal(job: Job, message: str, rule: str) -> IllegalLayout:
    return job.illegal(f"framework_options.{OPTION}", message, rule)
