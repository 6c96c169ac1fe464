"""port.room: who goes when there is no room."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.port.room import Bounds, Room


@dataclass(eq=False)
class Client:
    """A connection that does as it is told."""

    room: Room
    address: str
    received: int = 0
    ended: bool = False
    refused: bool = False

    def refuse(self) -> None:
        """See `room.Member`."""
        self.refused = True
        self.room.give_back(self.received)
        self.received = 0

    def end(self, why: str) -> None:
        """See `room.Member`."""
        assert why == "room"
        self.ended = True
        self.room.leave(self)

    def get(self, count: int) -> None:
        """Send so many bytes."""
        self.received += count
        self.room.receive(count)


def entered(room: Room, *addresses: str) -> list[Client]:
    """Clients that came in this order."""
    clients = [Client(room, address) for address in addresses]
    assert all(map(room.enter, clients))
    return clients


def ended(clients: list[Client]) -> list[int]:
    """Which of them had to go."""
    return [number for number, client in enumerate(clients) if client.ended]


@pytest.fixture
def room() -> Room:
    """For four connections, and 100 bytes."""
    return Room(Bounds(connections=4, received=100))


def test_a_newcomer_comes_in(room: Room) -> None:
    """Of the address that has most, the one that has kept us waiting for longest goes, though others were there before."""
    assert ended(entered(room, "api server", "pod", "pod", "prometheus", "api server")) == [1]
    assert len(room) == 4


def test_one_address_for_all(room: Room) -> None:
    """Behind a proxy, too, newcomers come in: silent ones go, one by one, the first one first."""
    clients = entered(room, *["proxy"] * 4)
    room.work_for(clients[1])
    assert ended(clients + entered(room, "proxy", "proxy")) == [0, 2]


def test_who_is_worked_for_stays(room: Room) -> None:
    """Whoever comes, a request that is whole is answered; if all are, a newcomer is refused."""
    clients = entered(room, *["api server"] * 4)
    for client in clients:
        room.work_for(client)
    assert not room.enter(Client(room, "api server"))
    assert ended(clients) == []


def test_who_rests_goes_last(room: Room) -> None:
    """A kept connection goes only if nobody keeps us waiting, again of the address that has most."""
    clients = entered(room, "api server", "api server", "api server", "pod")
    for client in clients[:3]:
        room.rest(client)
    clients += entered(room, "pod")
    assert ended(clients) == [3]
    room.rest(clients[-1])
    clients += entered(room, "pod")
    assert ended(clients) == [0, 3]


@given(st.lists(st.sampled_from(["a", "b", "c", "api server"]), max_size=60), st.integers(4, 12))
def test_shares(addresses: list[str], connections: int) -> None:
    """Whoever comes in whatever order, an address with less than its share of the room loses no connection."""
    room = Room(Bounds(connections, 0))
    there: list[Client] = []
    for address in addresses:
        before = [client.address for client in there]
        [newcomer] = entered(room, address)
        gone = [client.address for client in there if client.ended]
        assert len(gone) == (len(there) == connections)
        there = [client for client in [*there, newcomer] if not client.ended]
        assert len(room) == len(there) <= connections
        assert all(before.count(address) >= connections / 4 for address in gone)


def test_bytes(room: Room) -> None:
    """Of the address that sent most of what isn't whole, the one that sent most is refused; small ones and others' are not."""
    api_server, small, large, other = entered(room, "api server", "pod", "pod", "other pod")
    api_server.get(30)
    small.get(10)
    large.get(25)
    other.get(20)
    assert not any(client.refused for client in (api_server, small, large, other))
    api_server.get(4)
    small.get(12)
    assert [client.refused for client in (api_server, small, large, other)] == [False, False, True, False]
    assert large.received == 0


def test_one_that_is_too_large_for_all(room: Room) -> None:
    """It is refused itself."""
    [client] = entered(room, "api server")
    client.get(101)
    assert client.refused


def test_bytes_that_are_given_back(room: Room) -> None:
    """What became whole, or went, makes room for others."""
    first, second = entered(room, "api server", "api server")
    for _ in range(3):
        first.get(90)
        first.room.give_back(first.received)
        first.received = 0
    second.get(100)
    assert not first.refused
    assert not second.refused
