"""Single writes: put, delete and batches outside a transaction, and the conditional ones.

One partition needs one phase: a single record is prepare and commit. A blind put takes no lock and waits for nothing but
a transaction that holds its key; puts of the same key follow each other without waiting, ordered by their counters. A
conditional write, or one that computes its value, looks at what stands, so it takes the key's lock for as long as it is
under way; what is logged and shipped is the value (`engine.protocol.operations`). One that is not made has only read, and
is answered as a read is: when the copies have confirmed that this node is still primary.

A request carries a transaction id. If its result is known here, that is the answer; if it is under way, the new request
waits with the first. So a client may ask again, here or at the next primary: the write happens once, and what is told of it
is told again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial

from engine.data.admission import Admission
from engine.data.chains import JOIN_WORK, Chain, Stands, execute
from engine.data.cuts import Cuts
from engine.data.holdings import Key
from engine.data.lasting import lasts_ms
from engine.data.locks import LockTable
from engine.data.parts import Entries, Job, Keys, Parts, parts_of, split
from engine.data.reads import Reads
from engine.data.replication import Replication
from engine.data.under_way import UnderWay
from engine.data.waiter import Ring, Waiter, refused_lock
from engine.protocol.operations import Made
from engine.protocol.requests import Code, Done, Put, Swap
from engine.state.ahead import KEYS_OF_WORK, LARGE_KEYS
from engine.turn.core import Core
from engine.turn.events import SessionId
from rebalance.partition import LocalPartition, Role
from rebalance.ports import MS, WORK_MAX, leads, may_act
from rebalance.table import Topology
from wal import records as r
from wal.ids import DECISIONS, NAME, Namespace, TxId
from wal.probe import probe

_PRIMARY = Role.PRIMARY
PIECE_WORK = 500
"""Keys of a batch that one turn logs, about; the part of one partition is one record, and is not cut."""
ANSWER_MS = 100
"""So long before its client gives it up, or an eighth of that time, a write ends that did not get its lock."""
LOOKED_AT_ONCE = 128
"""Parts that are looked at in one piece,"""
LOOKED_OF_WORK = 4
"""so many of which are as much work as one thing that is decided."""


class Writes(UnderWay):
    """The single writes of one node."""

    def __init__(
        self, core: Core, replication: Replication, locks: LockTable, admission: Admission, reads: Reads, cuts: Cuts
    ) -> None:
        super().__init__(core, replication, locks, admission.desk, reads=reads, cuts=cuts)
        self.admission = admission
        self._confirm = reads.confirm
        admission.look_at_parts(self.under_way)

    def on_put(self, session: SessionId, request: Put, *, granted: bool = False) -> None:
        """Set keys, blindly. `granted`: it had to wait for transactions and holds the locks now."""
        core, namespace, locks = self.core, request.namespace, self.locks
        problem = self.admission.not_there(namespace)
        if problem:
            locks.give_up(request.tx, [(namespace, key) for key in request.keys])
            self.desk.refuse(session, request.id, Code.USAGE, problem)
            return
        assert core.topology is not None
        steady = self.admission.sessions.hear(request.tx, request.acked) and self._steady
        if len(request.keys) == 1 and steady and not granted and self._put_alone(session, request, core.topology):
            return  # how it nearly always is
        if len(request.keys) > LARGE_KEYS:
            core.in_pieces(self._put_in_pieces(session, request, granted=granted))
            return
        parts = parts_of(request, core.topology)
        core.work += len(request.keys) // KEYS_OF_WORK
        known: dict[int, None] = {}  # answered already, or under way
        for number in parts:
            if steady and self._begins(request, core.local[number]):
                continue  # how it nearly always is
            if not self._may_go_on(session, request, number, known):
                return
        if granted:
            asked = [(namespace, key) for n, (keys, _) in parts.items() if n not in known for key in keys]
            granted = locks.may_write_all(request.tx, asked)  # it may have been told some turns later
        if not granted and not locks.idle and self._waits(session, request, parts, known):
            return
        job = Job(session, request.id)
        for number in known:
            keys, _ = parts.pop(number)
            locks.give_up(request.tx, [(namespace, key) for key in keys])
            self._join(job, request.tx, number)
        if len(parts) <= 1:  # how it nearly always is
            for number, (keys, values) in parts.items():
                if granted and len(keys) == 1:
                    self._write(job, request, (namespace, keys[0]), core.local[number], Made(values[0]))
                else:
                    self._issue(core.local[number], job, request, keys, values, locked=granted)
            if not job.left:
                self.desk.reply(session, Done(request.id))
            return
        job.left += 1  # for what is not issued yet
        self._issue_on(job, session, request, deque(parts.items()), granted=granted)

    @property
    def _steady(self) -> bool:
        core = self.core
        return core.quorum and not (core.frozen or core.read_only or core.cramped or core.backlogged)

    def _may_go_on(self, session: SessionId, request: Put, number: int, known: dict[int, None]) -> bool:
        """Whether a part may be served here, of which it is `known` then if it is nothing new; else its client is told."""
        tx = request.tx
        if self.admission.may_serve(session, request, self.core.local[number], tx):
            if (tx, number) in self.under_way or self._answered(number, tx):
                known[number] = None
                return True
            if not self.admission.is_in_use(tx, number):
                return True
            self._refuse_taken(session, request)
        self.locks.give_up(tx, [(request.namespace, key) for key in request.keys])
        return False

    def _put_in_pieces(self, session: SessionId, request: Put, *, granted: bool) -> Iterator[int]:
        """The same of very many keys. Each part is looked at again when it is issued, so that it does not matter what came
        since it was looked at here."""
        core, tx, locks, topology = self.core, request.tx, self.locks, self.core.topology
        assert topology is not None
        parts: Parts = {}
        yield from split(request, topology, parts)
        if not self.admission.are_of(request.namespace, parts):
            self._ask_anew(session, request, granted=granted)
            return
        known: dict[int, None] = {}
        awaited = self.admission.sessions.hear(tx, request.acked)
        for at, number in enumerate(parts, 1):
            new = awaited and self._steady and self._begins(request, core.local[number])
            if not new and not self._may_go_on(session, request, number, known):
                return
            if not at % LOOKED_AT_ONCE:
                yield LOOKED_AT_ONCE // LOOKED_OF_WORK
        if not granted and not locks.idle:
            asked, busy = list[Key](), False
            for number, (keys, _) in parts.items():
                for some in _some_of(request.namespace, keys):
                    asked += some
                    busy = busy or (number not in known and locks.busy_any(some))
                    yield 1 + len(some) // KEYS_OF_WORK
            if busy:
                self._wait(session, request, asked)
                return
        job = Job(session, request.id)
        job.left += 1  # for what is not issued yet
        for number in known:
            if (tx, number) not in self.under_way and not self._answered(number, tx):
                job.over = True
                self._ask_anew(session, request, granted=granted)
                return
            keys, _ = parts.pop(number)
            self._join(job, tx, number)
            for some in _some_of(request.namespace, keys):
                locks.give_up(tx, some)
                yield 1 + len(some) // KEYS_OF_WORK
        self._issue_on(job, session, request, deque(parts.items()), granted=granted, again=True)

    def _ask_anew(self, session: SessionId, request: Put, *, granted: bool) -> None:
        """Something came between the pieces of a request."""
        probe("write.cut_batch_asked_anew")
        self.on_put(session, request, granted=granted)

    def _put_alone(self, session: SessionId, request: Put, topology: Topology) -> bool:
        """Issue a put of one key where nothing is in the way; False, and nothing is done, if something is."""
        core, namespace, key, locks = self.core, request.namespace, request.keys[0], self.locks
        local = core.local[topology.place(namespace, key)]
        if request.ttl_ms or namespace in core.namespaces or not self._begins(request, local):
            return False
        if not locks.idle and locks.busy((namespace, key)):
            return False
        self._issue_alone(session, request, local)
        return True

    def _begins(self, request: Put, local: LocalPartition) -> bool:
        """Whether a part of a request begins where a steady node serves: nothing was ever executed under its id there."""
        if local.role is not _PRIMARY or 0 < request.version < local.since:
            return False
        return self.admission.is_new(request.tx, local.number)

    def _waits(self, session: SessionId, request: Put, parts: Parts, known: dict[int, None]) -> bool:
        """Whether a transaction holds or awaits a key of what is yet to be issued; then the whole request waits for it."""
        namespace = request.namespace
        asked = [(namespace, key) for n, (keys, _) in parts.items() if n not in known for key in keys]
        busy = self.locks.busy_any(asked)
        if busy:
            self._wait(session, request, [(namespace, key) for key in request.keys] if known else asked)
        return busy

    def _issue_on(
        self,
        job: Job,
        session: SessionId,
        request: Put,
        parts: deque[tuple[int, Entries]],
        *,
        granted: bool,
        again: bool = False,
    ) -> None:
        """Issue the next parts of a batch. Where it is gone on with and something is in the way, it is asked anew."""
        core, tx, namespace = self.core, request.tx, request.namespace
        work = 0
        while parts and work < PIECE_WORK and not job.over:
            number, (keys, values) = parts[0]
            if again and not self._still_free(request, number, keys, granted=granted):
                probe("write.cut_batch_asked_anew")
                job.over = True
                self.locks.give_up(tx, [(namespace, key) for key in request.keys])
                self.on_put(session, request)
                return
            parts.popleft()
            work += 2 + len(keys) if len(keys) <= LARGE_KEYS else PIECE_WORK  # what it does it counts by itself
            if len(keys) > LARGE_KEYS:
                self._begin_large(job, session, request, number, (keys, values), granted=granted)
            else:
                self._issue(core.local[number], job, request, keys, values, locked=granted)
        core.work += work
        if parts and not job.over:
            core.resume(lambda: self._issue_on(job, session, request, parts, granted=granted, again=True))
            return
        job.left -= 1
        if not job.left and not job.over:
            job.over = True
            self.desk.reply(session, Done(request.id))

    def _begin_large(
        self, job: Job, session: SessionId, request: Put, number: int, entries: Entries, *, granted: bool
    ) -> None:
        job.left += 1
        self.core.in_pieces(self._issue_large(job, session, request, number, entries, granted=granted))

    def _issue_large(
        self, job: Job, session: SessionId, request: Put, number: int, entries: Entries, *, granted: bool
    ) -> Iterator[int]:
        """Issue a part of so many keys that to hold them takes longer than a turn may. What gets in the way has the request
        asked anew."""
        core, tx, (keys, values) = self.core, request.tx, entries
        epoch = core.local[number].epoch
        held = Keys(self.locks, tx, request.namespace, keys, locked=granted)
        lasting = values if lasts_ms(core, request) else None
        if (yield from held.take(lambda: not job.over and self._may_issue(request, number, epoch), lasting)):
            self._issue(core.local[number], job, request, keys, values, locked=granted, held=held)
            job.left -= 1
            return
        probe("write.large_one_asked_anew")
        over, job.over = job.over, True
        yield from held.let_go(lambda: self._leads(number, epoch))
        if not over:
            self.locks.give_up(tx, [(request.namespace, key) for key in keys])
            self.on_put(session, request)

    def _may_issue(self, request: Put, number: int, epoch: int) -> bool:
        """Whether a part may be issued as it could when its request was looked at, some turns ago, but for its keys."""
        core, local = self.core, leads(self.core, number)
        if local is None or local.role is Role.DRAINING or not core.quorum or not may_act(core, core.fence):
            return False
        new = self.admission.is_new(request.tx, number)
        return new and local.epoch == epoch and self.admission.stands(request.namespace, number)

    def _still_free(self, request: Put, number: int, keys: list[bytes], *, granted: bool) -> bool:
        """The same, and its keys may be held."""
        locks = self.locks
        if not self._may_issue(request, number, self.core.local[number].epoch):
            return False
        if len(keys) > LARGE_KEYS:
            return True  # they are looked at when they are held
        if granted:
            return all(locks.holds(request.tx, (request.namespace, key)) for key in keys)
        return locks.idle or not locks.busy_any([(request.namespace, key) for key in keys])

    def on_swap(self, session: SessionId, request: Swap, *, granted: bool = False) -> None:
        """Set one key if a condition holds."""
        core, locks = self.core, self.locks
        problem = self.admission.not_there(request.namespace)
        if problem:
            locks.give_up(request.tx, [(request.namespace, request.key)])
            self.desk.refuse(session, request.id, Code.USAGE, problem)
            return
        assert core.topology is not None
        number = core.topology.place(request.namespace, request.key)
        local = core.local[number]
        key = (request.namespace, request.key)
        job = self._admitted(session, request, key, local)
        if job is None:
            return
        if not (granted and locks.may_write(request.tx, key)) and locks.try_all(request.tx, [key]) is not None:
            self._wait(session, request, [key])
            return
        if over := self.expiry.over(request.namespace, [request.key], request.tx):
            go_on = partial(self.on_swap, session, request, granted=True)
            self.expiry.delete_first(over, go_on, (session, request), request.tx)
            return
        self._swap(job, session, request, local)

    def _admitted(self, session: SessionId, request: Put | Swap, key: Key, local: LocalPartition) -> Job | None:
        """Whom to tell of a write of one key that is to be executed; else it was answered, or waits, here or elsewhere."""
        tx, number, locks = request.tx, local.number, self.locks
        self.admission.sessions.hear(tx, request.acked)
        if not self.admission.may_serve(session, request, local, tx):
            locks.give_up(tx, [key])
            return None
        job = Job(session, request.id)
        if (tx, number) in self.under_way or self._answered(number, tx):
            locks.give_up(tx, [key])
            self._join(job, tx, number)
            if not job.left:
                answer = self.core.replica.partition(number).results.answer(tx)
                self.desk.reply(session, Done(request.id, True, answer))
            return None
        if self.admission.is_in_use(tx, number):
            locks.give_up(tx, [key])
            self._refuse_taken(session, request)
            return None
        return job

    def _swap(self, job: Job, session: SessionId, request: Swap, local: LocalPartition) -> None:
        """The same, of a key that is locked in the name of the request's id."""
        held = self.core.replica.store.get((request.namespace, local.number), request.key)
        stands = Stands(held.value, (held.epoch, held.counter)) if held is not None else Stands(None, (0, 0))
        made = execute(request, stands)
        if isinstance(made, Made):
            self._write(job, request, (request.namespace, request.key), local, made)
            return
        self.locks.give_up(request.tx, [(request.namespace, request.key)])
        self._confirm(local.needed, session, request, lambda: self.desk.reply(session, made))

    def _write(self, job: Job, request: Put | Swap, key: Key, local: LocalPartition, made: Made) -> None:
        """Issue what was made of a key that is locked; and with it what those write who are next in line for the key."""
        if not self.locks.is_awaited(key):
            self._issue(local, job, request, [key[1]], [made.value], locked=True, answer=made.answer)
            return
        core = self.core
        first, before = self._begin(local, job, request, [key[1]], [made.value], locked=True, answer=made.answer)
        chain = Chain(self, first)
        while not chain.full and core.work < WORK_MAX and (single := self.locks.take_along(key)) is not None:
            core.work += JOIN_WORK
            before += self._join_chain(chain, *single, key, local)
        update = r.Update([write for part in chain.parts for write in part.writes])
        chain.records = (*before, update)
        core.log_unapplied(update)
        self.replication.ship(chain, local)

    def _join_chain(
        self, chain: Chain, session: SessionId, request: Put | Swap, key: Key, local: LocalPartition
    ) -> tuple[r.Origin, ...]:
        """Execute one more on what the last one leaves; what is logged before all of it."""
        job = self._admitted(session, request, key, local)
        if job is None:
            return ()
        made = execute(request, chain.stands)
        if not isinstance(made, Made):
            probe("write.condition_of_what_does_not_count")
            chain.unmade.append((session, made))
            return ()
        probe("write.joined_a_chain")
        part, before = self._begin(local, job, request, [key[1]], [made.value], locked=False, answer=made.answer)
        chain.join(part)
        return before

    def _wait(self, session: SessionId, request: Put | Swap, keys: list[Key]) -> None:
        """Stand in line behind the transactions that hold some of the keys, then go on holding all of them."""
        core, within = self.core, request.within_ms
        wait_ms = core.settings.lock_timeout_ms
        if within:  # its client is to hear that nothing was done, as long as it waits
            wait_ms = min(wait_ms, within - min(ANSWER_MS, within // 8))

        def granted() -> None:
            if isinstance(request, Put):
                self.on_put(session, request, granted=True)
            else:
                self.on_swap(session, request, granted=True)

        def expired(held: str, ring: Ring) -> None:
            self.desk.reply(session, refused_lock(request.id, core.node, wait_ms, held, ring))

        probe("write.waited_for_transaction")
        deadline = core.now + wait_ms * MS
        if len(keys) > LARGE_KEYS:
            waiter = Waiter(request.tx, keys, deadline, granted, expired, shared=False)
            core.in_pieces(keys // KEYS_OF_WORK for keys in self.locks.standing(waiter))
        else:
            single = (session, request) if isinstance(request, Swap) or len(request.keys) == 1 else None
            self.locks.wait_all(request.tx, keys, deadline, granted, expired, single=single)

    def _refuse_taken(self, session: SessionId, request: Put | Swap) -> None:
        probe("write.id_of_a_transaction")
        self.desk.refuse(
            session,
            request.id,
            Code.BUSY,
            f"a transaction of the id {request.tx.hex()} is under way: ask again, or give the write an id of its own",
            retryable=True,
        )

    def _answered(self, partition: int, tx: TxId) -> bool:
        if self.core.replica.partition(partition).results.get(tx) is None:
            return False
        probe("write.answered_from_results")
        return True


def _some_of(namespace: Namespace, keys: list[bytes]) -> Iterator[list[Key]]:
    """The keys of a part, as many at a time as one piece looks at."""
    for at in range(0, len(keys), LARGE_KEYS):
        yield [(namespace, key) for key in keys[at : at + LARGE_KEYS]]


assert not NAME.fullmatch(DECISIONS), "no client can name the engine's own namespace"
