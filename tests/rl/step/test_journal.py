"""Sums of tensors that are put, moved and dropped, and the highest moment of each phase."""

from __future__ import annotations

from simcore.rl.step.journal import Journal


def test_a_phase_begins_with_what_is_there() -> None:
    journal = Journal()
    journal.put("a", {"x": 5})
    journal.begin("one")
    assert (journal.phases[0].bytes_on("device"), journal.phases[0].event) == (5, "begin")


def test_the_highest_moment_is_kept_with_its_event() -> None:
    journal = Journal()
    journal.begin("one")
    journal.put("a", {"x": 5, "y": 2})
    journal.spike("b", {"z": 10}, "spike")
    journal.put("a", {"x": 1}, event="later")
    moment = journal.phases[0]
    assert (moment.bytes_on("device"), moment.event) == (17, "spike")
    assert dict(moment.device) == {("a", "x"): 5, ("a", "y"): 2, ("b", "z"): 10}
    assert journal.size("device") == 8


def test_a_move_takes_named_categories_and_never_counts_them_twice() -> None:
    journal = Journal()
    journal.put("a", {"x": 5, "y": 2})
    journal.begin("one")
    assert journal.move("a", "device", "host", ["x", "none"]) == 5
    assert (journal.size("device"), journal.size("host")) == (2, 5)
    assert (journal.phases[0].bytes_on("device"), journal.phases[0].bytes_on("host")) == (7, 5)
    assert journal.move("a", "device", "host", []) == 0
    assert journal.drop("a", "host") == {"x": 5}
    assert journal.size("host") == 0


def test_highest_moments_of_device_and_host_need_not_be_the_same() -> None:
    journal = Journal()
    journal.put("a", {"x": 4})
    journal.begin("one")
    journal.spike("a", {"y": 9}, "device")
    journal.move("a", "device", "host", ["x"])
    moment = journal.phases[0]
    assert (moment.bytes_on("device"), moment.bytes_on("host"), moment.event) == (13, 4, "device")


def test_every_entry_tells_who_holds_what_and_when() -> None:
    journal = Journal()
    journal.put("a", {"x": 4})
    journal.begin("one")
    journal.take("work", 10)
    journal.spike("b", {"y": 5}, "spike", {"work": 7})
    journal.begin("two")
    assert [(entry.phase, entry.ns, entry.held.total(), entry.spike) for entry in journal.entries] == [
        (0, 0, 4, False), (0, 10, 4, False), (0, 10, 9, True), (0, 17, 9, True), (0, 17, 4, False), (1, 0, 4, False)]


def test_phases_add_up_their_own_time() -> None:
    journal = Journal()
    for phase, ns in (("one", 3), ("two", 4)):
        journal.begin(phase)
        journal.take("work", ns)
        journal.take("rest", 1)
    assert [moment.ns for moment in journal.phases] == [4, 5]
    assert [dict(moment.parts) for moment in journal.phases] == [{"work": 3, "rest": 1}, {"work": 4, "rest": 1}]


def test_copies_are_counted_by_direction() -> None:
    journal = Journal()
    journal.begin("one")
    for way, size in (("to_host", 7), ("to_device", 2), ("to_host", 3), ("to_device", 0)):
        journal.copy("to_host" if way == "to_host" else "to_device", size, 5 * size)
    assert journal.phases[0].copied == {"to_host": (2, 10), "to_device": (1, 2)}
    assert (journal.phases[0].copied_ns, journal.phases[0].ns) == (60, 60)
