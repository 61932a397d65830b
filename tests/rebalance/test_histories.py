"""Random histories: whatever happens to a copy, in the end it is equal, and exactly what it lacked was supplied."""

from __future__ import annotations

from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rebalance.choice import OF_ROWS
from rebalance.partition import Role
from tests.rebalance.copies import NAMESPACE, Copies, Said, Settings
from wal import records as r
from wal.counters import PartitionCounter

DEEDS = ["put", "put", "put", "delete", "run", "step", "wait", "away", "back", "wiped", "promote", "move", "trim"]
deeds = st.lists(st.sampled_from(DEEDS), min_size=5, max_size=60)


class Story:
    """Three copies, of which a majority is always here and in sync."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.copies = Copies("n1", "n2", "n3", settings=Settings(supply_batch_bytes=60))
        self.copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"), promote=True)
        self.copies.run()
        self.whole = True

    @property
    def primary(self) -> str:
        """Who hands out counters."""
        return self.copies.placements[0].owners[0]

    def trouble(self, _sender: str, _to: str, _said: Said) -> int:
        """A link on which one message in five is lost, doubled or late."""
        return self.draw.choice([1] * 12 + [0, 2, -1])

    def do(self, deed: str) -> None:
        """One deed, if it can be done now."""
        copies, draw = self.copies, self.draw
        copies.trouble = self.trouble
        match deed:
            case "put" | "delete" if copies[self.primary].local[0].active:
                key = f"k{draw.randrange(12)}"
                copies[self.primary].put(0, **{key: None if deed == "delete" else f"v{draw.random():.3f}"})
            case "run":
                copies.run()
            case "step":
                copies.step()
            case "wait":
                copies.wait()
            case "away" if self.whole:
                gone = draw.choice([n for n in copies.copies if n != self.primary])
                copies.leaves(gone)
                left = [n for n in copies.placements[0].owners if n != gone]
                copies.map(left, left)
                self.whole = False
            case "back" | "wiped" if copies.away:
                (gone,) = copies.away
                copies.returns(gone, wiped=deed == "wiped")
                owners = copies.placements[0].owners
                copies.map((*owners, gone), owners)
            case "move" if not self.whole and not copies.away and draw.random() < 0.5:
                self.heal()
            case "promote":
                p = copies.placements[0]
                first = draw.choice([n for n in p.in_sync if n not in copies.away])
                copies.map((first, *(n for n in p.owners if n != first)), copies.to_count(0), promote=True)
            case "trim" if copies[self.primary].local[0].active:
                copies[self.primary].trim(unannounced=draw.random() < 0.5)
            case _:
                pass

    def heal(self) -> None:
        """No trouble any more: all copies come to be in sync."""
        copies = self.copies
        copies.trouble = None
        copies.wait(3)
        if copies.away:
            self.do("back")
        copies.whole()
        copies.judge()
        assert not any(copy.supply.vouching.differed for copy in copies.copies.values()), "some way brought the wrong rows"
        self.whole = True


@settings(max_examples=60, deadline=None)
@given(deeds=deeds, seed=st.integers(0, 2**32))
def test_in_the_end_all_copies_are_equal_whatever_happened(deeds: list[str], seed: int) -> None:
    story = Story(Random(seed))
    for deed in deeds:
        story.do(deed)
    story.heal()


@settings(max_examples=60, deadline=None)
@given(deeds=deeds, seed=st.integers(0, 2**32), extra=st.integers(0, 4))
@example(deeds=["away", "back", "wait", "put", "promote"], seed=48, extra=0)  # a demand, while its primary is promoted
def test_exactly_what_a_copy_lacks_is_supplied(deeds: list[str], seed: int, extra: int) -> None:
    """A copy that comes back to a quiet cluster logs each counter that it lacks once, and none that it has."""
    story = Story(Random(seed))
    for deed in deeds:
        story.do(deed)
    story.heal()
    copies = story.copies
    back = next(n for n in copies.copies if n != story.primary)
    owners = [n for n in copies.placements[0].owners if n != back]
    copies.leaves(back)
    copies.map(owners, owners)
    copies.wait(2)
    for at in range(extra):
        copies[story.primary].put(0, **{f"k{at % 12}": "x", "more": None})
    copies.wait(2)
    copies.returns(back)
    copy, name = copies[back], (NAMESPACE, 0)
    has = PartitionCounter.from_bytes(copy.replica.fragment(name).counter.to_bytes())
    lacks = has.missing(copies[story.primary].replica.fragment(name).counter.highest_applied)
    begins = len(copy.records)
    copies.map((*owners, back), owners)
    story.heal()
    assert copy.local[0].role is Role.BACKUP
    new = copy.records[begins:]
    if copy.demander.progress.kinds.get(name) in OF_ROWS:
        return
    assert not any(isinstance(record, r.FragmentClear) for record in new)
    writes = [w for record in new if isinstance(record, r.History) for w in record.writes]
    supplied = sorted(at for w in writes for at in range(w.start, w.start + w.delta))
    assert supplied == [at for start, delta in lacks for at in range(start, start + delta)]
