"""Single writes that were issued and do not count yet: what each is, who waits for it, and what is done when it counts.

A write is logged, and is shipped with the batch of its turn; its keys are held until it counts, or another primary has it.
Whether it may be issued `engine.data.writes` has seen.
"""

from __future__ import annotations

from engine.data.chains import Chain
from engine.data.cuts import Cuts
from engine.data.lasting import lasts_ms
from engine.data.locks import LockTable
from engine.data.origins import Origins
from engine.data.parts import Alone, Job, Keys, Part
from engine.data.reads import Reads
from engine.data.replication import Replication
from engine.protocol.requests import Done, Put, Swap
from engine.turn.core import Core
from engine.turn.desk import Desk
from engine.turn.events import SessionId
from rebalance.partition import LocalPartition
from wal import records as r
from wal.ids import TxId
from wal.probe import probe

ISSUED_WORK = 1
"""How much it is to issue a write of a few keys, beside what it is to be asked for it."""


class UnderWay:
    """The single writes of one node that are under way."""

    def __init__(
        self, core: Core, replication: Replication, locks: LockTable, desk: Desk, reads: Reads, cuts: Cuts
    ) -> None:
        self.core = core
        self.cuts = cuts
        self.desk = desk
        self.origins = Origins(core)
        self.replication = replication
        self.locks = locks
        self.looks = reads.looks
        self.expiry = reads.expiry
        self.under_way: dict[tuple[TxId, int], Part | Alone] = {}  # by the partition: a request may be asked again in parts

    # Issued.

    def _issue(
        self,
        local: LocalPartition,
        job: Job,
        request: Put | Swap,
        keys: list[bytes],
        values: list[bytes | None],
        *,
        locked: bool,
        answer: bytes | None = None,
        held: Keys | None = None,
    ) -> None:
        part, before = self._begin(local, job, request, keys, values, locked=locked, answer=answer, held=held)
        update = r.Update(part.writes)
        part.records = (*before, update)
        self.core.log_unapplied(update)
        if held is not None:
            self.replication.ship_large(part, local)
        else:
            self.replication.ship(part, local)

    def _begin(
        self,
        local: LocalPartition,
        job: Job,
        request: Put | Swap,
        keys: list[bytes],
        values: list[bytes | None],
        *,
        locked: bool,
        answer: bytes | None,
        held: Keys | None = None,
    ) -> tuple[Part, tuple[r.Origin, ...]]:
        """A part that holds its keys and is yet to be logged and shipped; and what is, and was logged, before it."""
        core, tx, namespace = self.core, request.tx, request.namespace
        write = self._write_of(local, request, keys, values, answer)
        part = self.under_way[(tx, local.number)] = Part(self, write, job, locked=locked)
        job.left += 1
        origin = self.origins.of(job.session, tx, local)
        ttl_ms = lasts_ms(core, request) if request.ttl_ms or namespace in core.namespaces else 0
        if ttl_ms and any(value is not None for value in values):
            part.deadline = self.expiry.deadline_of(write, ttl_ms, held.rows if held is not None else None)
        if held is not None:
            part.held = held
        elif locked:
            self.locks.pin(tx, [(namespace, key) for key in keys], in_doubt=False)
        else:
            pend = self.locks.pend
            for key in keys:
                pend((namespace, key))
        return part, () if origin is None else (self.origins.log(origin, local),)

    def _issue_alone(self, session: SessionId, request: Put, local: LocalPartition) -> None:
        """The same of a put of one key that lasts for good, and which nobody else has; a test holds the two together."""
        tx, keys = request.tx, request.keys
        write = self._write_of(local, request, keys, request.values, None)
        key = (request.namespace, keys[0])
        put = self.under_way[tx, local.number] = Alone(self, write, key, session, request.id)
        origin, update = self.origins.of(session, tx, local), r.Update([write])
        put.records = (update,) if origin is None else (self.origins.log(origin, local), update)
        self.core.log_unapplied(update)
        self.locks.pend(key)
        self.replication.ship(put, local)

    def _write_of(
        self,
        local: LocalPartition,
        request: Put | Swap,
        keys: list[bytes],
        values: list[bytes | None],
        answer: bytes | None,
    ) -> r.Write:
        """The next counters of a fragment, for these entries."""
        number, namespace = local.number, request.namespace
        counter = self.core.replica.ensure_fragment((namespace, number)).counter
        start = counter.reserve(len(keys))
        self.core.work += ISSUED_WORK
        stable, tx = counter.lwm, request.tx
        return r.Write(namespace, number, local.epoch, start, keys, values=values, stable=stable, tx=tx, answer=answer)

    def _join(self, job: Job, tx: TxId, number: int) -> None:
        """Wait with whoever asked for this part before, if it is under way."""
        part = self.under_way.get((tx, number))
        if part is not None:
            probe("write.asked_again_while_under_way")
            part.jobs += (job,)
            job.left += 1

    # Over.

    def on_counted(self, part: Part) -> None:
        """Durable on every in-sync copy: apply, unlock, answer."""
        self._apply(part)
        self._end(part)

    def on_chain_counted(self, chain: Chain) -> None:
        """Durable on every in-sync copy: apply all of it, then unlock and answer."""
        self.core.work += len(chain.parts) - 1
        for part in chain.parts:
            self._apply(part)
        for part in chain.parts:
            self._end(part)
        for session, reply in chain.unmade:
            self.desk.reply(session, reply)

    def _apply(self, part: Part) -> None:
        core, write = self.core, part.write
        if self.cuts.leases:
            self.cuts.keep(write, core.era)
        core.replica.apply_write(write)
        if self.looks.kept:
            self.looks.note(write)
        if part.deadline is not None:
            core.replica.apply_write(part.deadline)
            self.expiry.note(part.deadline)

    def _end(self, part: Part) -> None:
        """It is applied: let go of its keys, and answer."""
        core, write = self.core, part.write
        self._release(part)
        if self.expiry.waiting:
            self.expiry.done_with([(write.namespace, key) for key in write.keys])
        for job in part.jobs:
            job.left -= 1
            if not job.left and not job.over:
                job.over = True
                self.desk.reply(job.session, Done(job.request_id, True, write.answer, core.version_number))

    def on_alone_counted(self, put: Alone) -> None:
        """The same of a put that is alone."""
        core, write = self.core, put.write
        if self.cuts.leases:
            self.cuts.keep(write, core.era)
        core.replica.apply_write(write)
        if self.looks.kept:
            self.looks.note(write)
        del self.under_way[write.tx, write.partition]
        self.locks.unpend(put.key)
        if self.expiry.waiting:
            self.expiry.done_with([put.key])
        self.desk.reply(put.session, Done(put.request_id, True, None, core.version_number))
        for job in put.jobs:
            job.left -= 1
            if not job.left and not job.over:
                job.over = True
                self.desk.reply(job.session, Done(job.request_id, True, None, core.version_number))

    def on_abandoned(self, part: Part | Alone) -> None:
        """Another primary has it or closes it; the client asks there."""
        probe("write.abandoned")
        if isinstance(part, Alone):
            del self.under_way[part.write.tx, part.partition]
            self.locks.unpend(part.key)
            self.desk.remap(part.session, part.request_id, begun=True)
        else:
            self._release(part)
        for job in part.jobs:
            if not job.over:
                job.over = True
                self.desk.remap(job.session, job.request_id, begun=True)

    def on_chain_abandoned(self, chain: Chain) -> None:
        """Another primary has all of it or closes it; the clients ask there."""
        for part in chain.parts:
            self.on_abandoned(part)
        for session, reply in chain.unmade:
            self.desk.remap(session, reply.id)

    def _release(self, part: Part) -> None:
        """A part is no longer under way."""
        write, locks = part.write, self.locks
        del self.under_way[(write.tx, write.partition)]
        namespace = write.namespace
        if part.held is not None:
            self.core.in_pieces(part.held.let_go(lambda: self._leads(part.partition, part.epoch)))
        elif part.locked:
            locks.release(write.tx, [(namespace, key) for key in write.keys])
        else:
            unpend = locks.unpend
            for key in write.keys:
                unpend((namespace, key))

    def _leads(self, number: int, epoch: int) -> bool:
        local = self.core.local[number]
        return local.mine and local.epoch == epoch
