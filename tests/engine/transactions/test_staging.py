"""What a node keeps of large transactions before their commit, told with one node that is its own cluster."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from engine.messages import Message, PrepareParts, Vote
from engine.node.node import Node
from engine.protocol.requests import (
    Code,
    CommitTx,
    Done,
    Failed,
    Get,
    KeepSessions,
    Put,
    Reply,
    Request,
    StageWrites,
    Unlock,
    Values,
)
from engine.protocol.sizes import KEYS_MAX
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.transactions import asking, coordinator, staging
from engine.transactions.asking import FLYING_OF_STAGED
from engine.transactions.coordinator import PREPARE_SECONDS_MAX
from engine.turn.events import Asked, ClientSeen
from engine.turn.settings import Settings
from rebalance.partition import Role
from rebalance.ports import MS, WORK_MAX
from rebalance.rule import NewMap
from wal import records as r
from wal.ids import NodeId, TxId, partition_of, tx_of

KEYS = (b"a", b"b", b"c", b"d")
MOST = 1_000
"""`staged_bytes_max`"""
LEASE_MS = 10_000


class Story:
    """A node of two partitions, and what it answers."""

    def __init__(self, most: int = MOST, *, partitions: int = 2, namespaces_max: int = 256) -> None:
        knobs = Settings(
            namespaces_max=namespaces_max, partitions=partitions, backups=0, staged_bytes_max=most, lock_lease_ms=LEASE_MS
        )
        replica = Replica(LayeredStore(MemoryStore()))
        self.node = Node(knobs, replica, node="n1", allocation="d1", address="n1:1", durable_lsn=0)
        self.node.turn(1, [])
        assert self.node.formation.form(1, 0, "c1", ["n1"]) == ""
        self.turns = 0  # of what was done last
        self.session = 1
        self.wait(1)
        self.number = 0

    def wait(self, ms: int) -> list[Reply]:
        """Time passes."""
        return self._turns(self.node.core.now + ms * MS, [])

    def ask(self, request: Request) -> Reply:
        """The one answer to a request."""
        (answer,) = self.turn(Asked(self.session, request))
        return answer

    def turn(self, *events: Asked | ClientSeen) -> list[Reply]:
        """What is answered, by as many turns as it takes."""
        return self._turns(self.node.core.now + 1, events)

    def _turns(self, now: int, events: Sequence[Asked | ClientSeen]) -> list[Reply]:
        found: list[Reply] = []
        self.turns = 0
        while True:
            effects = self.node.turn(now, events)
            self.turns += 1
            found += [reply for _, reply in effects.reply]
            core, events, now = self.node.core, [], now + 1
            if not (core.to_self or core.resumed):
                return found

    def tx(self) -> TxId:
        """Another id."""
        self.number += 1
        return tx_of(b"a session.", self.number)

    def stage(self, tx: TxId, number: int, *keys: bytes, size: int = 0, owner: TxId = b"", value: bytes = b"v") -> Reply:
        """Stage a piece that writes some keys; all have `size` bytes."""
        size = size or 2 * len(KEYS)
        where = partition_of(KEYS[0], 2)
        writes: list[tuple[str, list[bytes], list[bytes | None]]] = [("acc", list(keys), [value] * len(keys))]
        return self.ask(StageWrites(number, tx, owner or tx, where, number, size, writes))

    def commit(self, tx: TxId, staged: int, *, prepare_only: bool = False) -> Reply:
        """Commit what was staged, and the first key."""
        writes: list[tuple[str, list[bytes], list[bytes | None]]] = [("acc", [KEYS[0]], [b"v"])]
        return self.ask(CommitTx(99, tx, tx, True, writes, [], [], staged=staged, prepare_only=prepare_only))

    def values(self) -> list[bytes | None]:
        """What the keys have."""
        answer = self.ask(Get(98, "acc", list(KEYS)))
        assert isinstance(answer, Values)
        return [value for _, _, value in answer.values]


def code(reply: Reply) -> str:
    """Why it was refused, or nothing."""
    return reply.code if isinstance(reply, Failed) else ""


def test_a_commit_writes_what_was_staged_before_it_and_what_it_says_itself() -> None:
    story, tx = Story(), Story().tx()
    assert isinstance(story.stage(tx, 1, KEYS[1]), Done)
    assert isinstance(story.stage(tx, 2, KEYS[2], KEYS[3]), Done)
    assert story.values() == [None] * 4, "nothing of it has begun"
    assert isinstance(story.commit(tx, 2), Done)
    assert story.values() == [b"v"] * 4
    assert story.commit(tx, 2) == Done(99), "who asks again is told the same, though nothing is staged any more"
    assert story.stage(tx, 1, KEYS[1]) == Done(1), "and a piece that comes late is of no use"
    assert not story.node.coordinator.staging._staged


def test_a_commit_of_which_a_piece_is_missing_is_not_begun() -> None:
    story = Story()
    for pieces in (0, 1):
        tx = story.tx()
        for number in range(pieces):
            story.stage(tx, number + 1, KEYS[number + 1])
        assert code(story.commit(tx, 2)) == Code.UNSTAGED
        assert story.values() == [None] * 4
        for number in (1, 2):
            assert isinstance(story.stage(tx, number, KEYS[number]), Done), "it is staged again from the first one on"
        assert isinstance(story.commit(tx, 2), Done), "and committed under the same id"
        assert story.values() == [b"v", b"v", b"v", None]
        story.ask(Put(97, story.tx(), "acc", list(KEYS), [None] * 4))


def test_a_piece_that_is_said_twice_counts_once_and_one_that_comes_too_early_does_not() -> None:
    story = Story()
    tx = story.tx()
    assert code(story.stage(tx, 2, KEYS[2])) == Code.UNSTAGED, "nobody knows what came before"
    assert isinstance(story.stage(tx, 1, KEYS[1]), Done)
    assert isinstance(story.stage(tx, 1, KEYS[1]), Done)
    assert code(story.stage(tx, 3, KEYS[3])) == Code.UNSTAGED
    assert isinstance(story.stage(tx, 2, KEYS[2]), Done)
    assert isinstance(story.commit(tx, 2), Done)
    assert story.values() == [b"v", b"v", b"v", None]


def test_nobody_adds_to_what_another_connection_has_said() -> None:
    """Whose connection broke begins again over the next one, with as much room; so does who only has the same id."""
    story = Story()
    tx = story.tx()
    story.stage(tx, 1, KEYS[3], size=MOST)
    story.session = 2
    assert code(story.stage(tx, 2, KEYS[2], size=MOST)) == Code.UNSTAGED
    assert code(story.commit(tx, 1)) == Code.UNSTAGED
    assert isinstance(story.stage(tx, 1, KEYS[1], size=MOST), Done)
    assert isinstance(story.commit(tx, 1), Done)
    assert story.values() == [b"v", b"v", None, None]


def test_what_a_connection_has_said_goes_with_it() -> None:
    story = Story()
    story.stage(story.tx(), 1, KEYS[1], size=MOST)
    story.turn(ClientSeen(2))
    assert code(story.stage(story.tx(), 1, KEYS[1])) == Code.BUSY
    story.turn(ClientSeen(1))
    story.session = 3
    assert isinstance(story.stage(story.tx(), 1, KEYS[1]), Done)


def test_what_is_prepared_and_not_committed_yet_leaves_its_room_to_others() -> None:
    story = Story()
    tx = story.tx()
    story.stage(tx, 1, *KEYS[1:], size=MOST)
    assert story.commit(tx, 1, prepare_only=True) == Done(99)
    assert isinstance(story.stage(story.tx(), 1, KEYS[1], size=MOST), Done)


def test_two_transactions_that_are_staged_at_once_are_two() -> None:
    story = Story()
    mine, other = story.tx(), story.tx()
    story.stage(mine, 1, KEYS[1], value=b"1")
    story.stage(other, 1, KEYS[2], value=b"2")
    assert isinstance(story.commit(other, 1), Done)
    assert story.values() == [b"v", None, b"2", None]
    assert isinstance(story.commit(mine, 1), Done)
    assert story.values() == [b"v", b"1", b"2", None]


def test_what_is_staged_is_bounded_and_room_is_for_whole_transactions() -> None:
    story = Story()
    first, second = story.tx(), story.tx()
    assert isinstance(story.stage(first, 1, KEYS[1], size=700), Done)
    refused = story.stage(second, 1, KEYS[2], size=301)
    assert code(refused) == Code.BUSY
    assert isinstance(refused, Failed)
    assert "`staged_bytes_max`" in refused.message
    assert refused.retryable
    assert isinstance(story.stage(second, 1, KEYS[2], size=300), Done)
    assert isinstance(story.stage(first, 2, KEYS[3], size=700), Done), "who has begun has room for the rest"
    assert code(story.stage(story.tx(), 1, KEYS[1], size=MOST + 1)) == Code.USAGE, "that would be in vain for ever"
    assert isinstance(story.commit(second, 1), Done)
    assert isinstance(story.stage(story.tx(), 1, KEYS[1], size=300), Done), "its room is there again"


def test_more_than_was_said_or_can_be_is_refused_and_forgotten() -> None:
    story = Story(1 << 30)
    tx = story.tx()
    story.stage(tx, 1, KEYS[1], size=4)
    refused = story.stage(tx, 2, KEYS[2], size=4, value=b"vv")
    assert (code(refused), code(story.commit(tx, 1))) == (Code.USAGE, Code.UNSTAGED)
    tx = story.tx()
    story.stage(tx, 1, KEYS[1])
    assert code(story.stage(tx, 2, KEYS[2], KEYS[1])) == Code.USAGE, "a key is in two pieces"
    tx = story.tx()
    story.stage(tx, 1, KEYS[0])
    assert code(story.commit(tx, 1)) == Code.USAGE, "or in a piece and in the commit"
    tx = story.tx()
    many = [b"%06d" % number for number in range(KEYS_MAX)]
    assert isinstance(story.stage(tx, 1, *many, size=1 << 20), Done)
    assert code(story.commit(tx, 1)) == Code.USAGE, "one key too many"
    assert story.values() == [None] * 4


def test_what_is_staged_can_be_written_as_anything_else_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there may be such a namespace, and whether it is written now, is looked at when it is to be."""
    story = Story(namespaces_max=1)
    tx = story.tx()
    story.ask(Put(1, story.tx(), "acc", [KEYS[0]], [b"here"]))
    where = partition_of(KEYS[0], 2)
    assert isinstance(story.ask(StageWrites(1, tx, tx, where, 1, 9, [("more", [KEYS[1]], [b"v"])])), Done)
    assert code(story.commit(tx, 1)) == Code.USAGE
    tx = story.tx()
    assert isinstance(story.ask(StageWrites(1, tx, tx, where, 1, 9, [("bank", [KEYS[1]], [b"v"])])), Done)
    monkeypatch.setattr(story.node.core, "read_only", {"bank": 0})
    monkeypatch.setattr(story.node.admission, "not_there", lambda _: "")
    assert code(story.commit(tx, 1)) == Code.LOST
    assert story.values() == [b"here", None, None, None]


def test_all_of_it_together_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    for most, expected in ((6, ""), (5, Code.USAGE)):
        tx = story.tx()
        story.stage(tx, 1, KEYS[1], KEYS[2], size=4)
        monkeypatch.setattr(staging, "TRANSACTION_BYTES_MAX", most)
        assert code(story.commit(tx, 1)) == expected


def test_what_is_decided_elsewhere_by_another_map_is_forgotten() -> None:
    story = Story()
    story.stage(story.tx(), 1, KEYS[1], size=MOST)
    story.node.coordinator.switch(NewMap([], [], []))
    assert code(story.stage(story.tx(), 1, KEYS[1])) == Code.BUSY, "it is decided here still"
    story.node.core.local[partition_of(KEYS[0], 2)].role = Role.BACKUP
    story.node.coordinator.switch(NewMap([], [], []))
    assert not story.node.coordinator.staging._staged


def test_whose_client_says_nothing_more_is_forgotten_after_a_lease() -> None:
    story = Story()
    tx = story.tx()
    story.stage(tx, 1, KEYS[1], size=MOST)
    story.wait(LEASE_MS - 1)
    story.stage(tx, 2, KEYS[2], size=MOST)
    story.wait(LEASE_MS - 1)
    assert code(story.stage(story.tx(), 1, KEYS[1])) == Code.BUSY, "each piece renews it"
    story.wait(2)
    assert not story.node.coordinator.staging._staged
    assert code(story.commit(tx, 2)) == Code.UNSTAGED
    assert isinstance(story.stage(story.tx(), 1, KEYS[1]), Done)


def test_what_is_given_up_is_forgotten_at_once() -> None:
    story = Story()
    tx, owner = story.tx(), b"o" * 16
    story.stage(tx, 1, KEYS[1], size=MOST, owner=owner)
    story.ask(Unlock(2, b"p" * 16))
    assert code(story.stage(story.tx(), 1, KEYS[1])) == Code.BUSY
    story.ask(Unlock(2, owner))
    assert isinstance(story.stage(story.tx(), 1, KEYS[1]), Done)


def test_what_is_prepared_only_is_committed_without_being_staged_again() -> None:
    story = Story()
    tx = story.tx()
    story.stage(tx, 1, *KEYS[1:])
    assert story.commit(tx, 1, prepare_only=True) == Done(99)
    assert story.commit(tx, 1) == Done(99)
    assert story.values() == [b"v"] * 4


def test_who_has_acknowledged_an_answer_is_not_believed_to_begin_again() -> None:
    story = Story()
    tx = story.tx()
    story.stage(tx, 1, KEYS[1])
    story.commit(tx, 1)
    story.ask(KeepSessions(3, [(b"a session.", story.number)]))
    for number in (0, 1):
        story.node.core.replica.apply(r.Forget(number, 1, [(b"a session.", story.number)]))
    story.ask(Put(97, story.tx(), "acc", [KEYS[1]], [b"later"]))
    story.stage(tx, 1, KEYS[1])
    assert code(story.commit(tx, 1)) == Code.ANSWERED
    assert story.values()[1] == b"later"


class Asked16:
    """A coordinator of sixteen partitions, of which each part has a hundred bytes; nobody hears what it asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, flying: int, *, refused_by: int = -1) -> None:
        self.story = Story(FLYING_OF_STAGED * flying, partitions=16)
        self.tx = self.story.tx()
        self.asked: list[PrepareParts] = []
        core = self.story.node.core
        tell = core.tell

        def hear(to: NodeId, said: Message) -> None:
            if not isinstance(said, PrepareParts):
                tell(to, said)
                return
            self.asked.append(said)
            for part in said.parts:
                if part.partition == refused_by:
                    no = Vote(core.fence, self.tx, part.partition, 1, yes=False, reason="no")
                    self.story.node.coordinator.on_vote("n1", no)

        monkeypatch.setattr(core, "tell", hear)
        by_partition = {partition_of(key, 16): key for key in (b"%06d" % number for number in range(200))}
        first, *rest = (by_partition[number] for number in range(16))
        where, value = partition_of(first, 16), bytes(94)
        writes: list[tuple[str, list[bytes], list[bytes | None]]] = [("acc", rest, [value] * 15)]
        self.story.ask(StageWrites(1, self.tx, self.tx, where, 1, 1_500, writes))
        self.story.turn(Asked(1, CommitTx(2, self.tx, self.tx, True, [("acc", [first], [value])], [], [], staged=1)))

    def parts(self) -> list[int]:
        """Of which parts votes were asked for since this was asked last."""
        asked, self.asked = self.asked, []
        return [part.partition for one in asked for part in one.parts]

    def vote(self, *numbers: int) -> None:
        """These vote."""
        fence, node = self.story.node.core.fence, self.story.node
        for number in numbers:
            node.coordinator.on_vote("n1", Vote(fence, self.tx, number, 1, yes=True, reason=""))
        self.story.wait(0)


def test_no_more_is_asked_for_than_may_be_on_its_way_and_the_rest_as_votes_come(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Asked16(monkeypatch, 350)
    asked = told.parts()
    assert asked == [0, 1, 2, 3], "the fourth begins within it"
    assert code(told.story.stage(told.story.tx(), 1, KEYS[1], size=1_300)) == Code.BUSY, "it is here until it has voted"
    told.vote(1)
    assert told.parts() == [4]
    told.vote(0, 2, 3, 4)
    assert told.parts() == [5, 6, 7, 8]
    large = told.story.node.coordinator.active[told.tx].large
    assert large is not None
    assert (large.flying, large.size) == (400, 1_600)
    assert sorted(told.story.node.coordinator.active[told.tx].parts) == [*range(5, 16)], "what has voted is kept no more"
    for number in range(5, 16):
        told.vote(number)
    assert told.story.node.coordinator._committing() == 0, "its room is there for others"


def test_what_does_not_vote_is_asked_again_after_a_while_that_its_bytes_make_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Asked16(monkeypatch, 350)
    core = told.story.node.core
    after = core.settings.retransmit_ms
    core.settings = msgspec.structs.replace(core.settings, link_bytes_per_s=400 * 1000 // after)
    told.parts()
    told.vote(2)
    assert told.parts() == [4]
    told.story.wait(3 * after - 5)
    assert told.parts() == [], "four hundred bytes are to come, and to be logged on copies"
    told.story.wait(10)
    assert told.parts() == [0, 1, 3, 4], "and then those that have not voted are asked again, and nobody else"
    told.story.wait(after + 5)
    assert told.parts() == []
    told.story.node.coordinator.on_peer_seen("n1")
    told.story.wait(5)
    assert told.parts() == [0, 1, 3, 4], "what was on its way over a connection that broke is asked for at once"


def test_a_turn_asks_for_as_much_as_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ROUND_BYTES", 250)
    monkeypatch.setattr(asking, "BYTES_OF_WORK", 300 / WORK_MAX)
    told = Asked16(monkeypatch, 1_600)
    assert told.parts() == [*range(16)]
    assert told.story.turns == 6, "one for the commit, and one for each three parts that it has no room for"


def test_a_large_transaction_that_comes_to_nothing_is_asked_about_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Asked16(monkeypatch, 350)
    told.parts()
    node = told.story.node
    node.coordinator.on_vote("n1", Vote(node.core.fence, told.tx, 0, 1, yes=False, reason="no"))
    told.vote(1, 2, 3)
    assert told.parts() == []
    assert node.coordinator._committing() == 0


def test_who_votes_no_in_the_middle_of_a_turn_ends_the_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ROUND_BYTES", 100)
    told = Asked16(monkeypatch, 1_600, refused_by=2)
    assert told.parts() == [0, 1, 2]


def test_who_has_voted_when_all_are_asked_anew_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Asked16(monkeypatch, 350)
    told.parts()
    told.story.node.coordinator.switch(NewMap([], [], []))
    told.story.wait(0)
    assert told.parts() == [0, 1, 2, 3]
    told.vote(5)
    told.vote(0, 1, 2, 3)
    assert told.parts() == [4, 6, 7, 8]


def test_a_large_transaction_is_waited_for_a_while_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "BYTES_PER_MS", 1)
    told = Asked16(monkeypatch, 350)
    told.story.wait(PREPARE_SECONDS_MAX * 1000 + 1_500)
    assert told.story.node.coordinator._committing() == 1_600
    told.story.wait(600)
    assert told.story.node.coordinator._committing() == 0, "by as much as its bytes may take"
