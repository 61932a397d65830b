"""What each mode protects from: the anomalies of the literature, one by one, behind every door.

After Martin Kleppmann's Hermitage. Each story is told step by step to two or three transactions; one that is refused is
rolled back, and what it had seen counts no more. A cell of the table says whether the story's anomaly may show: what is
prevented never shows, and what is allowed is shown to show, so that the table does not promise less than there is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import engine
from engine.client.ends import CheckCall
from engine.client.moments import CHECKS_TO_CUT
from engine.client.running import Level, Mode
from tests.support.patience import PATIENCE_SECONDS

Name = Callable[[], str]
Told: TypeAlias = dict[str, int]

MODES: tuple[tuple[Mode, Level], ...] = (
    ("PESSIMISTIC", "READ_COMMITTED"),
    ("PESSIMISTIC", "REPEATABLE_READ"),
    ("PESSIMISTIC", "SERIALIZABLE"),
    ("OPTIMISTIC", "READ_COMMITTED"),
    ("OPTIMISTIC", "REPEATABLE_READ"),
    ("OPTIMISTIC", "SERIALIZABLE"),
)


class Actor:
    """A transaction that is told step by step what to do; a step that is refused is its last."""

    def __init__(self, db: engine.Database, ns: engine.Namespace[str, int], mode: tuple[Mode, Level]) -> None:
        self.tx = db.transaction(concurrency=mode[0], isolation=mode[1], lock_timeout=0.01)
        self.inside = self.tx.namespace(ns)
        self.refused: engine.Error | None = None
        self.committed = False

    def _do(self, step: Callable[[], Any]) -> Any:
        if self.refused is not None:
            return None
        try:
            return step()
        except engine.Error as error:
            if not error.retryable:
                raise
            self.refused = error
            self.tx.rollback()
            return None

    def get(self, key: str) -> int | None:
        """What it reads."""
        found: int | None = self._do(lambda: self.inside.get(key))
        return found

    def put(self, key: str, value: int) -> None:
        """What it writes."""
        self._do(lambda: self.inside.put(key, value))

    def delete(self, key: str) -> None:
        """What it deletes."""
        self._do(lambda: self.inside.delete(key))

    def scan(self, prefix: str = "", limit: int | None = None) -> Told | None:
        """What it finds in a range; None if it is over."""
        found: Told | None = self._do(lambda: dict(self.inside.scan(prefix=prefix, limit=limit)))
        return found

    def commit(self) -> bool:
        """Whether it is committed."""
        self._do(self.tx.commit)
        self.committed = self.refused is None
        return self.committed


class Stage:
    """A namespace with two rows, and actors in one mode."""

    def __init__(self, db: engine.Database, ns: engine.Namespace[str, int], mode: tuple[Mode, Level]) -> None:
        self.db, self.ns, self.mode = db, ns, mode
        self.actors: list[Actor] = []
        ns.put_many({"x": 10, "y": 20})

    def actor(self) -> Actor:
        """Another transaction."""
        self.actors.append(Actor(self.db, self.ns, self.mode))
        return self.actors[-1]

    def end(self) -> None:
        """Whoever was left open gives up."""
        for actor in self.actors:
            actor.tx.rollback()


@pytest.fixture(params=MODES, ids=" ".join)
def stage(request: pytest.FixtureRequest, db: engine.Database, fresh: Name) -> Iterator[Stage]:
    """A stage in each mode."""
    made = Stage(db, db.namespace(fresh(), codec=int), request.param)
    yield made
    made.end()


# The stories: each says whether its anomaly showed.


def g0(stage: Stage) -> bool:
    """Dirty write: two transactions write the same two keys, and each comes first once."""
    a, b = stage.actor(), stage.actor()
    a.put("x", 11)
    b.put("x", 12)
    a.put("y", 21)
    a.commit()
    b.put("y", 22)
    b.commit()
    return stage.ns.get_many(["x", "y"]) not in ({"x": 11, "y": 21}, {"x": 12, "y": 22})


def g1a(stage: Stage) -> bool:
    """Aborted read: what was rolled back is seen."""
    a, b = stage.actor(), stage.actor()
    a.put("x", 101)
    first = b.get("x")
    a.tx.rollback()
    second = b.get("x")
    return b.commit() and 101 in (first, second)


def g1b(stage: Stage) -> bool:
    """Intermediate read: a value is seen that its writer wrote over before its end."""
    a, b = stage.actor(), stage.actor()
    a.put("x", 101)
    first = b.get("x")
    a.put("x", 11)
    a.commit()
    second = b.get("x")
    return b.commit() and 101 in (first, second)


def g1c(stage: Stage) -> bool:
    """Circular information flow: each sees what the other wrote."""
    a, b = stage.actor(), stage.actor()
    a.put("x", 11)
    b.put("y", 22)
    seen_by_a, seen_by_b = a.get("y"), b.get("x")
    both = [a.commit(), b.commit()]
    return all(both) and (seen_by_a, seen_by_b) == (22, 11)


def otv(stage: Stage) -> bool:
    """Observed transaction vanishes: of what one transaction wrote, part is seen and part is not any more."""
    a, b, c = stage.actor(), stage.actor(), stage.actor()
    a.put("x", 11)
    a.put("y", 19)
    b.put("x", 12)
    a.commit()
    seen = [c.get("x")]
    b.put("y", 18)
    seen.append(c.get("y"))
    b.commit()
    seen += [c.get("x"), c.get("y")]
    return c.commit() and (seen[0], seen[1]) == (11, 19) and (seen[2], seen[3]) not in ((11, 19), (12, 18))


def pmp(stage: Stage) -> bool:
    """Predicate many preceders: a range is read twice, and somebody's row came in between."""
    a, b = stage.actor(), stage.actor()
    first = a.scan("z")
    b.put("z", 30)
    b.commit()
    second = a.scan("z")
    return a.commit() and (first, second) == ({}, {"z": 30})


def p4(stage: Stage) -> bool:
    """Lost update: both read, both write, and the second does not know of the first."""
    a, b = stage.actor(), stage.actor()
    read = [a.get("x"), b.get("x")]
    a.put("x", 11)
    both = [a.commit()]
    b.put("x", 12)
    both.append(b.commit())
    return all(both) and read == [10, 10]


def g_single(stage: Stage) -> bool:
    """Read skew: one key as it was before somebody's transaction, another as after it."""
    a, b = stage.actor(), stage.actor()
    first = a.get("x")
    b.put("x", 12)
    b.put("y", 18)
    b.commit()
    second = a.get("y")
    return a.commit() and (first, second) == (10, 18)


def g_single_of_a_range(stage: Stage) -> bool:
    """The same, where the first read is of a range."""
    a, b = stage.actor(), stage.actor()
    first = a.scan("p")
    b.put("p1", 1)
    b.put("q1", 1)
    b.commit()
    second = a.get("q1")
    return a.commit() and (first, second) == ({}, 1)


def g2_item(stage: Stage) -> bool:
    """Write skew: each writes what the other has read."""
    a, b = stage.actor(), stage.actor()
    read = [a.get("x"), a.get("y"), b.get("x"), b.get("y")]
    a.put("x", 11)
    b.put("y", 21)
    both = [a.commit(), b.commit()]
    return all(both) and read == [10, 20, 10, 20]


def g2(stage: Stage) -> bool:
    """Write skew over ranges: nobody has the room yet, so both take it."""
    a, b = stage.actor(), stage.actor()
    read = [a.scan("room/"), b.scan("room/")]
    a.put("room/ann", 1)
    b.put("room/bob", 1)
    both = [a.commit(), b.commit()]
    return all(both) and read == [{}, {}]


STORIES: dict[str, Callable[[Stage], bool]] = {
    "G0": g0,
    "G1a": g1a,
    "G1b": g1b,
    "G1c": g1c,
    "OTV": otv,
    "PMP": pmp,
    "P4": p4,
    "G-single": g_single,
    "G-single of a range": g_single_of_a_range,
    "G2-item": g2_item,
    "G2": g2,
}
README = Path(__file__).parents[2] / "README.md"
ALLOWED: dict[str, tuple[str, ...]] = {
    "READ_COMMITTED": ("PMP", "P4", "G-single", "G-single of a range", "G2-item", "G2"),
    "REPEATABLE_READ": ("PMP", "G-single of a range", "G2"),
    "SERIALIZABLE": (),
}


@pytest.mark.parametrize("db", ["embedded", "cluster"], indirect=True)
@pytest.mark.parametrize("name", STORIES)
def test_what_is_prevented_never_shows_and_what_is_allowed_does(stage: Stage, name: str) -> None:
    assert STORIES[name](stage) == (name in ALLOWED[stage.mode[1]])


def test_the_table_of_the_readme_says_the_same() -> None:
    """Each row of it is a story, and its cells are those of `ALLOWED`."""
    page = README.read_text(encoding="utf-8")
    head = next(line for line in page.splitlines() if line.startswith("| anomaly |"))
    levels = [word.strip(" `") for word in head.strip("|").split("|")[2:]]
    rows = re.findall(r"^\| ((?:G|OTV|PMP|P4).*?) \| .*? \| (.*?) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    told = {name: {level for level, cell in zip(levels, cells, strict=True) if cell == "may show"} for name, *cells in rows}
    assert told == {name: {level for level in levels if name in ALLOWED[level]} for name in STORIES}


# Ranges, in detail.

both = pytest.mark.parametrize("concurrency", ["PESSIMISTIC", "OPTIMISTIC"])


@both
def test_what_lies_behind_the_limit_of_a_scan_is_nobodys_business(
    db: engine.Database, ns: engine.Namespace[bytes, bytes], concurrency: Mode
) -> None:
    ns.put_many({b"a": b"1", b"b": b"1", b"c": b"1"})
    with db.transaction(concurrency=concurrency, isolation="SERIALIZABLE") as tx:
        inside = tx.namespace(ns)
        assert list(inside.scan(limit=1)) == [(b"a", b"1")]
        inside.delete(b"a")
        inside.put(b"aa", b"2")
        assert list(inside.scan(limit=2)) == [(b"aa", b"2"), (b"b", b"1")]
        ns.put_many({b"bb": b"3", b"c": b"3"})
    assert dict(ns.scan()) == {b"aa": b"2", b"b": b"1", b"bb": b"3", b"c": b"3"}


@both
@pytest.mark.parametrize("gone", [True, False])
def test_a_range_that_was_only_read_is_looked_at_too(
    db: engine.Database, ns: engine.Namespace[bytes, bytes], concurrency: Mode, *, gone: bool
) -> None:
    ns.put(b"x", b"1")
    with pytest.raises(engine.Conflict) as caught, db.transaction(concurrency=concurrency, isolation="SERIALIZABLE") as tx:
        assert list(tx.namespace(ns).scan(prefix=b"room/")) == []
        ns.put(b"room/ann", b"1")
        if gone:
            ns.delete(b"room/ann")
    assert (caught.value.retryable, caught.value.maybe_committed) == (True, False)


def test_a_row_that_changes_before_it_is_locked_is_known(db: engine.Database, ns: engine.Namespace[bytes, bytes]) -> None:
    ns.put_many({b"a": b"1", b"b": b"1"})
    holder = db.transaction()
    holder.namespace(ns).put(b"a", b"2")
    with ThreadPoolExecutor(1) as other:

        def read() -> list[tuple[bytes, bytes]]:
            with db.transaction(isolation="SERIALIZABLE") as tx:
                found = list(tx.namespace(ns).scan())
                tx.namespace(ns).put(b"c", b"3")
            return found

        reading = other.submit(read)
        time.sleep(0.1)  # by then it has found both keys, and waits for one of them
        holder.commit()
        assert reading.result(PATIENCE_SECONDS) == [(b"a", b"2"), (b"b", b"1")]


def test_one_of_many_has_the_room(db: engine.Database, ns: engine.Namespace[bytes, bytes]) -> None:
    def book(guest: int) -> bool:
        def look(tx: engine.Transaction) -> bool:
            inside = tx.namespace(ns)
            free = not list(inside.scan(prefix=b"room/", limit=1))
            if free:
                inside.put(b"room/%d" % guest, b"booked")
            return free

        return db.run(
            look, isolation="SERIALIZABLE", concurrency="OPTIMISTIC" if guest % 2 else "PESSIMISTIC", attempts=100
        )

    with ThreadPoolExecutor(4) as guests:
        assert sorted(guests.map(book, range(4))) == [False] * 3 + [True]
    assert len(list(ns.scan())) == 1


# What an optimistic transaction sees before its end.


def _seen_by_get(inside: Any) -> int:
    return int(inside.get("x", 0)) + int(inside.get("y", 0))


def _seen_by_get_many(inside: Any) -> int:
    inside.get_many(["x"])
    return sum(map(int, inside.get_many(["x", "y"]).values()))


def _seen_by_scan(inside: Any) -> int:
    return int(inside.get("x", 0)) + int(dict(inside.scan())["y"])


def _seen_by_increment(inside: Any) -> int:
    return int(inside.get("x", 0)) + int(inside.increment("y", 0))


@pytest.mark.parametrize("look", [_seen_by_get, _seen_by_get_many, _seen_by_scan, _seen_by_increment])
@pytest.mark.parametrize("isolation", ["REPEATABLE_READ", "SERIALIZABLE"])
@pytest.mark.parametrize("first", ["there", "absent"])
def test_an_optimistic_transaction_sees_no_state_that_never_was(
    db: engine.Database, fresh: Name, first: str, isolation: Level, look: Callable[[Any], int]
) -> None:
    """Of what another one moves from one key to another neither both nor nothing is seen, though its commit would fail."""
    ns = db.namespace(fresh(), codec=int)
    ns.put("y", 10)
    if first == "there":
        ns.put("x", 10)
    total = sum(dict(ns.scan()).values())
    sums: list[int] = []

    def moved(tx: engine.Transaction) -> None:
        inside = tx.namespace(ns)
        if not sums:
            inside.get("x")

            def move(other: engine.Transaction) -> None:
                theirs = other.namespace(ns)
                theirs.put("x", theirs.get("x", 0) + 5)
                theirs.put("y", theirs.get("y", 0) - 5)

            with ThreadPoolExecutor(1) as apart:  # another transaction, and none inside this one
                apart.submit(db.run, move).result(PATIENCE_SECONDS)
            sums.append(-1)
        sums.append(look(inside))

    db.run(moved, concurrency="OPTIMISTIC", isolation=isolation)
    assert sums == [-1, total]


def test_a_range_and_a_key_are_of_one_moment(db: engine.Database, fresh: Name) -> None:
    ns = db.namespace(fresh(), codec=int)
    ns.put("count", 0)
    with db.transaction(concurrency="OPTIMISTIC") as tx:
        inside = tx.namespace(ns)
        assert list(inside.scan(prefix="row/")) == []

        def add(other: engine.Transaction) -> None:
            other.namespace(ns).put("row/1", 1)
            other.namespace(ns).put("count", 1)

        with ThreadPoolExecutor(1) as apart:
            apart.submit(db.run, add).result(PATIENCE_SECONDS)
        for _ in range(2):
            with pytest.raises(engine.Conflict):
                inside.get("count")
        tx.rollback()


def test_many_reads_one_by_one_are_of_one_moment_and_cost_what_is_read(
    db: engine.Database, fresh: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few times it is asked of all that was read whether it is so still, and then a cut is read."""
    ns = db.namespace(fresh(), codec=int)
    keys = [f"k{number}" for number in range(3 * CHECKS_TO_CUT)]
    ns.put_many(dict.fromkeys(keys, 0))
    ns.delete("gone")
    looks: list[int] = []
    asked = CheckCall.__init__

    def looked(call: CheckCall, owner: bytes, locks: Any, reads: list[Any], *args: Any, **kwargs: Any) -> None:
        looks.append(len(reads))
        asked(call, owner, locks, reads, *args, **kwargs)

    def change(other: engine.Transaction) -> None:
        theirs = other.namespace(ns)
        theirs.put_many({keys[-1]: 1, keys[-2]: 1, "gone": 1})

    monkeypatch.setattr(CheckCall, "__init__", looked)
    with db.transaction(concurrency="OPTIMISTIC") as tx:
        inside = tx.namespace(ns)
        assert [inside.get(key) for key in keys[:-2]] == [0] * (len(keys) - 2)
        assert inside.get("gone") is None, "and that it is not there is known at the commit"
    assert sum(looks) <= len(keys) * CHECKS_TO_CUT, looks
    tx = db.transaction(concurrency="OPTIMISTIC")
    inside = tx.namespace(ns)
    assert [inside.get(key) for key in keys[:-2]] == [0] * (len(keys) - 2)
    with ThreadPoolExecutor(1) as apart:
        apart.submit(db.run, change).result(PATIENCE_SECONDS)
    assert [inside.get(key) for key in (keys[-1], keys[-2], "gone")] == [0, 0, None], "as it was at the cut"
    with pytest.raises(engine.Conflict):
        tx.commit()
    with db.transaction(concurrency="OPTIMISTIC") as tx:
        inside = tx.namespace(ns)
        assert [inside.get(key) for key in keys[:-2]] == [0] * (len(keys) - 2)
        assert len(list(inside.scan())) == len(keys) + 1, "a range is read as it was at the cut, too"
        assert inside.get("nothing") is None


def test_a_lock_that_changes_nothing_stops_no_optimistic_reader(db: engine.Database, fresh: Name) -> None:
    ns = db.namespace(fresh(), codec=int)
    ns.put_many({"x": 1, "y": 2})
    holder = db.transaction()
    assert holder.namespace(ns).get_for_update("x") == 1
    with db.transaction(concurrency="OPTIMISTIC") as tx:
        assert (tx.namespace(ns).get("x"), tx.namespace(ns).get("y")) == (1, 2)
        holder.rollback()


def test_many_scans_one_by_one_are_of_one_moment_and_cost_what_is_scanned(
    db: engine.Database, fresh: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a few scans a cut is read; what came into a range after that is told at the commit."""
    ns = db.namespace(fresh(), codec=int)
    count = 3 * CHECKS_TO_CUT
    ns.put_many({f"k{number:03d}": 0 for number in range(count)})
    looks: list[int] = []
    asked = CheckCall.__init__

    def looked(call: CheckCall, *args: Any, scanned: list[Any], **kwargs: Any) -> None:
        looks.append(len(scanned))
        asked(call, *args, scanned=scanned, **kwargs)

    def each(inside: Any, first: int = 0) -> list[list[tuple[str, int]]]:
        return [list(inside.scan(start=f"k{n:03d}", end=f"k{n:03d}~")) for n in range(first, count)]

    def change(other: engine.Transaction) -> None:
        theirs = other.namespace(ns)
        theirs.put_many({f"k{count - 1:03d}": 1, "m": 1})
        theirs.delete(f"k{count - 2:03d}")

    expected = [[(f"k{number:03d}", 0)] for number in range(count)]
    monkeypatch.setattr(CheckCall, "__init__", looked)
    with db.transaction(concurrency="OPTIMISTIC", isolation="SERIALIZABLE") as tx:
        assert each(tx.namespace(ns)) == expected
        tx.namespace(ns).put("l", 1)
    assert sum(looks) <= count * CHECKS_TO_CUT, looks
    for writes in (True, False):
        tx = db.transaction(concurrency="OPTIMISTIC", isolation="SERIALIZABLE")
        inside = tx.namespace(ns)
        for number in range(CHECKS_TO_CUT):
            list(inside.scan(start=f"k{number:03d}", end=f"k{number:03d}~"))
        with ThreadPoolExecutor(1) as apart:
            apart.submit(db.run, change).result(PATIENCE_SECONDS)
        assert each(inside, CHECKS_TO_CUT) == expected[CHECKS_TO_CUT:], "as it was at the cut"
        assert not list(inside.scan(start="m")), "nor what came since"
        if writes:
            inside.put("l", 2)
        with pytest.raises(engine.Conflict):
            tx.commit()
        ns.put_many({f"k{number:03d}": 0 for number in range(count - 2, count)})
        ns.delete("m")
    assert ns.get("l") == 1
