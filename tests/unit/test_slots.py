"""Which slot a request uses, so that its cache is found again."""

from __future__ import annotations

from specrouter.slots import SideSlots, SlotLeases


def test_the_slot_with_the_longest_common_beginning() -> None:
    leases = SlotLeases()
    one, other = leases.take([1, 2, 3], 3), leases.take([9, 8, 7], 3)
    assert {one.slot, other.slot} < {0, 1, 2}
    one.remember([1, 2, 3, 4])
    other.remember([9, 8, 7])
    one.release()
    other.release()
    assert leases.take([9, 8, 7, 6], 3).slot == other.slot
    assert leases.take([1, 2, 3, 4, 5], 3).slot == one.slot


def test_a_new_conversation_takes_an_unused_slot() -> None:
    leases = SlotLeases()
    first = leases.take([1, 2], 2)
    first.remember([1, 2])
    first.release()
    assert leases.take([5, 6], 2).slot != first.slot


def test_slots_in_use_are_not_given_away() -> None:
    leases = SlotLeases()
    taken = [leases.take([1], 2) for _ in range(2)]
    assert {lease.slot for lease in taken} == {0, 1}
    beyond = leases.take([1], 2)
    assert beyond.slot is None
    beyond.remember([1, 2])
    beyond.release()
    assert leases.take([1], 2).slot is None
    taken[0].release()
    assert leases.take([1], 2).slot == taken[0].slot


def test_a_server_that_tells_no_slots() -> None:
    assert SlotLeases().take([1], 0).slot is None


def test_a_side_slot_is_kept_for_the_next_answer() -> None:
    slots = SideSlots()
    assert slots.take() is None
    assert slots.hold(3) == 3
    slots.give_back(3)
    assert slots.take() == 3


def test_answers_at_the_same_time_hold_different_side_slots() -> None:
    slots = SideSlots()
    assert slots.hold(3) == 3
    assert slots.take() is None
    # The server put both there: the second one leaves the choice to it again.
    assert slots.hold(3) is None
    assert slots.hold(2) == 2
    slots.give_back(3)
    slots.give_back(2)
    # What was used last is least likely somebody else's by now.
    assert [slots.take(), slots.take(), slots.take()] == [2, 3, None]


def test_a_side_slot_that_serves_somebody_else_is_forgotten() -> None:
    slots = SideSlots()
    slots.hold(3)
    slots.forget(3)
    assert slots.take() is None
    assert slots.hold(3) == 3


def test_a_server_that_tells_no_slot() -> None:
    assert SideSlots().hold(None) is None
