"""Tensors that stay allocated across steps, and Adam's temporaries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import small
from simcore.frameworks.common.optimizer_memory import newton_schulz_bytes
from simcore.memory.ledger import running
from simcore.models.tensor import TensorSpec
from simcore.placement.framework import TensorPolicy
from simcore.placement.layout import TensorLayout
from simcore.placement.plan import Placed
from simcore.program.outline import Phase
from simcore.program.tile import AMOUNT, AUX, OP, SLOT
from simcore.recording.tape import Kernel, Op

WHOLE = 4 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 688 + 2 * 256) + 2 * 1000 * 256 + 256
ROTARY = 2 * 4 * 16


def built(**given: Any) -> int:
    program = small.program_of("fsdp2", model="llama-tiny", **given)
    return int(running(program)[np.flatnonzero(program.phase == Phase.BUILD)[-1]])


@pytest.mark.parametrize(("optimizer", "per_element"), [({"name": "adamw"}, 12), ({"name": "sgd"}, 4),
                                                        ({"name": "sgd", "momentum": 0.9}, 8),
                                                        ({"name": "adamw", "moments": "bf16"}, 8)])
def test_parameters_and_moments_rest(optimizer: dict[str, str], per_element: int) -> None:
    assert built(optimizer=optimizer) == per_element * WHOLE + ROTARY


def test_moments_of_eight_bits_have_scales_and_tables() -> None:
    """Two norms of 256 values a layer, and the last one, stay in fp32; nothing here is below 4096 values besides."""
    norms, matrices = (2 * 4 + 1) * 256, WHOLE - (2 * 4 + 1) * 256
    num_matrices = 7 * 4 + 2
    moment = matrices + 4 * matrices // 256 + 1024 * num_matrices + 4 * norms
    assert built(optimizer={"moments": "int8"}) == 4 * WHOLE + 2 * moment + ROTARY
    assert temporaries(moments="int8") == 0


def test_moments_of_four_bits_are_two_a_byte() -> None:
    """torchao 0.18 `optim/subclass_4bit.py`: for 64 x 128 values 4,096 bytes, 4 a block, a table of 64."""
    norms, matrices = (2 * 4 + 1) * 256, WHOLE - (2 * 4 + 1) * 256
    moment = matrices // 2 + 4 * matrices // 256 + 64 * (7 * 4 + 2) + 4 * norms
    assert built(optimizer={"moments": "int4"}) == 4 * WHOLE + 2 * moment + ROTARY
    assert temporaries(moments="int4") == 0


def temporaries(**optimizer: str) -> int:
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", optimizer=optimizer)
    found = small.postings(program, "sqrt_exp_avg_sq")
    assert sum(amount for *_, amount in found) == 0
    assert {phase for _, phase, _ in found} <= {"optimizer"}
    return sum(amount for *_, amount in found if amount > 0)


def test_foreach_takes_a_root_of_all_second_moments() -> None:
    assert temporaries(implementation="foreach") == 4 * WHOLE // 2


@pytest.mark.parametrize("optimizer", [{"implementation": "fused"}, {"name": "sgd"}])
def test_fused_and_sgd_take_nothing(optimizer: dict[str, str]) -> None:
    assert temporaries(**optimizer) == 0


def test_a_loop_takes_the_largest_root_and_quotients() -> None:
    """The up projection's root and quotient are made while the gate's quotient, of the same size, is there."""
    largest = 256 * 688 // 2 * 4
    embedding = 1000 * 256 // 2 * 4
    assert temporaries(implementation="for_loop") == max(3 * largest, 2 * embedding + 256 // 2 * 4)


def test_a_loop_and_lists_read_and_write_everything_several_times() -> None:
    """80 bytes an element in fp32; fused kernels 24 as they are counted; norm and product of gradients 12 before."""
    moved = []
    for name, implementation in (("adamw", "for_loop"), ("adamw", "foreach"), ("adamw", "fused"), ("sgd", "foreach")):
        program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny",
                                   optimizer={"name": name, "implementation": implementation})
        updates = (program.columns[:, OP] == Op.COMPUTE) & (program.phase == Phase.OPTIMIZER)
        moved.append(program.columns[updates, AUX].tolist())
    several, once, alone = ([12 * WHOLE // 2, each * WHOLE // 2] for each in (80, 24, 12))
    assert moved == [several, several, once, alone]


@pytest.mark.parametrize(("name", "implementation", "passes", "held"), [
    ("lion", "for_loop", 13 + 6, 2 * 1000 * 256), ("rmsprop", "foreach", 9 + 4, WHOLE),
    ("adagrad", "foreach", 7 + 6, 2 * WHOLE), ("rmsprop", "for_loop", 9 + 4, 2 * 688 * 256),
    ("adagrad", "for_loop", 7 + 4, 2 * 688 * 256)])
def test_other_optimizers_hold_copies_and_go_over_memory_in_their_own_way(name: str, implementation: str, passes: int,
                                                                           held: int) -> None:
    """lion-pytorch 0.2.5 `lion_pytorch.py`, torch 2.13 `optim/rmsprop.py`, `optim/adagrad.py`: counted operators."""
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny",
                               optimizer={"name": name, "implementation": implementation})
    updates = (program.columns[:, OP] == Op.COMPUTE) & (program.phase == Phase.OPTIMIZER)
    assert program.columns[updates, AUX].tolist()[-1] == passes * 4 * WHOLE // 2
    assert temporaries(name=name, implementation=implementation) == 4 * held // 2


def test_gradients_are_clipped_where_a_trainer_does_so_and_in_one_pass_of_all() -> None:
    """Not in KempnerForge's layers, whose files say so or not; nor where the optimizer runs in backward."""
    counts = []
    for implementation, options in (("kempnerforge", {}), ("hf", {}), ("hf", {"optimizer_in_bwd": True})):
        program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", implementation=implementation,
                                   optimizer={"implementation": "fused"}, options=options)
        is_update = (program.columns[:, OP] == Op.COMPUTE) & (program.columns[:, SLOT] == Kernel.OPTIMIZER)
        counts.append(int((is_update & (program.columns[:, AMOUNT] == 0) & (program.columns[:, AUX] > 0)).sum()))
    assert counts == [0, 1, 0]


# ---- Muon ------------------------------------------------------------------------------------------------------------
MUON = {"name": "muon"}


def test_muon_keeps_one_buffer_of_each_hidden_matrix() -> None:
    """Embedding, head and norms are AdamW's, with two moments."""
    others = 2 * 1000 * 256 + 9 * 256
    assert built(optimizer=MUON) == 4 * WHOLE + 4 * (WHOLE - others) + 8 * others + ROTARY


@pytest.mark.parametrize(("shape", "largest"), [
    ((1024, 512), 3670016), ((2048, 256), 2490368), ((256, 1024), 2228224), ((256, 4096), 8519680),
    ((512, 512), 2621440)])
def test_newton_schulz_needs_what_was_measured_on_two_ranks(shape: tuple[int, int], largest: int) -> None:
    """torch 2.13 Muon on a DTensor in fp32 cut over two ranks, on a CPU; scratch of its matrix products left out."""
    policy = TensorPolicy("m", *(TensorLayout((), "fp32"),) * 4)
    local = shape[0] // 2 * shape[1]
    placed = Placed(TensorSpec("w", shape, ("a", "b"), "mlp"), policy, local, local, shape, 1, ())
    assert newton_schulz_bytes(placed) == largest


def test_muon_takes_the_most_of_one_matrix_or_of_adamws_roots() -> None:
    """688 x 256 over two ranks: 8 bytes of a shard and three Gram matrices, less than 4 of all roots."""
    roots = 4 * (2 * 1000 * 256 + 9 * 256) // 2
    assert temporaries(**MUON) == max(roots, 8 * 688 * 256 // 2 + 6 * 256**2, 8 * 256**2 // 2 + 4 * 256**2 + 2 * 256**2,
                                      8 * 256 * 688 // 2 + 4 * 256 * 688 + 2 * 256**2)
    assert temporaries(**MUON, implementation="fused") == 8 * 256 * 688 // 2 + 4 * 256 * 688 + 2 * 256**2
