"""`python -m tests.crash.application DATA`: a program whose threads use an embedded node by blocking calls, until it is
killed, interrupted, or ends without closing it.

It says on its standard output what it begins and what it was told is done, a line each, before it does anything else: that
is what must be there afterwards. It ends by itself when its standard input does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import engine
from engine import aio, api
from tests.support.losing_disk import losing

SETTINGS = {"partitions": 8, "wal_segment_bytes": 8 << 10, "wal_total_bytes": 64 << 10, "checkpoint_ms": 300}
COUNTERS, MOVERS = 3, 2
ACCOUNTS = tuple(f"a{at}" for at in range(6))
BALANCE = 100
LOG = "log.path"
"""Beside the data: where the log lies."""


def kept_of(data: Path) -> Path:
    """Beside it: what is durable of its log."""
    return data.with_name(f"{data.name}-kept")


def log_of(data: Path) -> Path:
    """Where its log lies."""
    return Path(data.with_name(f"{data.name}-{LOG}").read_text(encoding="utf-8"))


def other_of(data: Path) -> Path:
    """Beside it: another node's, which is lost without `close` again and again."""
    return data.with_name(f"{data.name}-other")


def say(*words: object) -> None:
    """One line, in one piece, whoever else speaks."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def opened(data: Path) -> engine.Database:
    """As `engine.open` does it, on a disk that can lose what was not synced."""

    def note(log: Path) -> None:
        data.with_name(f"{data.name}-{LOG}").write_text(str(log), encoding="utf-8")

    disk = losing(kept_of(data), note)
    return api._start(lambda: aio.open_embedded(data, dict(SETTINGS), disk=disk))


class Application:
    """What its threads do. `ends` is set when it is to end."""

    def __init__(self, database: engine.Database, data: Path) -> None:
        self.database = database
        self.ends = threading.Event()
        self._other = other_of(data)
        self._calls = self._waits = False  # the main thread is in a call; and is to be interrupted in the next one

    def count(self, key: str) -> None:
        """Put higher and higher numbers."""
        numbers = self.database.namespace("numbers", codec="json")
        number = numbers.get(key, 0)
        while not self.ends.is_set():
            number += 1
            say("begin", key, number)
            try:
                self._call(numbers.put, key, number)
            except KeyboardInterrupt:
                say("interrupted", key, number)
                continue
            say("done", key, number)

    def _call(self, put: Callable[[str, int], None], key: str, number: int) -> None:
        """The main thread may be interrupted in here, and nowhere else: what came before waits until it is."""
        if threading.current_thread() is not threading.main_thread():
            put(key, number)
            return
        self._calls = True
        if self._waits:
            self.interrupt()
        put(key, number)
        self._calls = False

    def interrupt(self, *_: object) -> None:
        """As Ctrl-C does it by itself, in any line."""
        self._waits = not self._calls
        if self._calls:
            self._calls = False
            raise KeyboardInterrupt

    def move(self, draw: Random) -> None:
        """Move money, and look whether it is all there."""
        while not self.ends.is_set():
            source, target = draw.sample(ACCOUNTS, 2)

            def moved(tx: engine.Transaction, source: str = source, target: str = target) -> None:
                accounts = tx.namespace("bank", codec="json")
                held = accounts.get_many((source, target))
                accounts.put_many({source: held[source] - 1, target: held[target] + 1})

            self.database.run(moved)
            with self.database.snapshot() as snapshot:
                total = sum(snapshot.namespace("bank", codec="json").values())
            if total != BALANCE * len(ACCOUNTS):
                say("wrong", f"the accounts add up to {total}")

    def forget(self) -> None:
        """Open another node, write, and lose it without closing; whoever opens it next finds what was written."""
        number = None
        while not self.ends.is_set():
            database = engine.open(self._other, **SETTINGS)
            numbers = database.namespace("numbers", codec="json")
            held = numbers.get("other", 0)
            if number is not None and held != number:
                say("wrong", f"a node that was lost had {number}, and has {held}")
            number = held + 1
            say("begin", "other", number)
            numbers["other"] = number
            say("done", "other", number)
            del database, numbers

    def begin(self) -> None:
        """Start the threads, which end with the process."""
        works: list[tuple[Callable[..., None], tuple[object, ...]]] = [
            *((self.count, (f"k{at}",)) for at in range(COUNTERS)),
            *((self.move, (Random(at),)) for at in range(MOVERS)),
            (self.forget, ()),
            (self._listen, ()),
        ]
        for work, given in works:
            threading.Thread(target=self._do, args=(work, *given), daemon=True).start()

    def _listen(self) -> None:
        sys.stdin.read()
        self.ends.set()

    def _do(self, work: Callable[..., None], *given: object) -> None:
        try:
            work(*given)
        except Exception as error:
            if not self.ends.is_set():  # an interpreter that ends refuses what comes then: threads, calls, the node's disk
                say("wrong", repr(error))


def main(data: Path) -> None:
    """Until it is killed, or its standard input ends."""
    database = opened(data)
    bank = database.namespace("bank", codec="json")
    if not len(bank):
        bank.put_many(dict.fromkeys(ACCOUNTS, BALANCE))
    application = Application(database, data)
    signal.signal(signal.SIGINT, application.interrupt)
    application.begin()
    application.count("main")  # whom Ctrl-C interrupts


if __name__ == "__main__":
    main(Path(sys.argv[1]))
