"""A client's event loop side: it carries what the router wants sent, and wakes whoever waits for a call.

All calls that are begun in one pass of the loop leave in one frame per node. There is one session per client, and it
belongs to one loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import get_ident
from typing import Protocol, TypeVar

from engine import errors
from engine.client.calls import Call
from engine.client.flights import NEVER
from engine.client.leases import CutLeases
from engine.client.loop import ELSEWHERE
from engine.client.routing import Router
from engine.client.timing import REAL, Renewals, Surroundings, check_seconds
from engine.client.unclosed import is_running
from engine.protocol.addresses import Address
from engine.protocol.requests import Reply, Request
from engine.protocol.wire import FRAME_BYTES_MAX
from wal.ids import NO_VERSION, TxId, Version

TICK_SECONDS = 0.01
"""What is due is looked at when it is, and not more often than this."""
LOOK_SECONDS = 0.2
"""Whoever waits ticks so often at least, to notice that it stood still."""
STOOD_STILL_NS = 1_000_000_000
"""A loop that did not tick for longer was stopped with its process or its machine, or somebody blocked it: nobody looked
at what arrived meanwhile, and a node in this process did not run either. No more than this counts as having waited."""
C = TypeVar("C", bound=Call)


class Links(Protocol):
    """The ways to the nodes: sockets, or the node in this process."""

    def connect(self, address: Address) -> None:
        """Begin to connect; the session hears how it went."""
        ...

    def send(self, address: Address, requests: list[Request]) -> None:
        """Ask."""
        ...

    async def close(self) -> None:
        """Hang up."""
        ...


class Session:
    """One client. `name` is what it calls itself, for the logs of the nodes."""

    def __init__(
        self, seeds: list[Address], *, timeout: float, domain: str = "", name: str = "", around: Surroundings = REAL
    ) -> None:
        self.name = name
        self.loop = asyncio.get_running_loop()
        self._thread = get_ident()  # that of the loop, as it was last seen
        self.clock, self.chance = around.clock, around.chance
        self.timeout = timeout
        self.renewals = Renewals()
        self.router = Router(
            seeds,
            draw=self.chance.getrandbits(128),
            now=self.clock(),
            wall_ms=around.wall() // 1_000_000,
            domain=domain,
        )
        self.links: Links | None = None
        self.cuts = CutLeases(self, self.loop)
        self.look_seconds = LOOK_SECONDS
        self._flushing = False
        self._ticker: asyncio.TimerHandle | None = None
        self._tick_at = NEVER  # ns; when it will tick
        self._ticked = 0  # when it did so last, or began to
        self._waiting = 0
        self.closed = False
        self.failure: errors.Error | None = None
        self._keeper: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Begin to connect."""
        self._flush()
        self._keep_later()

    def _keep_later(self) -> None:
        """Say in a while that it lives, also when it has nothing else to say."""
        self._keeper = self.loop.call_later(self.renewals.of_sessions, self._keep)

    def _keep(self) -> None:
        self.router.keep()
        self._flush()
        self._keep_later()

    async def wait_for_table(self, seconds: float, version: Version = NO_VERSION) -> bool:
        """Wait until the cluster's table is known, of this version or a later one; False if it did not come in time."""
        until = self.loop.time() + seconds
        while self.router.topology is None or self.router.topology.version < version:
            self._check_open()
            if self.loop.time() >= until:
                return False
            self.router.want_table(self.clock())
            self._flush()
            await asyncio.sleep(TICK_SECONDS)
        return True

    def leave_to_parent(self) -> None:
        """This is the child of a fork: nothing is asked here any more, and no id drawn, which the parent draws, too."""
        self.failure = errors.UsageError("this was begun before os.fork(): it belongs to the parent process")
        self._thread = 0  # that of the loop here may be called as the parent's is

    def fail(self, error: errors.Error) -> None:
        """The node is gone for good: every call ends with this, or as unknown if it may have been done."""
        self.failure = error
        self._end_calls(error)

    def _end_calls(self, why: errors.Error) -> None:
        self.router.end(why)
        self._wake()

    def new_tx(self, label: str = "") -> TxId:
        """A new transaction id, of what is called so."""
        self.check_here()
        return self.router.identity.new_tx(self.clock(), label)

    def new_owner(self) -> TxId:
        """A new name for who holds locks."""
        self.check_here()
        return self.router.identity.new_owner()

    def seconds(self) -> float:
        """What the clock reads, in seconds."""
        return self.clock() / 1e9

    @property
    def leading(self) -> list[int]:
        """A partition of each primary, by the table in use."""
        return self.router.places.leading

    async def call(self, call: C, *, timeout: float | None = None) -> C:
        """Do a call; raise its error."""
        seconds = self.timeout if timeout is None else check_seconds("timeout", timeout)
        if self.closed or self.failure is not None:
            self._check_open()
        future: asyncio.Future[None] = self.loop.create_future()
        call.waiter = future
        now = self.clock()
        if self._ticker is None:
            self._ticked = now
        elif now - self._ticked > STOOD_STILL_NS:
            self._stood_still(now)
        self.router.begin(call, now, now + int(seconds * 1e9))
        self._waiting += 1
        try:
            if not self._flushing:
                self._flushing = True
                self.loop.call_soon(self._flush)
            await future
        except asyncio.CancelledError:
            self.router.cancel(call)
            raise
        except RuntimeError as error:  # of asyncio: asking for the loop first would be a system call for each call
            self.router.cancel(call)
            if asyncio.get_running_loop() is self.loop:
                raise
            raise errors.UsageError(ELSEWHERE) from error
        finally:
            self._waiting -= 1
        if call.error is not None:
            raise call.error
        return call

    def check_here(self) -> None:
        """Refuse who calls from another thread, which may run at this very moment, before anything is touched. Another loop
        of the same thread is found by its future: asking for the loop costs a system call each time."""
        if get_ident() != self._thread:
            self.check_loop()
            self._thread = get_ident()  # a loop may be run by one thread after another

    def check_loop(self) -> None:
        """Refuse who does not run on the loop."""
        if not is_running(self.loop):
            self.check_whole()  # the child of a fork is told so
            raise errors.UsageError(ELSEWHERE)

    def _check_open(self) -> None:
        self.check_here()
        if self.closed:
            raise errors.UsageError("the database was closed")
        self.check_whole()

    def check_whole(self) -> None:
        """Raise why nothing can be asked here any more, if so: the node is gone, or this is the child of a fork."""
        if self.failure is not None:
            raise type(self.failure)(str(self.failure))

    def _flush(self) -> None:
        self._flushing = False
        if self.closed or self.failure is not None:
            return
        router, links = self.router, self.links
        assert links is not None
        if router.places.to_connect:
            wanted, router.places.to_connect = router.places.to_connect, []
            for address in wanted:
                links.connect(address)
        if router.sends:
            sends, router.sends = router.sends, []
            by_address: dict[Address, list[Request]] = {}
            for address, request in sends:
                requests = by_address.get(address)
                if requests is None:
                    requests = by_address[address] = []
                requests.append(request)
            for address, requests in by_address.items():
                links.send(address, requests)
        if self._waiting and router.wake_at < self._tick_at:
            self._plan_tick()
        self._wake()

    def _wake(self) -> None:
        """Tell whoever waits for the calls that are over."""
        done, self.router.done = self.router.done, []
        for call in done:
            future = call.waiter
            assert isinstance(future, asyncio.Future)
            if not future.done():
                future.set_result(None)

    def _stood_still(self, now: int) -> None:
        """Those who wait are given back what they did not have of the time since the last tick."""
        self.router.stood_still(now - self._ticked - STOOD_STILL_NS)
        self._ticked = now

    def _plan_tick(self) -> None:
        """Tick when the router has something to do, if that is sooner than planned."""
        ticked = self._ticked
        wanted = min(self.router.wake_at, ticked + int(self.look_seconds * 1e9))
        at = max(wanted, ticked + int(TICK_SECONDS * 1e9))
        if at < self._tick_at:
            if self._ticker is not None:
                self._ticker.cancel()
            self._tick_at = at
            self._ticker = self.loop.call_later(max(0, at - self.clock()) / 1e9, self._tick)

    def _tick(self) -> None:
        self._ticker, self._tick_at = None, NEVER
        if self.closed or not self._waiting:
            return
        now = self.clock()
        if now - self._ticked > STOOD_STILL_NS:
            self._stood_still(now)
        self._ticked = now
        self.router.tick(now)
        self._flush()

    # What the links bring.

    def on_replies(self, address: Address, replies: list[Reply]) -> None:
        """A node answered."""
        now = self.clock()
        on_reply = self.router.on_reply
        for reply in replies:
            on_reply(address, reply, now)
        self._flush()

    def on_connected(self, address: Address, lock_lease_ms: int = 0, result_retention_ms: int = 0) -> None:
        """A connection is there, and what its node grants to who is silent."""
        self.router.places.refusals.pop(address, None)
        before = self.renewals.of_sessions
        self.renewals.hear(address, lock_lease_ms, result_retention_ms)
        if self.renewals.of_sessions < before and self._keeper is not None:
            self._keeper.cancel()
            self._keep_later()
        self.router.on_connected(address, self.clock())
        self._flush()

    def on_disconnected(self, address: Address, reason: str) -> None:
        """A connection broke, or could not be made."""
        if reason:
            self.router.places.refusals[address] = reason
        self.router.on_disconnected(address, self.clock())
        self._flush()

    def on_unsendable(self, request: Request) -> None:
        """A request could not be sent, for its size."""
        self.router.on_unsendable(request, f"expected at most {FRAME_BYTES_MAX} bytes")
        self._wake()

    def _say_last(self, calls: Sequence[Call]) -> None:
        """Say what nobody waits for, before the connections go."""
        now = self.clock()
        for call in calls if self.failure is None else ():
            call.waiter = self.loop.create_future()
            self.router.begin(call, now, now)
        self._flush()

    async def close(self) -> None:
        """End every call and hang up."""
        self.check_loop()
        if not self.closed:
            self._say_last(self.cuts.close())
            self.closed = True
            if self._keeper is not None:
                self._keeper.cancel()
            self._end_calls(errors.UsageError("the database was closed"))
        if self.links is not None:
            await self.links.close()
