"""Messages of torch's allocator: every form, wrapped, repeated, of several ranks."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from oom_messages import CASES, Case
from simcore.validation.out_of_memory.block import parse_size
from simcore.validation.out_of_memory.message import OutOfMemory, read_messages

MODERN = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU {} has a total capacity of "
          "79.11 GiB of which 1.20 GiB is free. {}Of the allocated memory 70.00 GiB is allocated by PyTorch, and 3.00 "
          "GiB is reserved by PyTorch but unallocated.")
THIS = "Including non-PyTorch memory, this process has 76.00 GiB memory in use. "


def one(text: str) -> OutOfMemory:
    (message,) = read_messages(text)
    return message


def of(case: Case) -> OutOfMemory:
    return one(case.text)


@pytest.mark.parametrize("case", CASES, ids=[case.source.partition("github.com/")[2] for case in CASES])
def test_a_message_of_a_public_issue(case: Case) -> None:
    message = of(case)
    assert message.asked == case.asked
    assert message.asked_bytes == parse_size(case.asked)
    read = {"capacity": message.capacity_bytes, "free": message.free_bytes, "allocated": message.allocated_bytes,
            "in_use": message.in_use_bytes, "others": message.others_bytes}
    told = {name: getattr(case, name) for name in read}
    assert {name: size for name, size in read.items() if name != "others"} == {
        name: parse_size(size) if size else None for name, size in told.items() if name != "others"}
    assert (message.phase, message.rank, message.device) == (case.phase, case.rank, case.device)
    assert message.unused_bytes == pytest.approx(parse_size(case.unused), abs=2**20)
    assert (message.others_bytes is None) is not bool(case.others)
    assert (message.others_bytes or 0) == pytest.approx(parse_size(case.others or "0 bytes"), abs=2**24)


def test_what_is_outside_of_torch_is_what_the_process_holds_besides() -> None:
    message = one(MODERN.format("2.00", 0, "Including non-PyTorch memory, this process has 77.90 GiB memory in use. "))
    assert message.outside_bytes == pytest.approx(4.9 * 2**30, abs=2)
    assert message.rest_bytes == pytest.approx(4.91 * 2**30, abs=2)
    assert message.others_bytes is None


def test_other_processes_are_added_and_a_single_one_is_the_process_itself() -> None:
    two = "Process 1 has 1.50 GiB memory in use. Process 2 has 0.50 GiB memory in use. "
    message = one(MODERN.format("2.00", 0, two + THIS))
    assert (message.in_use_bytes, message.others_bytes) == (76 * 2**30, 2 * 2**30)
    assert one(MODERN.format("2.00", 0, two)).in_use_bytes is None
    assert one(MODERN.format("2.00", 0, "Process 9 has 76.00 GiB memory in use. ")).in_use_bytes == 76 * 2**30


def test_a_limit_that_the_program_set() -> None:
    assert one(MODERN.format("2.00", 0, "10.00 GiB allowed; ")).allowed_bytes == 10 * 2**30


def test_ranks_that_write_between_each_others_lines() -> None:
    frames = {0: ('  File "torch/optim/adamw.py", line 1, in step', "    self.optimizer.step()"),
              1: ('  File "torch/autograd/__init__.py", line 1, in backward', "    run_backward()")}
    lines = [f"[rank{rank}]: {frames[rank][number]}" for number in range(2) for rank in frames]
    ends = [f"[rank{rank}]: {MODERN.format(f'{2 + rank}.00', rank, '')}" for rank in frames]
    starts = [f"[rank{rank}]: Traceback (most recent call last):" for rank in frames]
    found = read_messages("\n".join([*starts, *lines, *ends]))
    assert [(message.rank, message.phase, message.asked) for message in found] == [
        (0, "optimizer", "2.00 GiB"), (1, "backward", "3.00 GiB")]


def test_equal_messages_of_two_ranks_are_two_and_of_one_rank_are_one() -> None:
    text = MODERN.format("2.00", 0, "")
    assert len(read_messages(f"[rank0]: {text}\n[rank1]: {text}")) == 2
    assert [message.rank for message in read_messages(f"{text}\n[rank1]: {text}\n[rank1]: {text}")] == [1]


def test_a_traceback_of_an_earlier_exception_is_not_the_messages_stack() -> None:
    text = ('Traceback (most recent call last):\n  File "torch/optim/adamw.py", line 1, in step\nKeyError: 1\n'
            f"Traceback (most recent call last):\n{MODERN.format('2.00', 0, '')}")
    assert one(text).phase == ""


def test_colours_prefixes_and_windows_line_ends() -> None:
    text = "\r\n".join(f"\x1b[31m(WorkerDict pid=1, ip=10.0.0.1) {line}\x1b[0m" for line in CASES[4].text.splitlines())
    assert one(text) == of(CASES[4])


def test_a_message_that_is_cut_short_is_read_as_far_as_it_goes() -> None:
    message = one("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 4; 31.75 GiB total capacity")
    assert replace(message, place="") == OutOfMemory("20.00 MiB", 20 * 2**20, 4, round(31.75 * 2**30))


def test_a_damaged_size() -> None:
    message = one("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.")
    assert (message.asked, message.asked_bytes) == ("", None)


@pytest.mark.parametrize("text", ["", "out of memory", "CUDA out of memory", "Tried to allocate 2.00 GiB",
                                  "\x00" * 1000, "CUDA error: out of memory"])
def test_what_is_no_message(text: str) -> None:
    assert read_messages(text) == []


def test_hostile_texts_take_no_time() -> None:
    for piece in ("CUDA out of memory. Tried to allocate 1 ", 'File "', '  File "a", line 1, in f\n', "[rank1]: ",
                  "CUDA out of memory. Tried to allocate 1.00 GiB. \n", "Process 1 has 1 GiB ", "Traceback (most"):
        began = time.process_time()
        read_messages(piece * 50_000)
        assert time.process_time() - began < 5, piece
