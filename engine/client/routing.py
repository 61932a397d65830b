"""Where a client sends what, and what it does when that goes wrong. Pure: replies and time in, requests out.

The client keeps the newest topology it has seen and sends every request to the primary of its partition. A `Remap`, a
broken connection or silence means that the table is old, or that the cluster is between two topologies: it fetches the
table from whoever answers and sends what is left to do again, with the same transaction id, until the call's deadline. A
write that may have been executed and was never answered ends as CommitUnknown, never as a failure.
"""

from __future__ import annotations

from engine import errors
from engine.client.calls import Call, Item
from engine.client.ends import StatusCall
from engine.client.flights import MS, NEVER, Elsewhere, Errand, Flight, withdraw_repeated
from engine.client.identity import Identity
from engine.client.places import SILENCE_MS, Places
from engine.client.refusals import late, refused
from engine.protocol.addresses import Address
from engine.protocol.requests import Code, Done, Failed, GetTable, KeepSessions, Remap, Reply, Request, Table, Values
from rebalance.table import Topology, version_of
from wal.ids import MINOR_BITS
from wal.probe import probe

TABLE_MS = 300
"""A table that was asked for and did not come is asked for again, of another node."""

ASKED_AGAIN_MS = 300_000
"""A write that had no answer for so long is not asked again: nodes keep answers for longer, but not for ever."""

_ONLY = [0]  # the items of a call that has one
_REFUSALS, _OF_A_MAP = (Remap, Failed), (Done, Values)  # answers; these say by which map they were given


class Router:
    """The routing of one client."""

    def __init__(self, seeds: list[Address], *, draw: int, now: int, wall_ms: int, domain: str = "") -> None:
        """`draw`: 128 random bits, for the names of this client's sessions, and `wall_ms` the wall clock's time now, that
        people see in them; `domain`: copies there are near."""
        self.places = Places(seeds, domain)
        self._flights: dict[int, Flight] = {}
        self._calls: dict[int, Errand] = {}
        self._due = NEVER  # no call has anything to do before
        self._next_id = 1
        self.identity = Identity(draw, now=now, wall_ms=wall_ms)
        self._table_asked_at: int | None = None
        self._table_turn = 0
        self._table_id = 0
        self._elsewhere = Elsewhere()
        self._listen_at: int | None = None  # when to look whether the oldest flight was answered
        self.sends: list[tuple[Address, Request]] = []
        self.done: list[Call] = []
        self.now = now

    @property
    def topology(self) -> Topology | None:
        """The table in use."""
        return self.places.topology

    def keep(self) -> None:
        """Tell every node that this client lives, and which answers it has."""
        sessions = self.identity.acknowledged
        for address, up in self.places.connected.items():
            if up:
                self.sends.append((address, KeepSessions(self._next_id, sessions)))
                self._next_id += 1

    # Calls.

    def begin(self, call: Call, now: int, deadline: int) -> None:
        """Start a call; it will be in `done` by its deadline."""
        if now > self.now:
            self.now = now
        if deadline < self._due:
            self._due = deadline
        errand = self._calls[id(call)] = Errand(call, self.now, deadline)
        places = self.places
        number = call.only_partition(places.topology) if places.topology is not None and not call.anywhere else None
        if number is not None and (address := places.route[number]) is not None:
            errand.todo = []
            self._send(errand, _ONLY, address)  # nearly every call is of this kind: one item, and all is well
        else:
            self._push(errand)

    def cancel(self, call: Call) -> None:
        """Nobody waits for the call any more."""
        errand = self._calls.pop(id(call), None)
        if errand is not None:
            errand.over = True
            if call.writes:
                self.identity.close(call.tx)

    def _send(self, errand: Errand, items: list[Item], address: Address) -> None:
        request_id, now, call = self._next_id, self.now, errand.call
        self._next_id = request_id + 1
        flight = self._flights[request_id] = Flight(errand, items, address, now)
        if self._listen_at is None:
            self._listen_at = now + SILENCE_MS * MS
        errand.flights += 1
        call.within_ms = errand.within_ms(now)
        if call.writes:
            call.acked = self.identity.acked(call.tx)
            call.version = self.places.number
        elif call.anywhere:
            self._elsewhere.add(request_id, flight)
        elif isinstance(call, StatusCall):
            age = self.identity.age_ns(call.tx, now)
            call.age_ms = age // MS if age >= 0 else -1
        self.sends.append((address, call.request(request_id, items)))

    def _push(self, errand: Errand) -> None:
        """Send what is still to do, each item to its primary; what has nowhere to go is tried again later."""
        route, topology = self.places.route, self.places.topology
        if topology is None:
            self._due = min(self._due, errand.retry_at)
            self._want_table()
            return
        call = errand.call
        if call.writes and call.unanswered and self.now >= errand.begun + ASKED_AGAIN_MS * MS:
            self._fail(errand, errors.CommitUnknown(f"asked in vain for {ASKED_AGAIN_MS // 1000} s ({errand.last})"))
            return
        partitions = call.partitions(topology)
        if errand.todo is None:
            errand.todo = list(range(len(partitions)))
        by_address: dict[Address | None, list[Item]] = {}
        if partitions and not 0 <= min(partitions) <= max(partitions) < len(route):
            wrong = next(number for number in partitions if not 0 <= number < len(route))
            self._fail(errand, errors.UsageError(f"partition {wrong} does not exist in this cluster"))
            return
        for item in errand.todo:
            address = route[partitions[item]]
            if call.anywhere:
                since = self.now - SILENCE_MS * MS
                address = self.places.nearest(partitions[item], errand.attempts, since, any_age=call.any_age)
            mine = by_address.get(address)
            if mine is None:
                mine = by_address[address] = []
            mine.append(item)
        errand.todo = by_address.pop(None, [])
        for address, items in by_address.items():
            assert address is not None
            self._send(errand, items, address)
        if errand.todo:
            for number in dict.fromkeys([partitions[item] for item in errand.todo]):
                self._explain(errand, number)
            self._again(errand, stale=True)

    def _ask_elsewhere(self) -> None:
        """What any copy may answer, and the one that was asked does not, is asked of another."""
        for request_id in self._elsewhere.overdue(self.now, self._flights):
            probe("client.asked_another_copy")
            flight = self._flights.pop(request_id)
            self.places.has_not_answered(flight.address, self.now)
            errand = flight.errand
            errand.flights -= 1
            errand.hindered(f"{flight.address} does not answer")
            self._redo(errand, flight.items, stale=False)

    def _explain(self, errand: Errand, number: int) -> None:
        """Why a partition cannot be reached; and see that it can be, if a connection is all that is missing."""
        assert self.topology is not None
        placement = self.topology.placements[number]
        primary = placement.primary
        if primary is None:
            errand.hindered(
                f"partition {number} is LOST: every in-sync copy ({', '.join(placement.in_sync)}) is away", Code.LOST
            )
        else:
            address = self.places.addresses[primary]
            self.places.connect(address)
            why = self.places.refusals.get(address, "")
            if why or not errand.last:
                errand.hindered(f"no connection to {primary} at {address}" + (f": {why}" if why else ""))

    def _again(self, errand: Errand, *, stale: bool) -> None:
        """Try what is left a little later, and look at the table if it may be old."""
        errand.back_off(self.now)
        self._due = min(self._due, errand.retry_at)
        if stale:
            self._want_table()

    def _fail(self, errand: Errand, error: errors.Error) -> None:
        errand.call.error = error
        self._finish(errand)

    def _finish(self, errand: Errand) -> None:
        if not errand.over:
            errand.over = True
            call = errand.call
            if call.writes:
                if call.error is None and call.ends:
                    self.identity.close(call.tx)
                else:
                    self._close(call)
            elif isinstance(call, StatusCall) and call.outcome:
                self.identity.close(call.tx)
            del self._calls[id(call)]
            call.finished = True
            self.done.append(call)

    def _close(self, call: Call) -> None:
        """A call is over: its answer is acknowledged with the next request, unless it never came."""
        if not isinstance(call.error, errors.CommitUnknown):
            if call.error is not None:
                self.identity.close(call.tx)
        elif self.identity.leave(call.tx, self.now):
            probe("client.session_left")

    # Replies.

    def on_reply(self, address: Address, reply: Reply, now: int) -> None:
        """A node answered."""
        if now > self.now:
            self.now = now
        if isinstance(reply, Table):
            if reply.id == self._table_id:
                self._table_asked_at = None
            self._take_table(reply)
            return
        flight = self._flights.pop(reply.id, None)
        if self.places.mute:
            self.places.has_answered(address)
        if flight is None:
            self._take_late(reply)
        if flight is None or flight.errand.over:
            return
        errand = flight.errand
        errand.flights -= 1
        if isinstance(reply, _REFUSALS):
            self._take_refusal(errand, flight, reply)
            return
        number, call = self.places.number, errand.call
        if isinstance(reply, _OF_A_MAP) and reply.version > number and reply.version >> MINOR_BITS > number >> MINOR_BITS:
            self._want_table()  # somebody joined, left or failed
        asked = call.asked
        if not self._takes(call, errand, flight.items, reply):
            return
        if call.rest:
            assert errand.todo is not None
            errand.todo.extend(call.rest)
            call.rest = ()
            self._push(errand)
        if errand.flights or errand.todo:
            call.begun = asked
        else:
            self._finish(errand)

    def _takes(self, call: Call, errand: Errand, items: list[Item], reply: Reply) -> bool:
        try:
            call.take(items, reply)
        except errors.ProtocolError as error:
            self._fail(errand, error)
            return False
        if call.anywhere:
            errand.was_answered(items)
        return True

    def _take_late(self, reply: Reply) -> None:
        """Another copy was asked meanwhile: what this one says is as good, if it says nothing twice."""
        flight = self._elsewhere.late(reply.id)
        if flight is None or flight.is_answered or isinstance(reply, Remap | Failed):
            return
        probe("client.heard_late")
        errand = flight.errand
        if not self._takes(errand.call, errand, flight.items, reply):
            return
        errand.call.rest = ()
        withdraw_repeated(self._flights, errand)
        if errand.todo:
            self._again(errand, stale=False)
        elif not errand.flights:
            self._finish(errand)

    def _redo(self, errand: Errand, items: list[Item], *, stale: bool) -> None:
        assert errand.todo is not None
        errand.todo.extend(items)
        self._again(errand, stale=stale)

    def _take_refusal(self, errand: Errand, flight: Flight, reply: Remap | Failed) -> None:
        """It is to be asked elsewhere, or later, or not at all."""
        if isinstance(reply, Remap):
            errand.hindered(f"{flight.address} is not primary at version {reply.version}")
            if reply.begun:
                probe("client.remapped_under_way")
                errand.call.unanswered = True
            self._redo(errand, flight.items, stale=reply.version >= version_of(self.topology))
            return
        error = refused(errand, reply, awaited=reply.code == Code.ANSWERED and self.identity.awaits(errand.call.tx))
        if error is not None:
            self._fail(errand, error)
            return
        errand.hindered(f"{reply.code}: {reply.message}", reply.code)
        errand.call.hear_refusal(reply.code)
        self._redo(errand, flight.items, stale=True)

    # The table.

    def want_table(self, now: int) -> None:
        """See that a table is asked for, and asked for again when it does not come."""
        self.now = max(self.now, now)
        if self._table_asked_at is not None and self.now >= self._table_asked_at + TABLE_MS * MS:
            self._table_asked_at = None
        self._want_table()

    def end(self, why: errors.Error) -> None:
        """No answer will come any more: every call ends with this, or as unknown if it may have been done."""
        for errand in list(self._calls.values()):
            if errand.may_be_done:
                self._fail(errand, errors.CommitUnknown(f"{why}; it may have been done"))
            else:
                self._fail(errand, type(why)(str(why)))  # a new one each: an error belongs to who is told it
        self._flights = {}

    def on_unsendable(self, request: Request, reason: str) -> None:
        """A request is larger than a frame may be: it was not sent."""
        flight = self._flights.pop(request.id, None)
        if flight is not None and not flight.errand.over:
            flight.errand.flights -= 1
            kind = errors.CommitUnknown if flight.errand.may_be_done else errors.UsageError
            self._fail(flight.errand, kind(f"too much for one request, do it in smaller pieces: {reason}"))

    def _want_table(self) -> None:
        if self._table_asked_at is not None:
            return
        up = [a for a in self.places.known() if self.places.connected.get(a)]
        for address in self.places.known():
            self.places.connect(address)
        if not up:
            return
        self._table_turn += 1
        self._table_asked_at = self.now
        self._table_id = self._next_id
        self._next_id += 1
        self.sends.append((up[self._table_turn % len(up)], GetTable(self._table_id)))

    def _take_table(self, reply: Table) -> None:
        if not self.places.take(reply):
            return
        self._withdraw()
        for errand in list(self._calls.values()):
            if (errand.todo is None or errand.todo) and not errand.over:
                self._push(errand)

    def _withdraw(self) -> None:
        """What was asked of a node that is silent, and by the new table not the one to ask, is asked anew of the others."""
        assert self.topology is not None
        placements = self.topology.placements
        for request_id, flight in list(self._flights.items()):
            if self.now < flight.sent_at + SILENCE_MS * MS:
                return  # those behind it were sent later
            errand = flight.errand
            if errand.over:
                continue
            partitions = errand.call.partitions(self.topology)
            primaries = (placements[partitions[item]].primary for item in flight.items)
            if any(self.places.addresses.get(primary or "") != flight.address for primary in primaries):
                probe("client.withdrew_from_silent_node")
                del self._flights[request_id]
                errand.flights -= 1
                errand.call.unanswered = True
                errand.hindered(f"{flight.address} does not answer")
                self._redo(errand, flight.items, stale=False)

    def _listen(self) -> None:
        """As long as the oldest request has no answer, see that the table is asked for, and whom else it names."""
        if self.topology is not None:
            self._withdraw()
        self._flights = {i: flight for i, flight in self._flights.items() if not flight.errand.over}
        oldest = next(iter(self._flights.values()), None)
        if oldest is None:
            self._listen_at = None
        elif self.now < oldest.sent_at + SILENCE_MS * MS:
            self._listen_at = oldest.sent_at + SILENCE_MS * MS
        else:
            self._listen_at = self.now + TABLE_MS * MS
            self._want_table()

    # Connections and time.

    def on_connected(self, address: Address, now: int) -> None:
        """A connection was made."""
        self.now = max(self.now, now)
        self.places.on_connected(address)
        if self.topology is None:
            self._table_asked_at = None
            self._want_table()
        for errand in list(self._calls.values()):
            if errand.todo:
                errand.retry_at = min(errand.retry_at, self.now)
                self._due = min(self._due, self.now)

    def on_disconnected(self, address: Address, now: int) -> None:
        """A connection broke: what was sent over it may have happened."""
        self.now = max(self.now, now)
        self.places.on_disconnected(address)
        lost = [(i, f) for i, f in self._flights.items() if f.address == address]
        for request_id, flight in lost:
            del self._flights[request_id]
            errand = flight.errand
            if errand.over:
                continue
            errand.flights -= 1
            errand.call.unanswered = True
            errand.hindered(f"the connection to {address} broke")
            self._redo(errand, flight.items, stale=True)
        self._table_asked_at = None

    def stood_still(self, ns: int) -> None:
        """This client did not run for so long: none of it counts as waiting."""
        for errand in self._calls.values():
            errand.deadline += ns

    def tick(self, now: int) -> None:
        """Retry what is due, end what is late."""
        self.now = max(self.now, now)
        if self._table_asked_at is not None and self.now >= self._table_asked_at + TABLE_MS * MS:
            self._table_asked_at = None
            if any(s.todo is None or s.todo for s in self._calls.values()):
                self._want_table()
        if self._listen_at is not None and self.now >= self._listen_at:
            self._listen()
        if self.now >= self._elsewhere.look_at:
            self._ask_elsewhere()
        if self.now < self._due:
            return
        self._due = NEVER
        for errand in list(self._calls.values()):
            if errand.over:
                continue
            if self.now >= errand.deadline:
                self._fail(errand, late(errand))
                continue
            if errand.todo is None or errand.todo:
                if self.now >= errand.retry_at:
                    self._push(errand)
                else:
                    self._due = min(self._due, errand.retry_at)
            self._due = min(self._due, errand.deadline)

    @property
    def wake_at(self) -> int:
        """When `tick` may have something to do, if anybody waits. Each reply asks, so no call is looked at."""
        at = self._elsewhere.look_at
        if self._due < at:
            at = self._due
        if self._listen_at is not None and self._listen_at < at:
            at = self._listen_at
        if self._table_asked_at is not None:
            at = min(at, self._table_asked_at + TABLE_MS * MS)
        return at
