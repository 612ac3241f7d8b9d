"""Who has mail is served: in what order, how often, and what an exception does."""

from __future__ import annotations

import asyncio

from paceline.actors.actor import Actor, Post
from paceline.actors.messages import Wake
from paceline.actors.pump import MOST, Pump

MAIL = Wake()


class Player(Actor):
    """Writes down what is done with it, and sends as it is told."""

    def __init__(self, post: Post, name: str, log: list[str], *, patient: bool = False) -> None:
        super().__init__(post)
        self.name = name
        self.patient = patient
        self.log = log
        self.sends: list[str] = []
        self.fails = ""

    def receive(self, message) -> None:
        self.log.append(f"{self.name} gets")
        if self.fails == "receive":
            raise ValueError("a bug")
        for name in self.sends:
            self._post.send(name, message)
        self.sends = []

    def settle(self) -> None:
        self.log.append(f"{self.name} settles")

    def reflect(self) -> None:
        if self.fails == "reflect":
            raise ValueError("a bug")
        self.log.append(f"{self.name} reflects")


class Stage:
    def __init__(self, *names: str, patient: str = "") -> None:
        self.log: list[str] = []
        self.failures: list[tuple[str, str]] = []
        post = Post()
        self.players = {n: Player(post, n, self.log, patient=n in patient) for n in names}
        for name, player in self.players.items():
            post.register(name, player)
        self.pump = Pump(
            list(self.players.values()), lambda a, e: self.failures.append((a.name, str(e)))
        )

    def __getitem__(self, name: str) -> Player:
        return self.players[name]


async def turn() -> None:
    """One callback of the loop more."""
    await asyncio.sleep(0)


async def test_all_mail_is_taken_before_an_actor_settles_once():
    stage = Stage("a")
    for _ in range(3):
        stage["a"].send(MAIL)
    assert stage.log == [], "sending does nothing by itself"
    await turn()
    assert stage.log == ["a gets"] * 3 + ["a settles", "a reflects"]


async def test_a_chain_of_messages_is_one_callback_and_the_patient_come_last():
    stage = Stage("a", "b", "c", "p", patient="p")
    stage["a"].sends = ["p", "b"]
    stage["b"].sends = ["c"]
    stage["a"].send(MAIL)
    await turn()
    done = [entry for entry in stage.log if "gets" not in entry]
    assert done[:4] == ["a settles", "b settles", "c settles", "p settles"]
    assert done[4:] == ["a reflects", "b reflects", "c reflects", "p reflects"]


async def test_who_delivers_sees_it_done():
    stage = Stage("a", "b")
    stage["a"].sends = ["b"]
    stage["a"].deliver(MAIL)
    assert stage.log[-1] == "b reflects"
    await turn()
    assert stage.log.count("a settles") == 1


async def test_the_patient_wait_while_they_are_held():
    stage = Stage("a", "p", patient="p")
    stage["a"].sends = ["p"]
    stage.pump.hold()
    stage["a"].deliver(MAIL)
    stage["p"].send(MAIL)
    await turn()
    assert stage.log == ["a gets", "a settles"]
    stage["a"].deliver(MAIL)
    assert stage.log[-1] == "a settles", "everybody else goes on"
    stage.pump.resume()
    assert stage.log[4:] == ["p gets", "p gets", "p settles", "a reflects", "p reflects"]


async def test_two_that_never_stop_writing_to_each_other_leave_the_loop_to_others():
    stage = Stage("a", "b")

    for name, other in (("a", "b"), ("b", "a")):
        stage[name].receive = lambda message, other=other: stage[other].send(message)
    stage["a"].send(MAIL)
    for i in range(1, 6):
        await turn()
        assert len(stage.log) == i * MOST
    assert not any("reflects" in entry for entry in stage.log)


async def test_an_exception_ends_it_for_all_and_is_told_once():
    stage = Stage("a", "b")
    stage["a"].sends = ["b"]
    stage["b"].fails = "receive"
    stage["a"].send(MAIL)
    await turn()
    assert stage.failures == [("b", "a bug")]
    stage["a"].send(MAIL)
    stage["a"].deliver(MAIL)
    stage.pump.resume()
    await turn()
    assert stage.failures == [("b", "a bug")]
    assert stage.log == ["a gets", "a settles", "b gets"]


async def test_an_exception_while_counting_is_an_actors_too():
    stage = Stage("a", "b")
    stage["a"].sends = ["b"]
    stage["b"].fails = "reflect"
    stage["a"].send(MAIL)
    await turn()
    assert stage.failures == [("b", "a bug")]


async def test_after_the_end_nobody_is_served():
    stage = Stage("a")
    stage["a"].send(MAIL)
    stage.pump.stop()
    stage["a"].send(MAIL)
    await turn()
    assert stage.log == []
