"""What clients have staged of large transactions, for commits that are yet to come.

A transaction that is too large for a request is said in pieces before its commit, which names how many there were. They
lie in the memory of who will coordinate it, and nothing rests on them: whoever has not all of them says so, and the client
says them again, here or where it is decided by then, and commits under the same id. So a piece needs neither disk nor
copies, and a commit that is repeated finds its first answer, or what is prepared, as if it had come in one request.

What lies here is bounded. The first piece says how many bytes there will be, and has room for all of them or is to ask
again: so no two transactions that are half here wait for each other's room. What its client says nothing more of is
forgotten after the lease of a lock, and at once when it is given up, or the connection breaks over which it came: whoever
says a piece commits it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import structs

from engine.data.admission import Admission
from engine.data.parts import KEYS_PUT_OF_WORK
from engine.protocol.requests import Code, CommitTx, Done, StageWrites
from engine.protocol.sizes import KEYS_MAX, TRANSACTION_BYTES_MAX, written_bytes
from engine.turn.core import Core
from engine.turn.events import SessionId
from rebalance.ports import MS
from rebalance.rule import NEVER
from wal.ids import Namespace, TxId
from wal.probe import probe

W = TypeVar("W", TxId, SessionId)
Writes = list[tuple[Namespace, list[bytes], list[bytes | None]]]

FORGOTTEN_MAX = 1_000
"""So many are forgotten in one turn because nobody says more of them."""


class _Staged:
    """What is here of one transaction."""

    __slots__ = ("keys", "left", "owner", "partition", "pieces", "session", "size", "ttls", "until", "writes")

    def __init__(self, session: SessionId, request: StageWrites) -> None:
        self.session = session
        self.owner = request.owner
        self.partition = request.partition
        self.size = self.left = request.size
        self.pieces = 0
        self.writes: dict[Namespace, tuple[list[bytes], list[bytes | None]]] = {}
        self.ttls: list[tuple[Namespace, bytes, int]] = []
        self.keys: dict[Namespace, dict[bytes, None]] = {}
        self.until = 0

    def add(self, request: StageWrites) -> str:
        """Take the next piece; why it cannot be part of a transaction, or nothing."""
        problem = self.problem_with(request.writes)
        self.left -= written_bytes(request.writes)
        if self.left < 0:
            problem = problem or f"more was staged than the {self.size} bytes that were said before"
        if problem:
            return problem
        self.pieces += 1
        for namespace, keys, values in request.writes:
            known = self.writes.setdefault(namespace, ([], []))
            known[0].extend(keys)
            known[1].extend(values)
            self.keys.setdefault(namespace, {}).update(dict.fromkeys(keys))
        self.ttls += request.ttls
        return ""

    def problem_with(self, writes: Writes) -> str:
        """Why that cannot be written beside what is here."""
        many = sum(map(len, self.keys.values())) + sum(len(keys) for _, keys, _ in writes)
        if many > KEYS_MAX:
            return f"the transaction writes {many} keys: expected at most {KEYS_MAX}"
        for namespace, keys, _ in writes:
            known = self.keys.get(namespace, {})
            if any(key in known for key in keys):
                return "a key was given twice in one transaction"
        return ""


class Staging:
    """The pieces that lie in one node. `committing` is how many bytes those have whose votes are not all there; `wake` has
    `tick` called by then."""

    def __init__(
        self, core: Core, admission: Admission, *, committing: Callable[[], int], wake: Callable[[int], None]
    ) -> None:
        self.core = core
        self._wake = wake
        self.admission = admission
        self.desk = admission.desk
        self._committing = committing
        self._counted = (0, 0)  # in which turn it was asked how much that is, and how much it was, or has become since
        self._staged: OrderedDict[TxId, _Staged] = OrderedDict()  # whose lease ends first comes first
        self._of_owner: dict[TxId, dict[TxId, None]] = {}
        self._of_session: dict[SessionId, dict[TxId, None]] = {}
        self._bytes = 0  # that all of these will have

    def on_stage(self, session: SessionId, request: StageWrites) -> None:
        """Keep a piece, if it is the next one."""
        core, tx, local = self.core, request.tx, self.core.local[request.partition]
        if not self.admission.may_serve(session, request, local, None, new=False):
            return
        staged = self._of(session, tx)
        if staged is None and self._is_known(tx, request.partition):
            probe("stage.of_what_is_known")  # a late repetition: its commit is here already, or over
        elif staged is None and request.number == 1:
            self._forget(tx)  # another connection's
            if not self._has_room(session, request):
                return
            staged = _Staged(session, request)
            self._keep(tx, staged)
        elif staged is None or request.number > staged.pieces + 1:
            probe("stage.not_the_next")
            self._unstaged(session, request, 0 if staged is None else staged.pieces)
            return
        if staged is not None and request.number == staged.pieces + 1:
            core.work += sum(len(keys) for _, keys, _ in request.writes) // KEYS_PUT_OF_WORK
            if problem := staged.add(request):
                self._forget(tx)
                self.desk.refuse(session, request.id, Code.USAGE, problem)
                return
        if staged is not None:
            staged.until = core.now + core.settings.lock_lease_ms * MS
            self._staged.move_to_end(tx)
            self._wake(staged.until)
        self.desk.reply(session, Done(request.id))

    def _of(self, session: SessionId, tx: TxId) -> _Staged | None:
        """What is here of a transaction that was said over this connection: nobody adds to what another one has said."""
        staged = self._staged.get(tx)
        return staged if staged is not None and staged.session == session else None

    def _keep(self, tx: TxId, staged: _Staged) -> None:
        self._staged[tx] = staged
        self._bytes += staged.size
        self._of_owner.setdefault(staged.owner, {})[tx] = None
        self._of_session.setdefault(staged.session, {})[tx] = None

    def _forget(self, tx: TxId) -> None:
        """What was said of a transaction, if anything was, is not here any more."""
        staged = self._staged.pop(tx, None)
        if staged is None:
            return
        self._bytes -= staged.size
        _take_out(self._of_owner, staged.owner, tx)
        _take_out(self._of_session, staged.session, tx)

    def _being_committed(self) -> int:
        """How many bytes those have whose votes are not all there: looked up once a turn."""
        if self._counted[0] != self.core.turns:
            self._counted = self.core.turns, self._committing()
        return self._counted[1]

    def _is_known(self, tx: TxId, number: int) -> bool:
        known = self.core.replica.partition(number).results.get(tx) is not None
        return known or self.admission.is_in_use(tx, number)

    def _has_room(self, session: SessionId, request: StageWrites) -> bool:
        """Whether all that is to be staged fits beside what is here; if not, it was refused."""
        most = self.core.settings.staged_bytes_max
        held = self._bytes + self._being_committed()
        if request.size > most:
            told = (
                f"a transaction of more than {request.size} bytes: expected at most {most}, this node's `staged_bytes_max`"
            )
            self.desk.refuse(session, request.id, Code.USAGE, told)
        elif held + request.size > most:
            probe("stage.no_room")
            told = f"{held} bytes of other transactions are staged here, of {most} (`staged_bytes_max`): wait, or raise it"
            self.desk.refuse(session, request.id, Code.BUSY, told, retryable=True)
        else:
            return True
        return False

    def _unstaged(self, session: SessionId, request: StageWrites | CommitTx, pieces: int) -> None:
        told = f"of {request.tx.hex()} {pieces} pieces are staged here: stage it from the first one on"
        self.desk.refuse(session, request.id, Code.UNSTAGED, told, retryable=True)

    def take(self, session: SessionId, request: CommitTx) -> CommitTx | None:
        """The commit with all that was staged for it, which is not here any more; None: it was refused."""
        staged = self._of(session, request.tx)
        if staged is None or staged.pieces != request.staged:
            probe("stage.commit_of_what_is_not_staged")
            self._unstaged(session, request, 0 if staged is None else staged.pieces)
            return None
        self._counted = self.core.turns, self._being_committed() + staged.size
        self._forget(request.tx)
        problem = staged.problem_with(request.writes)
        size = staged.size - staged.left + written_bytes(request.writes)
        if size > TRANSACTION_BYTES_MAX:
            problem = problem or f"the transaction has {size} bytes: expected at most {TRANSACTION_BYTES_MAX}"
        problem = problem or next(filter(None, map(self.admission.not_there, staged.writes)), "")
        if problem:
            self.desk.refuse(session, request.id, Code.USAGE, problem)
            return None
        writes: Writes = []
        for namespace, keys, values in request.writes:
            more = staged.writes.pop(namespace, ([], []))
            writes.append((namespace, keys + more[0], values + more[1]))
        writes += [(namespace, *rest) for namespace, rest in staged.writes.items()]
        whole = structs.replace(request, writes=writes, ttls=request.ttls + staged.ttls)
        if self.core.read_only and (lost := self.admission.read_only(whole)) is not None:
            self.desk.refuse_lost(session, request.id, lost)
            return None
        return whole

    def give_up(self, owner: TxId) -> None:
        """Its client has given a transaction up, that holds its locks as `owner`."""
        self._forget_all(self._of_owner.get(owner, ()))

    def on_client_gone(self, session: SessionId) -> None:
        """A connection broke: nobody can commit what was said over it."""
        self._forget_all(self._of_session.get(session, ()))

    def switch(self) -> None:
        """Another map: what is decided elsewhere now is staged there."""
        local = self.core.local
        self._forget_all([tx for tx, staged in self._staged.items() if not local[staged.partition].mine])

    def _forget_all(self, some: Iterable[TxId]) -> None:
        for tx in list(some):
            self._forget(tx)

    def tick(self) -> None:
        """Forget what nobody says more of, in order of time: as much of it as a turn may."""
        now, left, first = self.core.now, FORGOTTEN_MAX, self._first
        while first is not None and first[1].until <= now and left:
            probe("stage.lease_over")
            self._forget(first[0])
            left, first = left - 1, self._first
        self._wake(first[1].until if first is not None else NEVER)

    @property
    def _first(self) -> tuple[TxId, _Staged] | None:
        """Whose lease ends first."""
        return next(iter(self._staged.items()), None)


def _take_out(all_of: dict[W, dict[TxId, None]], whose: W, tx: TxId) -> None:
    mine = all_of[whose]
    del mine[tx]
    if not mine:
        del all_of[whose]
