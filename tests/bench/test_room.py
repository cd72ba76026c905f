"""Processes that share a GPU's memory: as many at a time as fit, in the order in which they came."""

from __future__ import annotations

import asyncio

import pytest

from engine.bench.room import Room


def room_of(places: int) -> Room:
    """One that keeps a place for a successor no longer than until the event loop comes round."""
    return Room(places, succession_s=0.0)


class Crowd:
    """Evaluations that stay until they are told to leave."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.inside: list[str] = []
        self._leaving: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def comes(self, name: str, wanted: int, *, urgent: bool = False) -> None:
        self._leaving[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._stay(name, wanted, urgent))
        await self._settled()

    async def leaves(self, name: str) -> None:
        self._leaving[name].set()
        await self.tasks[name]
        await self._settled()

    async def _stay(self, name: str, wanted: int, urgent: bool) -> None:
        async with self.room.taken(wanted, urgent=urgent):
            self.inside.append(name)
            await self._leaving[name].wait()
            self.inside.remove(name)

    async def _settled(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_as_many_are_inside_as_fit() -> None:
    crowd = Crowd(room_of(4))
    for name in "abc":
        await crowd.comes(name, 2)
    assert crowd.inside == ["a", "b"]
    await crowd.leaves("a")
    assert crowd.inside == ["b", "c"]
    await asyncio.gather(crowd.leaves("b"), crowd.leaves("c"))


async def test_a_large_one_is_not_passed_by_small_ones_for_ever() -> None:
    crowd = Crowd(room_of(3))
    await crowd.comes("small", 1)
    await crowd.comes("large", 3)
    await crowd.comes("late", 1)
    assert crowd.inside == ["small"]
    await crowd.leaves("small")
    assert crowd.inside == ["large"]
    await crowd.leaves("large")
    assert crowd.inside == ["late"]
    await crowd.leaves("late")


@pytest.mark.parametrize("places", [0, 1, 2])
async def test_who_wants_more_than_there_is_gets_all_of_it(places: int) -> None:
    crowd = Crowd(room_of(places))
    await crowd.comes("huge", 5)
    await crowd.comes("next", 1)
    assert crowd.inside == ["huge"]
    await crowd.leaves("huge")
    await crowd.leaves("next")


async def test_a_win_that_waits_to_be_confirmed_goes_first() -> None:
    crowd = Crowd(room_of(2))
    await crowd.comes("running", 2)
    await crowd.comes("search", 2)
    await crowd.comes("confirmation", 2, urgent=True)
    await crowd.leaves("running")
    assert crowd.inside == ["confirmation"]
    await crowd.leaves("confirmation")
    assert crowd.inside == ["search"]
    await crowd.leaves("search")


async def test_the_confirmation_that_follows_from_a_search_comes_before_a_search_that_waits() -> None:
    crowd = Crowd(Room(2))
    await crowd.comes("search", 2)
    await crowd.comes("next search", 2)
    await crowd.leaves("search")  # what it found is looked at, and turns out to be a win
    await crowd.comes("its confirmation", 2, urgent=True)
    assert crowd.inside == ["its confirmation"]
    await crowd.leaves("its confirmation")
    assert crowd.inside == ["next search"]
    await crowd.leaves("next search")


async def test_who_is_admitted_and_cancelled_at_once_leaves_no_place_taken() -> None:
    room = room_of(1)
    crowd = Crowd(room)
    await crowd.comes("a", 1, urgent=True)
    await crowd.comes("b", 1)
    crowd._leaving["a"].set()
    await crowd.tasks["a"]
    crowd.tasks["b"].cancel()  # before it has noticed that it is in
    await asyncio.gather(crowd.tasks["b"], return_exceptions=True)
    assert not room.is_full(1)


async def test_who_gives_up_waiting_leaves_no_place_taken() -> None:
    crowd = Crowd(room_of(2))
    await crowd.comes("a", 2)
    await crowd.comes("b", 1)
    crowd.tasks["b"].cancel()
    await asyncio.gather(crowd.tasks["b"], return_exceptions=True)
    await crowd.comes("c", 2)
    await crowd.leaves("a")
    assert crowd.inside == ["c"]
    await crowd.leaves("c")
