"""Options of layers: those of another implementation are no options."""

from __future__ import annotations

import pytest

from simcore.operators.hf.options import HfOptions
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.operators.torchtitan.options import TorchtitanOptions
from simcore.recording.options import NO_OPTIONS, ImplementationOptions


def test_a_workload_without_options_has_the_defaults() -> None:
    assert HfOptions.of(NO_OPTIONS) == HfOptions()


def test_options_are_found_as_they_were_set() -> None:
    options: ImplementationOptions = HfOptions(autocast=True)
    assert HfOptions.of(options) is options
    assert hash(options) == hash(HfOptions(autocast=True)) != hash(HfOptions())


@pytest.mark.parametrize("options", [MegatronOptions(), ImplementationOptions(hidden="fp32")])
def test_options_of_something_else_are_refused(options: ImplementationOptions) -> None:
    with pytest.raises(AssertionError, match="expected HfOptions"):
        HfOptions.of(options)


def test_the_engine_reads_what_it_needs_of_any_options() -> None:
    assert MegatronOptions(create_attention_mask=True).loads_attention_mask
    assert TorchtitanOptions(whole_batch=True).bytes_of_tokens(2, 8, 4) == 16 * 16 + (4 + 16 * 4) * 16
    assert TorchtitanOptions(disable_loss_parallel=True).outputs_whole_vocabulary
    assert not NO_OPTIONS.loads_attention_mask
    assert NO_OPTIONS.bytes_of_tokens(2, 8, 4) == 16 * 16
