"""Single writes: put, delete and batches outside a transaction, and the conditional ones.

One partition needs one phase: a single record is prepare and commit. A blind put takes no lock and waits for nothing but
a transaction that holds its key; puts of the same key follow each other without waiting, ordered by their counters. A
conditional write looks at the value that stands, so it takes the key's lock for as long as it is under way.

A request carries a transaction id. If its result is known here, that is the answer; if it is under way, the new request
waits with the first. So a client may ask again, here or at the next primary, and the write happens once.
"""

from __future__ import annotations

from engine.core import MS, Core, Hold
from engine.effects import SessionId
from engine.locks import LockTable
from engine.replication import Replication
from engine.requests import Code, Done, Put, Request, Swap
from engine.results import ABORTED
from wal import records as r
from wal.ids import DECISIONS, KEY_BYTES_MAX, NAME, VALUE_BYTES_MAX, Namespace, TxId, partition_of, partitions_of
from wal.probe import probe


class _Job:
    """One request, over as many partitions as it has keys in. `locked`: it holds locks in the name of its id."""

    __slots__ = ("asked", "found", "left", "locked", "tx")

    def __init__(
        self, session: SessionId, request_id: int, tx: TxId, left: int, *, locked: bool, found: bytes | None = None
    ) -> None:
        self.asked = [(session, request_id)]
        self.tx = tx
        self.left = left
        self.locked = locked
        self.found = found


class _Single:
    """One partition's share of a request, as an operation of replication."""

    __slots__ = ("_write", "_writes", "epoch", "job", "partition", "records")

    def __init__(self, writes: Writes, job: _Job, write: r.Write) -> None:
        self._writes = writes
        self._write = write
        self.job = job
        self.partition = write.partition
        self.epoch = write.epoch
        self.records: list[r.Record] = [r.Update([write])]

    def counted(self) -> None:
        """Durable on every in-sync copy: apply, unlock, answer."""
        writes, job = self._writes, self.job
        writes.core.replica.apply_write(self._write)
        writes.release(job, self._write)
        job.left -= 1
        if not job.left:
            writes.end(job)
            reply = writes.core.effects.reply
            for session, request_id in job.asked:
                reply.append((session, Done(request_id, True, job.found)))

    def abandoned(self) -> None:
        """Another primary has it or closes it; the client asks there."""
        probe("write.abandoned")
        writes, job = self._writes, self.job
        writes.release(job, self._write)
        if job.tx in writes.under_way:
            writes.end(job)
            for session, request_id in job.asked:
                writes.core.remap(session, request_id, begun=True)


class Writes:
    """The single writes of one node."""

    def __init__(self, core: Core, replication: Replication, locks: LockTable) -> None:
        self.core = core
        self.replication = replication
        self.locks = locks
        self.under_way: dict[TxId, _Job] = {}

    def release(self, job: _Job, write: r.Write) -> None:
        """A share of a job is no longer under way."""
        if not job.locked:
            settle, namespace = self.locks.settle, write.namespace
            for key in write.keys:
                settle((namespace, key))

    def end(self, job: _Job) -> None:
        """A job is over."""
        self.under_way.pop(job.tx, None)
        if job.locked:
            self.locks.release(job.tx)

    def problem(self, namespace: Namespace, keys: list[bytes], values: list[bytes | None]) -> str:
        """What is wrong with a write, or nothing."""
        known, most = self.core.replica.namespaces, self.core.settings.namespaces_max
        if namespace not in known and len(known) - (DECISIONS in known) >= most and NAME.fullmatch(namespace):
            return f"namespace {namespace!r} would be one too many: `namespaces_max` is {most}"
        if not NAME.fullmatch(namespace):
            return f"namespace {namespace!r} is not a legal name: expected 1 to 64 letters, digits, '.', '_' or '-'"
        if len(keys) != len(values):
            return f"{len(keys)} keys came with {len(values)} values"
        if not keys:
            return "no key was given"
        if len(set(keys)) != len(keys):
            return "a key was given twice in one batch"
        for size in map(len, keys):
            if not 0 < size <= KEY_BYTES_MAX:
                return f"a key has {size} bytes: expected 1 to {KEY_BYTES_MAX}"
        for value in values:
            if value is not None and len(value) > VALUE_BYTES_MAX:
                return f"a value has {len(value)} bytes: expected at most {VALUE_BYTES_MAX}"
        return ""

    def on_put(self, session: SessionId, request: Put, *, granted: bool = False) -> None:
        """Set keys, blindly. `granted`: it had to wait for transactions and holds the locks now."""
        core, namespace, locks = self.core, request.namespace, self.locks
        problem = self.problem(namespace, request.keys, request.values)
        if problem:
            core.refuse(session, request.id, Code.USAGE, problem)
            return
        assert core.topology is not None
        partitions = core.topology.partitions
        by_partition: dict[int, tuple[list[bytes], list[bytes | None]]] = {}
        numbers = partitions_of(request.keys, partitions)
        for number, key, value in zip(numbers, request.keys, request.values, strict=True):
            share = by_partition.get(number)
            if share is None:
                share = by_partition[number] = ([], [])
            share[0].append(key)
            share[1].append(value)
        answered: list[int] = []
        steady = core.quorum and not core.frozen and request.tx not in self.under_way
        for number in by_partition:
            hold = core.holds[number]
            if steady and hold.mine and hold.active and not hold.draining and self._is_new(number, request.tx):
                continue  # how it nearly always is
            if not self.may_serve(session, request, hold, request.tx):
                if granted:
                    locks.release(request.tx)
                return
            if self._answered(number, request.tx):
                answered.append(number)
        if not granted and not locks.idle:
            busy = [(namespace, key) for key in request.keys if locks.busy((namespace, key))]
            if busy:
                self._wait(session, request, busy)
                return
        for number in answered:
            del by_partition[number]
        if not by_partition:
            if granted:
                locks.release(request.tx)
            core.reply(session, Done(request.id))
            return
        job = _Job(session, request.id, request.tx, len(by_partition), locked=granted)
        self.under_way[request.tx] = job
        for number, (keys, values) in by_partition.items():
            self._issue(core.holds[number], job, namespace, keys, values)

    def on_swap(self, session: SessionId, request: Swap, *, granted: bool = False) -> None:
        """Set one key if a condition holds."""
        core, locks = self.core, self.locks
        problem = self.problem(request.namespace, [request.key], [request.new])
        if request.when not in {"absent", "present", "equals"}:
            problem = f"condition {request.when!r} is not known: expected absent, present or equals"
        if problem:
            core.refuse(session, request.id, Code.USAGE, problem)
            return
        assert core.topology is not None
        number = partition_of(request.key, core.topology.partitions)
        hold = core.holds[number]
        if not self.may_serve(session, request, hold, request.tx):
            if granted:
                locks.release(request.tx)
            return
        if self._answered(number, request.tx):
            if granted:
                locks.release(request.tx)
            core.reply(session, Done(request.id))
            return
        key = (request.namespace, request.key)
        if not granted and locks.try_all(request.tx, [key]) is not None:
            self._wait(session, request, [key])
            return
        held = core.replica.store.get((request.namespace, number), request.key)
        found = held.value if held is not None else None
        holds = {
            "absent": found is None,
            "present": found is not None,
            "equals": found is not None and found == request.old,
        }[request.when]
        if not holds:
            locks.release(request.tx)
            core.reply(session, Done(request.id, False, found))
            return
        job = _Job(session, request.id, request.tx, 1, locked=True, found=found)
        self.under_way[request.tx] = job
        self._issue(hold, job, request.namespace, [request.key], [request.new])

    def _wait(self, session: SessionId, request: Put | Swap, keys: list[tuple[Namespace, bytes]]) -> None:
        """Stand in line behind the transactions that hold the keys, then go on holding them."""
        core = self.core

        def granted() -> None:
            if isinstance(request, Put):
                self.on_put(session, request, granted=True)
            else:
                self.on_swap(session, request, granted=True)

        def expired(held: str) -> None:
            self.locks.release(request.tx)
            core.refuse(
                session,
                request.id,
                Code.LOCK_TIMEOUT,
                f"waited {core.settings.lock_timeout_ms} ms for a lock: {held or 'the primary changed'}",
                retryable=True,
            )

        probe("write.waited_for_transaction")
        self.locks.wait_all(request.tx, keys, core.now + core.settings.lock_timeout_ms * MS, granted, expired)

    def _issue(self, hold: Hold, job: _Job, namespace: Namespace, keys: list[bytes], values: list[bytes | None]) -> None:
        core = self.core
        counter = core.replica.fragment((namespace, hold.number)).counter
        write = r.Write(namespace, hold.number, hold.epoch, counter.reserve(len(keys)), keys, values, counter.lwm, job.tx)
        operation = _Single(self, job, write)
        core.effects.log.append(operation.records[0])
        if not job.locked:
            pend = self.locks.pend
            for key in keys:
                pend((namespace, key))
        self.replication.ship(operation, hold)

    def may_serve(self, session: SessionId, request: Request, hold: Hold, tx: TxId | None, *, new: bool = True) -> bool:
        """Whether this node can take a request for a partition now; if not, it was answered or parked.

        `new`: it begins something, and so must wait when the partition is being handed over.
        """
        core = self.core
        if not hold.mine:
            if hold.placement.lost:
                core.refuse_lost(session, request.id, hold.number)
            else:
                core.remap(session, request.id)
            return False
        if not core.quorum:
            core.refuse(
                session,
                request.id,
                Code.NO_QUORUM,
                "this node does not reach a majority of the cluster; it resumes by itself when it does",
                retryable=True,
            )
            return False
        if not hold.active or core.frozen or (hold.draining and new):
            if len(hold.parked) >= core.settings.parked_max:
                core.refuse(session, request.id, Code.BUSY, "too many requests wait for the exchange", retryable=True)
            else:
                hold.parked.append((session, request))
            return False
        if tx is None:
            return True
        job = self.under_way.get(tx)
        if job is not None:
            probe("write.asked_again_while_under_way")
            job.asked.append((session, request.id))
            return False
        results = core.replica.partition(hold.number).results
        outcome = results.get(tx)
        if outcome == ABORTED:
            core.refuse(session, request.id, Code.CONFLICT, f"transaction {tx.hex()} was aborted", retryable=True)
            return False
        if outcome is None and results.too_old(tx):
            core.refuse(
                session,
                request.id,
                Code.TOO_OLD,
                f"transaction id {tx.hex()} is older than the oldest result kept: {results.floor.hex()}",
                maybe_committed=True,
            )
            return False
        return True

    def _is_new(self, partition: int, tx: TxId) -> bool:
        return self.core.replica.partition(partition).results.is_new(tx)

    def _answered(self, partition: int, tx: TxId) -> bool:
        if self.core.replica.partition(partition).results.get(tx) is None:
            return False
        probe("write.answered_from_results")
        return True


assert not NAME.fullmatch(DECISIONS), "no client can name the engine's own namespace"
