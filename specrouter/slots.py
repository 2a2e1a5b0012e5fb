"""Which slot of a server a request should use, so that the cache it left there is found again. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class SlotLease:
    """A slot in use by one request; `slot` is None where none was free and the server may choose."""

    def __init__(self, leases: SlotLeases, slot: int | None) -> None:
        self.slot = slot
        self._leases = leases

    def remember(self, context: Sequence[int]) -> None:
        """These tokens are what the slot's cache will hold."""
        if self.slot is not None:
            self._leases.contents[self.slot] = context

    def release(self) -> None:
        """The request is over; its cache stays."""
        if self.slot is not None:
            self._leases.taken.discard(self.slot)


class SlotLeases:
    """The slots of one server: those taken, and what was last in each."""

    def __init__(self) -> None:
        self.taken: set[int] = set()
        self.contents: dict[int, Sequence[int]] = {}

    def take(self, prompt: Sequence[int], slots: int) -> SlotLease:
        """The free one of `slots` slots that shares the longest beginning with the prompt, or no slot."""
        free = [slot for slot in range(slots) if slot not in self.taken]
        if not free:
            return SlotLease(self, None)
        # On a tie, an unused slot rather than one that holds another conversation.
        best = max(free, key=lambda slot: (_common(self.contents.get(slot, ()), prompt), slot not in self.contents))
        self.taken.add(best)
        return SlotLease(self, best)


class SideSlots:
    """The slots of one server for side requests, kept from one answer to the next.

    A side request without a slot of its own goes to the one that was idle longest, and empties a conversation's cache.
    """

    def __init__(self) -> None:
        self._idle: list[int] = []
        self._held: set[int] = set()

    def take(self) -> int | None:
        """An idle slot to hold, the one used last; None where the server has to choose."""
        return self.hold(self._idle[-1]) if self._idle else None

    def hold(self, slot: int | None) -> int | None:
        """Hold a slot that the server chose; None where another answer's side requests hold it already."""
        if slot is None or slot in self._held:
            return None
        if slot in self._idle:
            self._idle.remove(slot)
        self._held.add(slot)
        return slot

    def give_back(self, slot: int) -> None:
        """Its answer is over; the next one may take it."""
        self._held.remove(slot)
        self._idle.append(slot)

    def forget(self, slot: int) -> None:
        """It serves somebody else now."""
        self._held.remove(slot)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of tokens that both begin with."""
    differences = (index for index, (left, right) in enumerate(zip(one, other, strict=False)) if left != right)
    return next(differences, min(len(one), len(other)))
