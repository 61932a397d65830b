"""What is kept for readers of the past, against a model that keeps every version."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.data import kept
from engine.data.kept import FOLDED_MAX, Kept
from engine.state.ahead import LARGE_KEYS
from engine.state.store import GONE, CheckpointImage, Entry, LayeredStore
from engine.state.store_memory import MemoryStore
from tests.support.probes import heard
from wal import records as r
from wal.ids import NO_ERA, Era

NAME = ("acc", 0)
KEYS = (b"a", b"b", b"c")


class Copy:
    """A fragment at its primary: rows, what is kept, and every version that there ever was."""

    def __init__(self) -> None:
        self.store = LayeredStore(MemoryStore())
        self.kept = Kept(self.store, lambda _: self.lwm())
        self.versions: dict[bytes, list[tuple[Era, Entry]]] = {key: [] for key in KEYS}
        self.era: Era = (0, 1)
        self.counter = 0
        self.issued: list[r.Write] = []  # they do not count yet
        self.prepared: list[tuple[r.Write, Era]] = []  # nobody else writes their keys
        self.noting: dict[int, Iterator[int]] = {}  # of what is issued, by start
        self.noted: dict[int, Era] = {}
        self.cuts: list[Era] = []
        self.marks: dict[Era, int] = {}  # the greatest that its readers were told
        self.image: CheckpointImage | None = None  # that is being written

    def lwm(self) -> int:
        """All that was issued up to here has been applied."""
        open_at = [write.start for write in (*self.issued, *(write for write, _ in self.prepared))]
        return min(open_at, default=self.counter)

    def issue(self, keys: tuple[bytes, ...], value: bytes | None, *, prepared: bool = False) -> None:
        taken = [*(write for write, _ in self.prepared), *(self.issued if prepared else [])]
        if any(key in write.keys for write in taken for key in keys):
            return
        write = r.Write("acc", 0, 1, self.counter, list(keys), values=[value] * len(keys), stable=0, tx=b"")
        self.counter += len(keys)
        if prepared:
            self.prepared.append((write, self.era))
        else:
            self.issued.append(write)

    def note(self, at: int, pieces: int) -> None:
        """Note some of what a write will overwrite; it may be a newer cut's when that begins, or nobody's any more."""
        write = self.issued[at % len(self.issued)]
        if write.start not in self.noted:
            for _ in islice(self.noting.setdefault(write.start, self._note(write)), pieces):
                pass

    def _note(self, write: r.Write) -> Iterator[int]:
        self.noted[write.start] = yield from self.kept.note(NAME, write.keys)

    def count(self, at: int) -> None:
        write = self.issued[at % len(self.issued)]
        self._keep(write, self.era)
        self.issued.remove(write)
        self._apply(write, self.era)

    def commit(self, at: int) -> None:
        self._keep(*self.prepared[at % len(self.prepared)])
        self._apply(*self.prepared.pop(at % len(self.prepared)))

    def _keep(self, write: r.Write, era: Era) -> None:
        self.kept.keep(NAME, write.keys, era, self.noted.get(write.start, NO_ERA))

    def _apply(self, write: r.Write, era: Era) -> None:
        for cut in self.cuts:
            assert era < cut or write.start >= self.marks[cut], "it comes at or below what a reader was told"
        for number, (key, value) in enumerate(zip(write.keys, write.values, strict=True), write.start + 1):
            entry = Entry(1, number, value)
            self.versions[key].append((era, entry))
            held = self.store.get(NAME, key)
            if held is None or held.counter < number:
                self.store.set(NAME, key, entry)

    def read(self) -> None:
        """Some of what was not read yet."""
        for _ in islice(self.kept.read(), 1):
            pass

    def checkpoint(self, step: int) -> None:
        """Begin one, or finish it; tombstones of what nobody reads are gone with the first."""
        if self.image is None:
            for key in KEYS if NAME not in self.kept else ():
                held = self.store.get(NAME, key)
                if held is not None and held.value is None:
                    self.store.set(NAME, key, GONE)
            cleared, rows = self.store.freeze()
            self.image = CheckpointImage(step, {}, {NAME: b""}, {}, cleared, rows)
        else:
            self.store.base.write(self.image)
            for _ in self.kept.read():
                pass
            for gone in self.store.thaw():
                gone.clear()
            self.image = None

    def begin(self) -> None:
        self.era = (1, self.era[1] + 1)
        self.kept.begin(self.era)
        self.cuts.append(self.era)
        self.marks[self.era] = 0

    def end(self, at: int) -> None:
        self.kept.end(self.cuts.pop(at % len(self.cuts)))

    def tidy(self) -> None:
        """What comes of ends, all of it."""
        for _ in self.kept.tidy():
            pass
        assert self.kept.is_tidy()

    def check(self) -> None:
        """What counts of before each cut is what is read at it; what is prepared has yet to end, and is waited for."""
        for cut in self.cuts:
            mark = self.kept.mark(cut, NAME)
            self.marks[cut] = max(self.marks[cut], mark)
            newer = [e.counter for of in self.versions.values() for era, e in of if era >= cut]
            assert mark <= self.lwm()
            assert min(newer, default=mark + 1) > mark, "a row that came after the cut is below the mark"
            if not newer and all(write.start not in self.noted for write in self.issued):
                assert mark == self.lwm() or self.noted, "nothing came, and it says less than it could"
            for key in KEYS:
                older = [entry for era, entry in self.versions[key] if era < cut]
                expected = max(older, key=lambda entry: entry.counter, default=None)
                found = self.kept.at(cut, NAME, key)
                assert found == expected or (found is None and expected is not None and expected.value is None)
            page = self.kept.page(cut, NAME, self.store.page(NAME, b"", 10))
            assert [row for row in page.rows if row[1].value is not None] == [
                (key, e) for key in KEYS if (e := self.kept.at(cut, NAME, key)) is not None and e.value is not None
            ]
        if not self.cuts:
            assert not self.kept
            assert self.kept.bytes == 0
            self.tidy()
            assert NAME not in self.kept


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["issue", "prepare"]),
            st.lists(st.sampled_from(KEYS), min_size=1, unique=True).map(tuple),
            st.booleans(),
        ),
        st.tuples(st.sampled_from(["count", "commit"]), st.integers(0, 9)),
        st.tuples(st.sampled_from(["begin", "read", "checkpoint", "tidy"])),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("note"), st.integers(0, 9), st.integers(1, 4)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("large", [1, LARGE_KEYS], ids=["read later", "read at once"])
@given(steps=STEPS)
def test_each_cut_reads_the_newest_of_what_came_before_it(large: int, steps: list[tuple[object, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "LARGE_KEYS", large)
        patch.setattr(kept, "PIECE_KEYS", 1)
        _go_through(steps)


def _go_through(steps: list[tuple[object, ...]]) -> None:
    copy = Copy()
    for at_step, step in enumerate(steps, 1):
        match step:
            case ("issue" | "prepare" as how, tuple(keys), bool(deleted)):
                copy.issue(keys, None if deleted else b"v%d" % copy.counter, prepared=how == "prepare")
            case ("read",):
                copy.read()
            case ("checkpoint",):
                copy.checkpoint(at_step)
            case ("tidy",):
                copy.tidy()
            case ("note", int(at), int(pieces)) if copy.issued:
                copy.note(at, pieces)
            case ("count", int(at)) if copy.issued:
                copy.count(at)
            case ("commit", int(at)) if copy.prepared:
                copy.commit(at)
            case ("begin",):
                copy.begin()
            case ("end", int(at)) if copy.cuts:
                copy.end(at)
        copy.check()
    while copy.issued or copy.prepared:
        copy.count(0) if copy.issued else copy.commit(0)
        copy.check()


def test_a_row_is_kept_once_for_all_cuts_that_are_older_than_the_write() -> None:
    copy = Copy()
    copy.issue((b"a",), bytes(1_000))
    copy.count(0)
    for _ in range(5):
        copy.begin()
    copy.issue((b"a",), b"")
    copy.count(0)
    assert 1_000 < copy.kept.bytes < 2_000
    copy.check()


def test_much_of_a_cut_between_others_stays_where_it_is_until_the_older_goes() -> None:
    store = LayeredStore(MemoryStore())
    kept = Kept(store)
    kept.begin((1, 1))
    kept.begin((1, 2))
    keys = [b"%d" % number for number in range(FOLDED_MAX + 1)]
    kept.keep(NAME, keys, (1, 2))
    for number, key in enumerate(keys, 1):
        store.put(NAME, key, Entry(1, number, b"v"))
    kept.end((1, 2))
    assert max(kept.tidy()) <= 500
    assert kept.at((1, 1), NAME, keys[0]) is None
    kept.end((1, 1))
    assert not kept
    assert max(kept.tidy()) <= 500
    assert NAME not in kept
    assert list(kept.read()) == [], "nobody reads it any more"
    assert kept.bytes == 0


def test_what_very_many_rows_had_weighs_when_it_was_read() -> None:
    store = LayeredStore(MemoryStore())
    kept = Kept(store)
    keys = [b"%d" % number for number in range(LARGE_KEYS + 1)]
    for number, key in enumerate(keys, 1):
        store.put(NAME, key, Entry(1, number, bytes(1_000)))
    kept.begin((1, 1))
    kept.keep(NAME, keys, (1, 1))
    assert kept.has_unread()
    assert max(kept.read()) <= 1_000
    assert not kept.has_unread()
    assert kept.bytes > 1_000 * LARGE_KEYS


def test_what_is_noted_for_a_cut_is_not_looked_at_again_for_it() -> None:
    store = LayeredStore(MemoryStore())
    kept = Kept(store)
    keys = [b"%d" % number for number in range(LARGE_KEYS + 1)]
    kept.begin((1, 1))
    found: list[Era] = []

    def note() -> Iterator[int]:
        found.append((yield from kept.note(NAME, keys)))

    assert max(note()) <= 500
    assert found == [(1, 1)]
    with heard() as reached:
        kept.keep(NAME, keys, (1, 1), (1, 1))
        assert not reached
        kept.begin((1, 2))
        kept.keep(NAME, keys, (1, 2), (1, 1))
    assert reached == ["cut.kept_at_once"]


def test_what_very_many_rows_had_is_read_where_it_lies_until_a_checkpoint_is_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept, "LARGE_KEYS", 1)
    copy = Copy()
    for value in (b"old", b"new"):
        copy.issue((b"a", b"b"), value)
        copy.count(0)
        if value == b"old":
            copy.checkpoint(1)
            copy.checkpoint(2)
            copy.begin()
    for step in (3, 4):
        assert copy.kept.has_unread()
        copy.checkpoint(step)
        copy.check()
    assert not copy.kept.has_unread()
