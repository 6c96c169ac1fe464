"""All connections of a port: how many there may be, how many bytes of requests that aren't whole, and who goes for a newcomer.

Nobody is turned away for what somebody else has not finished. A port that refuses newcomers when it is full is shut by whoever
fills it, and one that counts by address alone shuts out an API server whose calls come through a proxy (konnectivity, a load
balancer, a node that translates addresses), so that all of them, and perhaps an attacker's, have one address. So there is no
number for an address. When there is no room, who makes it is

* of those that keep us waiting: for TLS, a header, a body, or for an answer to be taken. A real client needs milliseconds
  for that. While we work on a request, its connection never goes;
* of the address that has most of what is short, so that 500 connections from one pod cost the API server none of its own, and
  each of N addresses can have its N-th part;
* there the one that has waited longest, so that of one address, too, the silent ones go before one that has just come. Where
  bytes are short the one that has most of them, so that one large body that stands still goes before many small reviews.

Only if nobody keeps us waiting, connections at rest go in the same order: their clients open new ones. Only if there are none
either, and we work on all, a newcomer is refused.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol


class Member(Protocol):
    """A connection, as the room knows it."""

    @property
    def address(self) -> str:
        """Its client's."""

    @property
    def received(self) -> int:
        """Bytes of a request that isn't whole yet."""

    def refuse(self) -> None:
        """Give back what was received, and end soon."""

    def end(self, why: str) -> None:
        """Leave the room at once."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a port takes.

    Attributes:
        connections: Open at a time.
        received: Bytes of all requests that aren't whole yet.
        header: Seconds from the connection, or from a request's first byte, until its header is there.
        answer: Seconds that a client may take for the answer, and for the end of the connection.
    """

    connections: int
    received: int
    header: float = 5.0
    answer: float = 5.0


class Room:
    """Who is in it.

    Args:
        bounds: How many.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.ended: dict[str, int] = {"room": 0, "time": 0}
        """How many connections we ended, by what was short."""
        self.empty = asyncio.Event()
        """Set while nobody is in it."""
        self.empty.set()
        self._members: dict[Member, _Line | None] = {}
        self._waited_for, self._resting = _Line(), _Line()
        self._received = 0

    def __len__(self) -> int:
        return len(self._members)

    def enter(self, member: Member) -> bool:
        """Let it in as one that is waited for; false: there is no room."""
        if len(self._members) >= self.bounds.connections:
            goes = self._waited_for.longest() or self._resting.longest()
            if goes is None:
                return False
            goes.end("room")
        self._members[member] = None
        self.empty.clear()
        self.wait_for(member)
        return True

    def leave(self, member: Member) -> None:
        """It is gone. May be called again."""
        self._move(member, None)
        self._members.pop(member, None)
        if not self._members:
            self.empty.set()

    def wait_for(self, member: Member) -> None:
        """It is its client's turn."""
        self._move(member, self._waited_for)

    def work_for(self, member: Member) -> None:
        """It is our turn: it stays whatever comes."""
        self._move(member, None)

    def rest(self, member: Member) -> None:
        """It is nobody's turn."""
        self._move(member, self._resting)

    def is_resting(self, member: Member) -> bool:
        """Whether it is nobody's turn."""
        return self._members.get(member) is self._resting

    def is_waiting_for(self, member: Member) -> bool:
        """Whether it is its client's turn."""
        return self._members.get(member) is self._waited_for

    def receive(self, count: int) -> None:
        """A member that is waited for, and has counted them already, got so many bytes."""
        self._received += count
        while self._received > self.bounds.received:
            self._waited_for.largest().refuse()

    def give_back(self, count: int) -> None:
        """So many bytes that were received are no longer held for a request that isn't whole."""
        self._received -= count

    def _move(self, member: Member, line: "_Line | None") -> None:
        if member not in self._members:
            return
        before = self._members[member]
        if before is not None:
            before.remove(member)
        if line is not None:
            line.append(member)
        self._members[member] = line


class _Line:
    """Members in the order in which they joined it, by address."""

    def __init__(self) -> None:
        self._of: dict[str, dict[Member, None]] = {}

    def append(self, member: Member) -> None:
        self._of.setdefault(member.address, {})[member] = None

    def remove(self, member: Member) -> None:
        of_address = self._of[member.address]
        del of_address[member]
        if not of_address:
            del self._of[member.address]

    def longest(self) -> Member | None:
        """Of the address with most members, the one that is in line for longest; None: there is nobody."""
        return next(iter(self._most(len)), None)

    def largest(self) -> Member:
        """Of the address that has received most, the one that has; somebody has."""
        of_address = self._most(lambda members: sum(member.received for member in members))
        return max(of_address, key=lambda member: member.received)

    def _most(self, weight: Callable[[dict[Member, None]], int]) -> Iterable[Member]:
        return max(self._of.values(), key=weight, default={})
