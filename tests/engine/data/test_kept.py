"""What is kept for readers of the past, against a model that keeps every version."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.data.kept import FOLDED_MAX, Kept
from engine.state.store import Entry, Page
from wal import records as r
from wal.ids import Era

NAME = ("acc", 0)
KEYS = (b"a", b"b", b"c")


class Copy:
    """A fragment at its primary: rows, what is kept, and every version that there ever was."""

    def __init__(self) -> None:
        self.rows: dict[bytes, Entry] = {}
        self.kept = Kept(lambda _, key: self.rows.get(key))
        self.versions: dict[bytes, list[tuple[Era, Entry]]] = {key: [] for key in KEYS}
        self.era: Era = (0, 1)
        self.counter = 0
        self.issued: list[r.Write] = []  # they do not count yet
        self.prepared: list[tuple[r.Write, Era]] = []  # nobody else writes their keys
        self.cuts: list[Era] = []

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

    def count(self, at: int) -> None:
        self._apply(self.issued.pop(at % len(self.issued)), self.era)

    def commit(self, at: int) -> None:
        self._apply(*self.prepared.pop(at % len(self.prepared)))

    def _apply(self, write: r.Write, era: Era) -> None:
        self.kept.keep(NAME, write.keys, era)
        for number, (key, value) in enumerate(zip(write.keys, write.values, strict=True), write.start + 1):
            entry = Entry(1, number, value)
            self.versions[key].append((era, entry))
            if key not in self.rows or self.rows[key].counter < number:
                self.rows[key] = entry

    def keep_ahead(self, at: int) -> None:
        """Of a write that has yet to count, as its keys are nobody's who is prepared."""
        write = self.issued[at % len(self.issued)]
        if not any(key in prepared.keys for prepared, _ in self.prepared for key in write.keys):
            self.kept.keep(NAME, write.keys, self.era)

    def begin(self) -> None:
        self.era = (1, self.era[1] + 1)
        self.kept.begin(self.era)
        self.cuts.append(self.era)

    def end(self, at: int) -> None:
        self.kept.end(self.cuts.pop(at % len(self.cuts)))

    def check(self) -> None:
        """What counts of before each cut is what is read at it; what is prepared has yet to end, and is waited for."""
        for cut in self.cuts:
            for key in KEYS:
                older = [entry for era, entry in self.versions[key] if era < cut]
                expected = max(older, key=lambda entry: entry.counter, default=None)
                assert self.kept.at(cut, NAME, key) == expected
            page = self.kept.page(cut, NAME, Page(sorted(self.rows.items()), None, len(self.rows)))
            assert page.rows == [(key, e) for key in sorted(self.rows) if (e := self.kept.at(cut, NAME, key)) is not None]
        if not self.cuts:
            assert not self.kept
            assert self.kept.bytes == 0
            assert NAME not in self.kept


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["issue", "prepare"]),
            st.lists(st.sampled_from(KEYS), min_size=1, unique=True).map(tuple),
            st.booleans(),
        ),
        st.tuples(st.sampled_from(["ahead", "count", "commit"]), st.integers(0, 9)),
        st.tuples(st.just("begin")),
        st.tuples(st.just("end"), st.integers(0, 9)),
    ),
    max_size=40,
)


@given(STEPS)
def test_each_cut_reads_the_newest_of_what_came_before_it(steps: list[tuple[object, ...]]) -> None:
    copy = Copy()
    for step in steps:
        match step:
            case ("issue" | "prepare" as how, tuple(keys), bool(deleted)):
                copy.issue(keys, None if deleted else b"v%d" % copy.counter, prepared=how == "prepare")
            case ("ahead", int(at)) if copy.issued:
                copy.keep_ahead(at)
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
    rows: dict[bytes, Entry] = {}
    kept = Kept(lambda _, key: rows.get(key))
    kept.begin((1, 1))
    kept.begin((1, 2))
    keys = [b"%d" % number for number in range(FOLDED_MAX + 1)]
    kept.keep(NAME, keys, (1, 2))
    rows |= {key: Entry(1, number, b"v") for number, key in enumerate(keys, 1)}
    assert kept.end((1, 2)) == []
    assert kept.at((1, 1), NAME, keys[0]) is None
    assert len(kept.end((1, 1))) == 2
    assert not kept
