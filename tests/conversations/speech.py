"""How records and messages print in a story: the kind by its tag, then what a reader wants to know of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import msgspec

from engine import messages as m
from engine.messages import kind_of
from engine.protocol import requests as q
from rebalance import table as topologies
from rebalance.lives import INCARNATION_BITS
from rebalance.results import COMMITTED
from rebalance.steps import Step, decode_step
from rebalance.sums import NOT_WHOLE
from rebalance.table import Placement, Topology
from tests.conversations.names import Names, key_name
from wal import records as r
from wal.ids import DECISIONS, MINOR_BITS, Era, TxId, fragment_name
from wal.records import kind_of as record_kind

Pairs = Iterable[tuple[int, int]]


class Speech:
    """Prints what is said and logged in one story, with the story's short names."""

    def __init__(self, names: Names) -> None:
        self.names = names

    # Records.

    def record(self, record: r.Record) -> str:
        """One record: `prepare t1 acc/1(0,3)`."""
        match record:
            case r.Update(writes) | r.History(writes):
                about = self._writes(writes)
            case r.Prepare(tx, partition, epoch, writes):
                held = self._writes(msgspec.structs.replace(w, tx=b"") for w in writes)
                about = f"{self._tx(tx)} {held or f'p{partition} e{epoch}'}"
            case r.Outcome(tx, partition, epoch, commit, ranges):
                closed = "" if commit else f" closes {_ranges(partition, ranges)}"
                about = f"{self._tx(tx)} p{partition} {'commit' if commit else 'rollback'} e{epoch}{closed}"
            case r.NoOp(partition, epoch, gaps):
                about = f"{_ranges(partition, gaps)} e{epoch}"
            case r.EpochStart(partition, epoch, firsts, ended):
                at = "".join(f" {ns} from {first}" for ns, first in firsts)
                at += "".join(f" without {self.names.tx_name(tx) or tx.hex()}" for tx in ended)
                about = f"p{partition} e{epoch}{at}"
            case r.Preload(namespace, partition):
                keys = " ".join(self._key(namespace, key) for key in record.keys[:8])
                about = f"{namespace}/{partition} {len(record.keys)} rows{': ' if keys else ''}{keys}"
            case r.Results(partition, txs):
                about = f"p{partition} {len(txs)}"
            case r.Forget(partition, epoch, answered):
                about = f"p{partition} e{epoch} of {len(answered)} sessions"
            case r.FragmentClear(namespace, partition, reason, gone, kept):
                about = f"{namespace}/{partition} {'gone' if gone else 'kept' if kept else 'loading'}: {reason}"
            case r.FragmentReady(namespace, partition, lwm):
                about = f"{namespace}/{partition} whole up to {lwm}"
            case r.Undo(namespace, partition, above, keys):
                about = (
                    f"{namespace}/{partition} above {above}: {' '.join(self._key(namespace, k) for k in keys) or 'no keys'}"
                )
            case r.Promised(after, ballot):
                about = f"{ballot} after {after}"
            case r.Accepted(_, ballot, topology, step):
                about = f"{ballot} {decode_step(step).version if step else _version(topology)}"
            case r.Committed(version):
                about = str(version)
            case r.Boot(incarnation):
                about = f"life {incarnation >> INCARNATION_BITS}"
            case r.Claimed(version, claims):
                about = f"under {version}: {', '.join(f'{c.node} {c.durable_lsn}' for c in claims)}"
            case r.Checkpoint(lsn):
                about = f"up to LSN {lsn}"
            case r.Trimmed(first_lsn, dropped):
                ends = "".join(f" {fragment_name((ns, p))} up to {c}" for ns, p, c in dropped)
                about = f"below LSN {first_lsn}{ends}"
            case r.Stable(partition, epoch, counters):
                about = f"p{partition} e{epoch}{''.join(f' {ns} up to {counter}' for ns, counter in counters)}"
            case r.Compare(partition, epoch, node, round_):
                about = f"p{partition} e{epoch} with {node}, #{round_ & 0xFFFF}"
            case r.Origin(partition, epoch, tx, node, label, client):
                about = f"{self.names.tx_name(tx) or tx.hex()} p{partition} e{epoch} by {node} {label or client}".rstrip()
            case _:
                assert_never(record)
        return f"{record_kind(record)} {about}"

    def records(self, records: Iterable[r.Record]) -> str:
        """Several records in one line."""
        return "; ".join(map(self.record, records))

    def write(self, write: r.Write) -> str:
        """One write: `t1 acc/1(0,3)e1`; decisions say what was decided."""
        extra = f" first issued in e{write.origin}" if write.origin else ""
        closed = " closed" if write.closed else ""
        if write.namespace == DECISIONS and not write.closed:
            said = [decision_text(self._tx(tx), value) for tx, value in zip(write.keys, write.values, strict=True)]
            return f"~tx/{write.partition}({write.start},{write.delta})e{write.epoch} {' '.join(said)}{extra}"
        tx = self.names.tx_name(write.tx)
        name = fragment_name(write.fragment)
        return f"{f'{tx} ' if tx else ''}{name}({write.start},{write.delta})e{write.epoch}{closed}{extra}"

    def _writes(self, writes: Iterable[r.Write]) -> str:
        return " ".join(map(self.write, writes))

    def _key(self, namespace: str, key: bytes) -> str:
        """A key; in the engine's own namespace it is a transaction."""
        return self._tx(key) if namespace == DECISIONS else key_name(key)

    def _tx(self, tx: TxId) -> str:
        return self.names.tx_name(tx) or tx.hex()

    # Messages.

    def message(self, message: m.Message) -> str:
        """One message: `replicate #3 update acc/1(0,1)e1`."""
        about = self._about(message)
        return f"{kind_of(message)} {about}".rstrip()

    def _about(self, message: m.Message) -> str:
        match message:
            case m.Heartbeat(version, _, lsn, frozen):
                return f"{version} lsn={lsn}{' frozen' if frozen else ''}"
            case m.Join(_, allocation, incarnation):
                return f"disk={allocation} life={incarnation >> INCARNATION_BITS}"
            case m.Leave():
                return ""
            case m.SetBaseline(nodes):
                return " ".join(nodes)
            case m.ResetLost(lost):
                return _partitions([number for number, _ in lost])
            case m.SetNamespace(name, seen, ttl_ms, drop):
                return f"{name} of {seen} {'dropped' if drop else f'ttl={ttl_ms}'}"
            case m.SetMigrations(seen, paused, most):
                return f"of {seen} paused={paused} bytes/s={most}"
            case m.Halt(version):
                return str(version)
            case m.Survey(number) | m.Surveyed(number):
                return f"#{number}"
            case m.Announce(after, ballot, handover):
                return f"{ballot} after {after}{f' handover {_partitions(handover)}' if handover else ''}"
            case m.Promise(after, ballot, accepted_ballot, accepted):
                before = f" accepted {accepted_ballot} {_version(accepted)}" if accepted else ""
                return f"{ballot} after {after}{before}"
            case m.SingleMap(_, ballot):
                return f"{ballot} {self._copies(message)}".rstrip()
            case m.AskCopies(_, ballot, _, partitions):
                return f"{ballot} {_partitions(partitions)}"
            case m.Copies(_, ballot):
                return f"{ballot} {_reports(message.copies)}".rstrip()
            case m.Propose(_, ballot, topology, step):
                return f"{ballot} {map_line(topologies.decode(topology)) if step is None else step.version}"
            case m.Accept(_, ballot):
                return str(ballot)
            case m.Refuse(_, ballot, promised):
                return f"{ballot} promised {promised}"
            case m.Commit(version):
                return str(version)
            case m.ProposeStep(ballot, step):
                return f"{ballot} {step_line(step)}"
            case m.AcceptStep(after, ballot):
                return f"{ballot} after {after}"
            case m.CommitStep(step):
                return step_line(step)
            case m.LeadSteps(version, ballot):
                return f"{ballot} after {version}"
            case m.Follows(version, ballot, accepted):
                return f"{ballot} after {version}{' accepted' if accepted else ''}"
            case m.HandOver(_, ballot, partitions):
                return f"{ballot} {_partitions(partitions)}"
            case m.Drained(_, ballot):
                return str(ballot)
            case m.AskMap(version):
                return f"having {version}"
            case m.CaughtUp(_, copies):
                return " ".join(f"p{p} {node}" for p, node in copies)
            case m.Replicate(_, sequence, records):
                return f"{_number(sequence)} {self.records(records)}"
            case m.Replicated(_, sequences):
                return " ".join(map(_number, sequences))
            case m.Confirm(_, sequence) | m.Confirmed(_, sequence):
                return _number(sequence)
            case m.EnterEra(_, era) | m.Entered(_, era):
                return _era(era)
            case m.SealCut(_, cut):
                return _era(cut)
            case m.Sealed(_, cut, held):
                return f"{_era(cut)}{'' if held else ' too late'}"
            case m.AskTail(_, copies):
                return "; ".join(_tail(copy) for copy in copies)
            case m.Tail(_, copies):
                return "; ".join(f"{_tail(c)}{self._gives(c)}" for c in copies)
            case m.PrepareParts(_, tx, _, _, parts):
                return f"{self._tx(tx)} {_partitions([part.partition for part in parts])}"
            case m.Vote(_, tx, partition, epoch, yes, reason):
                return f"{self._tx(tx)} p{partition} {f'yes e{epoch}' if yes else f'no: {reason}'}"
            case m.Finish(_, tx, commit, partitions):
                return f"{self._tx(tx)} {'commit' if commit else 'abort'} {_partitions(partitions)}"
            case m.Finished(_, tx, partitions):
                return f"{self._tx(tx)} {_partitions(partitions)}"
            case m.Resolve(_, tx, decision, partition):
                return f"{self._tx(tx)} p{partition}, decided in p{decision}"
            case m.Inquire(_, tx, partition):
                return f"{self._tx(tx)} p{partition}"
            case m.Inquired(_, tx, partition, prepared, committed):
                found = "committed" if committed else "prepared" if prepared else "not prepared"
                return f"{self._tx(tx)} p{partition} {found}"
            case m.Waits(_, waits):
                return ", ".join(f"{self._tx(waiter)} for {self._tx(holder)}" for waiter, holder in waits) or "nobody waits"
            case m.GiveWay(_, victim, circle):
                return f"{self._tx(victim)} of {' '.join(map(self._tx, circle))}"
            case m.Demand(_, session, partitions, haves):
                had = "".join(f"; {_have(h)}" for h in haves)
                return f"{_number(session)} {_partitions(partitions)}{had}"
            case m.Credit(_, session, batch, credit, again):
                return f"{_number(session)} batch={batch} credit={credit}{' again' if again else ''}"
            case m.Supply():
                return self._supply(message)
            case m.Settled(_, partition, fragments, readers, _, compared, contents):
                said = "".join(f" {ns} lwm={lwm}" for ns, lwm, _ in fragments)
                said += "".join(f" {self._tx(tx)} reads" for tx in readers)
                told = "" if contents is None else ": " + " ".join(f"{c.namespace} {c.digest >> 48:04x}" for c in contents)
                answers = f" compared #{compared & 0xFFFF}{told}" if compared else f" contains{told}" if told else ""
                return f"p{partition}{said}{answers}"
            case m.AllSettled(_, copies):
                return "; ".join(self._about(copy) for copy in copies)
            case m.Settle(_, partition, marks, wrong, ended, prepares):
                said = "".join(f" {ns} at {mark}" for ns, mark in marks) + "".join(f" {ns} is wrong" for ns in wrong)
                said += "".join(f" {self._tx(tx)} has ended" for tx in ended)
                return f"p{partition}{said}{''.join(f' {self._tx(p.tx)} reads' for p in prepares)}"
            case m.AskProofs(_, _, partitions, read):
                return f"{_partitions(partitions)}{''.join(f'; read {ns}/{p}' for ns, p in read)}"
            case m.Proofs(_, _, copies):
                return "; ".join(map(_proof, copies))
            case m.Stands(_, fragments):
                told = " ".join(f"{ns}/{number} lwm={lwm}" for ns, number, lwm, _ in fragments)
                return f"stands at {told}"
            case m.Heal(_, (namespace, partition), kept, reason):
                return f"{namespace}/{partition} {'where it differs' if kept else 'in full'}: {reason}"
            case _:
                assert_never(message)

    # Replies.

    def reply(self, reply: q.Reply) -> str:
        """What a client reads."""
        match reply:
            case q.Done(_, applied, found):
                return "done" if applied else f"not applied, found {_text(found or b'nothing')}"
            case q.Values(_, values):
                return ", ".join(_value(*value) for value in values)
            case q.Failed(_, code, message, _, maybe_committed):
                return f"{code}{' (perhaps committed)' if maybe_committed else ''}: {self.names.shorten(message)}"
            case q.Status(_, outcome):
                return outcome
            case q.Remap(_, version, True):
                return f"remap, at {version}, begun"
            case q.Remap(_, version):
                return f"remap, at {version}"
            case q.Rows(count=count) if count >= 0:
                return f"{count} rows"
            case q.Rows(_, keys, _, more, marks):
                at = f" at {' '.join(f'{epoch}.{counter}' for epoch, counter in marks)}" if marks else ""
                return f"{len(keys)} rows{' and more' if more else ''}{at}"
            case q.Table(_, version):
                return str(version)
            case q.Cut(_, cut):
                return _era(cut)
            case q.Report():
                return "done"
            case _:
                assert_never(reply)

    def _copies(self, single: m.SingleMap) -> str:
        vouched = [f"vouches for p{p} {node}" for p, node in single.vouched]
        not_whole = [f"p{number} is not whole" for number, total in single.sums or () if total == NOT_WHOLE]
        return "; ".join([*filter(None, [_reports(single.copies)]), *not_whole, *vouched])

    def _gives(self, copy: m.CopyTail) -> str:
        given = [*map(self.write, copy.writes), *map(self.record, copy.prepares)]
        return f" gives {' '.join(given)}" if given else ""

    def _supply(self, supply: m.Supply) -> str:
        said = [f"{_number(supply.session)} batch={supply.batch}"]
        said += [self._transfer(transfer) for transfer in supply.transfers]
        said += [self.record(prepare) for prepare in supply.prepares]
        if supply.writes:
            said.append(self._writes(supply.writes))
        said += [self.record(rows) for rows in supply.rows]
        said += [f"done {fragment_name(name)}" for name in supply.done]
        said += [f"missed {fragment_name(name)}" for name in supply.missed]
        if supply.last:
            said.append("last")
        return "; ".join(said)

    @staticmethod
    def _transfer(transfer: m.Transfer) -> str:
        undo = f" undo above {transfer.cut}" if transfer.cut >= 0 else ""
        return f"{transfer.namespace}/{transfer.partition} {transfer.kind}{undo} ({transfer.reason})"


def placement_line(number: int, placement: Placement) -> str:
    """Where one partition is: `p1 e2 s2 s3 moving s1`, the primary first."""
    if placement.lost:
        return f"p{number} e{placement.epoch} LOST in-sync {' '.join(placement.in_sync)}"
    moving = [node for node in placement.owners if node not in placement.in_sync]
    order = [node for node in placement.owners if node in placement.in_sync]
    others = "".join(
        f" {what} {' '.join(some)}" for what, some in (("moving", moving), ("async", placement.asynchronous)) if some
    )
    return f"p{number} e{placement.epoch} {' '.join(order)}{others}"


def decision_text(tx: str, value: bytes | None) -> str:
    """A decision record: `t1=commit`, or `t1=forgotten` once everybody is done with it."""
    if value is None:
        return f"{tx}=forgotten"
    return f"{tx}={'commit' if value[0] == COMMITTED else 'abort'}"


def map_line(topology: Topology) -> str:
    """A whole map in one line: `2.0 of s2 s3: p0 e1 s2 s3, p1 e2 s2 s3`."""
    placements = ", ".join(placement_line(number, p) for number, p in enumerate(topology.placements))
    return f"{topology.version} of {' '.join(m.node for m in topology.members)}: {placements}"


def step_line(step: Step) -> str:
    """What a light step changes: `after 2.0: p0 e1 s2 s3`."""
    return f"after {step.after}: {', '.join(placement_line(number, p) for number, p in step.placements)}"


def _text(value: bytes) -> str:
    """Also of what is none."""
    return value.decode(errors="backslashreplace")


def _value(epoch: int, counter: int, value: bytes | None) -> str:
    return "nothing" if value is None else f"{_text(value)} at {epoch}.{counter}"


def _version(topology: bytes) -> str:
    return str(topologies.decode(topology).version) if topology else "-"


def _era(era: Era) -> str:
    return f"era {era[0] >> MINOR_BITS}.{era[0] & (1 << MINOR_BITS) - 1}/{era[1]}"


def _number(sequence: int) -> str:
    return f"#{sequence & 0xFFFFFFFF}"


def _partitions(numbers: Iterable[int]) -> str:
    return " ".join(f"p{number}" for number in numbers)


def _ranges(partition: int, ranges: Iterable[r.Range]) -> str:
    return " ".join(f"{ns}/{partition}({start},{delta})" for ns, start, delta in ranges)


def _tail(copy: m.CopyTail) -> str:
    held = "".join(
        f" {f.namespace} lwm={f.lwm}{''.join(f'({start},{delta})' for start, delta in f.ranges)}" for f in copy.fragments
    )
    return f"p{copy.partition} e{copy.epoch}{held}"


def _proof(proof: m.CopyProof) -> str:
    if proof.contents is None:
        return f"p{proof.partition} cannot say"
    said = "".join(f" {c.namespace} lwm={c.lwm} {c.digest >> 48:04x}" for c in proof.contents)
    said += "".join(f" {ns} is proven" for ns in proof.proven) + "".join(f" {ns} is disproved" for ns in proof.disproved)
    return f"p{proof.partition}{said}"


def _have(have: m.Have) -> str:
    ranges = "".join(f"({start},{delta})" for start, delta in have.ranges)
    flags = f"{' loading' if have.loading else ''}{' without history' if have.no_history else ''}"
    suspects = f" suspects {' '.join(map(key_name, have.suspects))}" if have.suspects else ""
    return f"{have.namespace}/{have.partition} lwm={have.lwm}{f' ranges={ranges}' if ranges else ''}{flags}{suspects}"


def _reports(copies: list[m.CopyReport]) -> str:
    return "; ".join(
        f"{c.namespace}/{c.partition} loading"
        if c.loading
        else f"{c.namespace}/{c.partition} lwm={c.lwm}{f' highest={c.highest}' if c.highest > c.lwm else ''}"
        for c in copies
    )
