"""A commit of more than one request holds: what its client says, and again, when answers are lost or the map changes."""

from __future__ import annotations

import asyncio

import pytest

from engine import errors
from engine.client.calls import Call
from engine.client.deciding import decide
from engine.client.ends import CommitCall
from engine.client.session import C, Session
from engine.protocol.requests import Code, CommitTx, Done, Failed, Remap, Reply, Request, StageWrites
from tests.engine.client.test_routing import KEYS, SECOND, A, B, Story, table
from wal.ids import Version

VALUE = b"v" * 8
SIZE = 2 * len(VALUE) + len(KEYS[1]) + len(KEYS[2])
"""Of the pieces that are staged."""


def begun(story: Story) -> CommitCall:
    """A commit of three pieces, of a key each, decided in the first key's partition."""
    keys = [KEYS[0], KEYS[1], KEYS[2]]
    call = CommitCall(
        story.router.identity.new_tx(story.now),
        bytes(16),
        optimistic=True,
        writes=[("acc", keys, [VALUE] * 3)],
        locks=[],
        reads=[],
        ttls=[("acc", KEYS[2], 5)],
        size=SIZE + len(KEYS[0]) + len(VALUE),
        at_once=len(VALUE) + 4,
    )
    story.router.begin(call, story.now, story.now + 10 * SECOND)
    return call


class Told(Story):
    """What the two nodes were asked about the transaction, and what they answer."""

    def asked(self, address: str) -> StageWrites | CommitTx:
        """The one thing that was asked of a node, and of no other one."""
        found: list[tuple[str, Request]] = [(to, x) for to, x in self.sent() if isinstance(x, StageWrites | CommitTx)]
        ((to, request),) = found
        assert to == address
        assert isinstance(request, StageWrites | CommitTx)
        return request

    def answer(self, address: str, reply: Reply) -> None:
        """A node answers."""
        self.router.on_reply(address, reply, self.now)

    def stage(self, address: str, *numbers: int) -> None:
        """These pieces are asked of a node, each when the one before was answered."""
        for number in numbers:
            piece = self.asked(address)
            assert isinstance(piece, StageWrites)
            assert (piece.number, piece.partition, piece.size) == (number, 0, SIZE)
            assert piece.writes == [("acc", [KEYS[number]], [VALUE])]
            assert piece.ttls == ([("acc", KEYS[2], 5)] if number == 2 else [])
            self.answer(address, Done(piece.id))

    def commit(self, address: str) -> CommitTx:
        """The commit is asked of a node."""
        request = self.asked(address)
        assert isinstance(request, CommitTx)
        assert (request.staged, request.writes) == (2, [("acc", [KEYS[0]], [VALUE])])
        return request


def test_pieces_are_said_one_after_the_other_and_then_the_commit_with_the_first_of_all() -> None:
    told = Told()
    call = begun(told)
    told.stage(A, 1, 2)
    told.answer(A, Done(told.commit(A).id))
    assert call.finished
    assert call.applied


def test_who_decides_by_now_and_has_not_all_of_it_is_told_all_of_it_under_the_same_id() -> None:
    told = Told()
    call = begun(told)
    told.stage(A, 1)
    told.answer(A, Remap(told.asked(A).id, Version(1, 0)))
    told.answer(A, table(Version(2, 0), "bbbb"))
    told.wait(100)
    second = told.asked(B)
    assert isinstance(second, StageWrites)
    assert second.number == 2, "it may have heard the first one"
    told.answer(B, Failed(second.id, Code.UNSTAGED, "", retryable=True))
    told.wait(100)
    told.stage(B, 1, 2)
    commit = told.commit(B)
    assert commit.tx == call.tx
    told.answer(B, Failed(commit.id, Code.UNSTAGED, "", retryable=True))
    told.wait(200)
    told.stage(B, 1, 2)
    told.answer(B, Done(told.commit(B).id))
    assert call.finished
    assert call.error is None


def test_what_was_only_staged_has_certainly_not_happened() -> None:
    """No answer came to a piece, once or to the end: nobody needs to ask what became of the transaction."""
    told = Told()
    call = begun(told)
    told.stage(A, 1)
    told.asked(A)
    told.wait(11_000)
    assert type(call.error) is errors.Unavailable
    told = Told()
    call = begun(told)
    told.asked(A)
    told.router.on_disconnected(A, told.now)
    told.router.on_connected(A, told.now)
    told.wait(100)
    told.answer(A, Failed(told.asked(A).id, Code.USAGE, "no"))
    assert type(call.error) is errors.UsageError
    told = Told()
    call = begun(told)
    told.asked(A)
    told.router.on_disconnected(A, told.now)
    told.router.on_connected(A, told.now)
    told.wait(100)
    told.stage(A, 1, 2)
    told.answer(A, Failed(told.commit(A).id, Code.USAGE, "no"))
    assert type(call.error) is errors.UsageError, "that a piece was not answered is of no account"


def test_a_commit_without_an_answer_may_have_happened() -> None:
    told = Told()
    call = begun(told)
    told.stage(A, 1, 2)
    told.commit(A)
    told.router.on_disconnected(A, told.now)
    told.router.on_connected(A, told.now)
    told.wait(100)
    again = told.commit(A)
    assert again.staged == 2, "it is asked again as it was"
    told.answer(A, Failed(again.id, Code.UNSTAGED, "", retryable=True))
    told.wait(200)
    told.asked(A)
    told.wait(11_000)
    assert type(call.error) is errors.CommitUnknown


@pytest.mark.parametrize("refusal", [Code.CONFLICT, Code.USAGE, Code.DEADLOCK])
def test_a_refusal_of_the_commit_is_told_as_it_is(refusal: str) -> None:
    told = Told()
    call = begun(told)
    told.stage(A, 1, 2)
    told.answer(A, Failed(told.commit(A).id, refusal, "no"))
    assert call.error is not None
    assert not isinstance(call.error, errors.CommitUnknown)


def test_what_is_small_is_one_request() -> None:
    told = Told()
    call = CommitCall(
        told.router.identity.new_tx(told.now),
        bytes(16),
        optimistic=True,
        writes=[("acc", [KEYS[0]], [VALUE])],
        locks=[],
        reads=[],
    )
    told.router.begin(call, told.now, told.now + SECOND)
    request = told.asked(A)
    assert isinstance(request, CommitTx)
    assert (request.staged, request.writes) == (0, call.write_set)


def test_what_was_staged_to_be_prepared_is_taken_to_be_staged_for_the_commit() -> None:
    asked: list[tuple[type[Call], int]] = []

    class Staged(Session):
        """Answers all, and knows two pieces by then."""

        def __init__(self) -> None:
            """It needs no loop."""

        async def call(self, call: C, *, timeout: float | None = None) -> C:
            """Done."""
            if isinstance(call, CommitCall):
                asked.append((type(call), call.staged))
                call.staged = 2
            return call

    def commit() -> CommitCall:
        return CommitCall(bytes(16), bytes(16), optimistic=True, writes=[], locks=[], reads=[])

    asyncio.run(decide(Staged(), commit(), commit(), [], 1.0))
    assert asked == [(CommitCall, 0), (CommitCall, 2)]
