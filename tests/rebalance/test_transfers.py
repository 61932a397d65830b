"""One copy becomes whole: every way, every message in trouble, and a promotion after each of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace as replaced

from engine.state.store import ROW_OVERHEAD_BYTES, Page
from rebalance import demanding
from rebalance.choice import Kind
from rebalance.comparing import AT_ONCE, contents_now, sum_up
from rebalance.contents import HASHED_MAX, HASHED_OF_WORK
from rebalance.demanding import BEYOND_OF_WORK, HAVE_WORK, parts_of, say_part
from rebalance.messages import WRITTEN_BYTES_A_WORK, AllSettled, Contents, CopyMessage, Credit, Demand, Settled, Supply
from rebalance.ports import BATCH_BYTES_MAX, MS, WORK_MAX
from rebalance.results import COMMITTED
from rebalance.settling import STUCK_AFTER
from rebalance.stability import LOOK_MS
from rebalance.supplier import MANY_UPDATES, OVER_AFTER_MS
from rebalance.supplying import BATCH_WORK
from rebalance.table import Placement
from tests.rebalance.copies import Batch, Copies, Said, Settings, Taken, name_of
from tests.sim.planted.fault import around
from tests.support.probes import heard
from wal import records as r
from wal.ids import SESSION_BYTES, Fragment, NodeId, Version, tx_of

READER = b"reader----000001"


def three(*, partitions: int = 1) -> Copies:
    """Three copies in sync, with rows enough for history to be worth it."""
    copies = Copies("n1", "n2", "n3", partitions=partitions)
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    for number in range(partitions):
        for at in range(12):
            copies["n1"].put(number, **{f"k{at}": f"v{at}"})
    copies.run()
    return copies


def nothing(copies: Copies) -> None:
    """A copy is asked to prove itself, and lacks nothing."""


def historical(copies: Copies) -> None:
    """It was away for a few writes."""
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    for number in range(len(copies.placements)):
        copies["n1"].put(number, k1="new", k2=None)
        copies["n1"].put(number, k3="newer")
    copies.run()
    copies.returns("n3")


def full(copies: Copies) -> None:
    """It comes with an empty disk."""
    historical(copies)
    copies.leaves("n3")
    copies.returns("n3", wiped=True)


def differential(copies: Copies) -> None:
    """It was away for a few writes, the history of which is gone."""
    historical(copies)
    copies["n1"].trim()


def parted(copies: Copies, **more: str) -> None:
    """It was primary, and logged what nobody else has: its history was not continued."""
    copies.map(("n3", "n1", "n2"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    copies.trouble = lambda sender, *_: 0 if sender == "n3" else 1
    for number in range(len(copies.placements)):
        copies["n3"].put(number, k4="nobody", k5="heard", **more)
    copies.run()
    copies.trouble = None
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"), promote=True)
    copies.run()
    for number in range(len(copies.placements)):
        copies["n1"].put(number, k5="said")
    copies.run()
    copies.returns("n3")


WAYS: dict[str, Callable[[Copies], None]] = {f.__name__: f for f in (nothing, historical, differential, full, parted)}


def move(copies: Copies) -> None:
    """n3 is MOVING by the next map."""
    copies.map(("n1", "n2", "n3"), ("n1", "n2"))


def end(copies: Copies, *, differs: int = 0) -> None:
    """Everything comes to rest, and then n3 becomes primary: it can, because it has all. So often contents differed."""
    copies.whole()
    copies.judge()
    assert sum(sum(copy.supply.vouching.differed.values()) for copy in copies.copies.values()) == differs
    copies.map(("n3", "n1", "n2"), ("n1", "n2", "n3"), promote=True)
    copies.wait(3)
    for number in range(len(copies.placements)):
        copies["n3"].put(number, k0="after", more="rows")
    copies.wait(2)
    copies.judge()


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_becomes_whole_and_may_be_promoted(way: str) -> None:
    copies = three()
    WAYS[way](copies)
    move(copies)
    end(copies)
    kind = Kind.HISTORICAL if way == "parted" else Kind(way)
    assert copies["n3"].demander.progress.kinds[name_of(0)] == kind


@pytest.mark.parametrize("way", ["historical", "parted"])
def test_exactly_the_missing_updates_are_supplied(way: str) -> None:
    copies = three()
    WAYS[way](copies)
    mine = copies["n3"].replica.fragment(name_of(0)).counter.lwm
    theirs = copies["n1"].replica.fragment(name_of(0)).counter.lwm
    move(copies)
    end(copies)
    supplied = copies["n3"].demander.progress.updates["historical"]
    undone = 2 if way == "parted" else 0  # the counters of what nobody heard, issued again for other keys
    assert supplied == theirs - (mine - undone)
    assert copies["n1"].supply.supplied == {"n3": supplied}


TROUBLES = {"lost": 0, "doubled": 2, "swapped": -1}
KINDS = ["Demand", "Supply", "Credit", "Settled", "Settle", "Batch", "Taken"]


def once(kind: str, times: int, nth: int) -> Callable[[str, str, Said], int]:
    """The nth message of a kind, of those to or from n3, gets into trouble."""
    seen = [0]

    def trouble(sender: str, to: str, said: Said) -> int:
        if type(said).__name__ == kind and "n3" in (sender, to):
            seen[0] += 1
            return times if seen[0] == nth else 1
        return 1

    return trouble


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", TROUBLES)
@pytest.mark.parametrize("way", WAYS)
def test_a_message_in_trouble_costs_time_and_nothing_else(way: str, what: str, kind: str, nth: int) -> None:
    copies = three()
    WAYS[way](copies)
    copies.trouble = once(kind, TROUBLES[what], nth)
    move(copies)
    copies["n1"].put(0, k7="live")
    copies.run()
    copies["n1"].put(0, k8="later", k1=None)
    copies.wait(3)
    end(copies)


STEPS = {"nothing": 12, "historical": 15, "differential": 24, "full": 18, "parted": 28}
"""From a map in which n3 is MOVING, and a write, until nothing is left to be said or done."""


@pytest.mark.parametrize("way", WAYS)
def test_a_transfer_takes_as_many_steps_as_it_is_broken_off_after(way: str) -> None:
    copies = three()
    WAYS[way](copies)
    move(copies)
    copies["n1"].put(0, k7="live")
    taken = 0
    while copies.step():
        taken += 1
    assert taken == STEPS[way]


@pytest.mark.parametrize("again", ["restarts", "is wiped", "sees its supplier restart"])
@pytest.mark.parametrize(("way", "after"), [(way, at) for way in WAYS for at in range(1, STEPS[way] + 1)])
def test_a_transfer_that_breaks_off_at_any_message_is_followed_by_a_demand_for_the_rest(
    way: str, after: int, again: str
) -> None:
    copies = three()
    WAYS[way](copies)
    move(copies)
    copies["n1"].put(0, k7="live")
    for _ in range(after):
        copies.step()
    broken = "n1" if "supplier" in again else "n3"
    copies.leaves(broken)
    if broken == "n3":
        copies.map(("n1", "n2"), ("n1", "n2"))
        copies.returns("n3", wiped=again == "is wiped")
    else:
        copies.map(("n2", "n3"), ("n2",), promote=True)
        copies.wait(2)
        copies.returns("n1")
        copies.map(("n2", "n1"), ("n2",))
        copies.whole()
        copies.map(("n1", "n2"), ("n1", "n2"), promote=True)
    copies.run()
    move(copies)
    copies["n1"].put(0, k8="more")
    end(copies)


def test_a_small_credit_is_used_up_and_given_again() -> None:
    copies = Copies("n1", "n2", "n3", settings=Settings(supply_credit=1, supply_batch_bytes=1))
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    for at in range(30):
        copies["n1"].put(0, **{f"k{at:02}": "v"})
    copies.run()
    full(copies)
    move(copies)
    under_way = 0
    while copies.step():
        under_way = max(under_way, sum(type(said).__name__ == "Supply" for *_, said in copies.wire))
    assert under_way == 1, "never more than there is credit for"
    assert copies.said.count("Supply") > 30
    end(copies)


@pytest.mark.parametrize("way", ["full", "historical", "differential"])
def test_a_transfer_waits_for_a_checkpoint_and_not_for_memory(way: str) -> None:
    """What came is taken when a checkpoint has begun, however late; nobody is asked for it again meanwhile."""
    copies = three(partitions=4)
    WAYS[way](copies)
    copy = copies["n3"]
    copy.checkpoint()
    copy.memory = 200
    move(copies)
    copies.run()
    before = len(copies.said)
    copies.wait(2 * STUCK_AFTER)
    assert "Demand" not in copies.said[before:]
    checkpoints = 0
    while copy.demander.waits:
        assert copy.replica.store.active_bytes < copy.memory + 12 * ROW_OVERHEAD_BYTES, "and a batch, of all partitions"
        copy.checkpoint()
        copies.run()
        checkpoints += 1
    assert checkpoints >= 2
    copy.memory = 1 << 40
    end(copies)


def test_a_supplier_that_has_few_turns_is_given_twice_the_time_each_time() -> None:
    """Else a session that takes longer than that begins anew, with all that was done for it, and again, for ever."""
    copies = three()
    historical(copies)
    copies.trouble = lambda _sender, _to, said: 0 if isinstance(said, Supply) else 1
    move(copies)
    copies.run()

    def timed_out(waits: int) -> int:
        with heard() as reached:
            copies.wait(waits)
        return reached.count("demand.session_timed_out")

    assert [timed_out(STUCK_AFTER + 1), timed_out(2 * STUCK_AFTER + 1), timed_out(4 * STUCK_AFTER + 1)] == [1, 1, 1]
    assert timed_out(64 * STUCK_AFTER) in (4, 5), "and no longer than sixteen times as long"
    copies.trouble = None
    copies.wait(2)
    end(copies)
    assert copies["n3"].demander._patience._lost == {}, "it was enough"


def test_what_lies_beyond_a_gap_is_work_to_say_and_so_a_demand_is_cut() -> None:
    """Clients write on while a copy waits for what it lacks: 226,000 updates were said in a turn, as nothing."""
    copies = three(partitions=3)
    historical(copies)
    copies.trouble = lambda _sender, _to, said: 0 if isinstance(said, Supply) else 1
    move(copies)
    copies.run()
    many = BEYOND_OF_WORK * demanding.PART_HAVES * HAVE_WORK
    copy = copies["n3"]
    for number in range(3):
        fragment = copy.replica.fragment(name_of(number))
        epoch, lwm = copy.local[number].epoch, fragment.counter.lwm
        copy.log(r.Update([r.Write(*fragment.name, epoch, lwm + 1 + at, [b"k"], [b"v"], 0) for at in range(many)]))
    parts = parts_of(copy, copy.demander.surveys, range(3))
    assert parts == [[0], [1], [2]]
    session = demanding.Session(99, "n1", parts, 0)
    for part in range(3):
        copy.work = 0
        say_part(copy, session, part, copy.demander.surveys, demanding.NoHistory())
        assert WORK_MAX // 2 <= copy.work <= WORK_MAX


def test_to_take_part_in_the_epochs_of_empty_partitions_is_work() -> None:
    """Each is a record, and one batch begins hundreds: of 16,384 nearly all came in one turn, of 63 ms."""
    assert Supply(Version(1, 0), 1, 1, epochs=[(number, 1) for number in range(500)]).work == 500


def test_history_of_large_values_is_as_much_work_as_they_are_large() -> None:
    """A turn of the supplier makes no more of it than it has room for, and one of the copy takes no more."""
    small, large = (r.Write("n", 0, 1, at, [b"k"], [bytes(size)], 0) for at, size in enumerate((8, 1 << 20)))
    assert Supply(Version(1, 0), 1, 1, writes=[small]).work == 1
    assert Supply(Version(1, 0), 1, 1, writes=[small, large, small]).work == 3 + (1 << 20) // WRITTEN_BYTES_A_WORK
    copies, worked = three(), list[int]()
    historical(copies)
    copies["n1"].put(0, k4="v" * (1 << 20))
    copies.run()
    supplier, send = copies["n1"], copies["n1"].send

    def sent(to: NodeId, message: CopyMessage) -> None:
        worked.extend([supplier.work] if isinstance(message, Supply) and message.writes else [])
        send(to, message)

    supplier.send = sent  # type: ignore[method-assign]
    move(copies)
    end(copies)
    assert max(worked) >= (1 << 20) // WRITTEN_BYTES_A_WORK


def test_history_that_turns_out_to_be_gone_is_missed_and_rows_are_asked_for() -> None:
    copies = three()
    historical(copies)
    copies["n1"].trim(unannounced=True)
    move(copies)
    end(copies)
    assert any("could not supply the history" in note for note in copies["n3"].notes)
    assert copies["n3"].demander.progress.kinds[name_of(0)] == Kind.DIFFERENTIAL


def test_of_what_was_never_here_rows_are_asked_for_too_where_its_history_is_gone() -> None:
    """The copy has no state of the fragment by which it could say that history was tried in vain."""
    copies = Copies("n1", "n2", "n3", settings=Settings(prefer_history=True))
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    for at in range(12):
        copies["n1"].put(0, **{f"k{at}": f"v{at}"})
    copies.run()
    copies["n1"].trim(unannounced=True)
    copies.returns("n3")
    assert not copies["n3"].replica.partition(0).fragments
    move(copies)
    end(copies)
    missed = [note for note in copies["n3"].notes if "could not supply the history" in note]
    assert (len(missed), copies["n3"].demander.progress.kinds[name_of(0)]) == (1, Kind.FULL)


def test_history_that_was_missed_and_has_come_since_is_not_asked_for_again() -> None:
    copies = three()
    historical(copies)
    written = [write for record in copies["n1"].records if isinstance(record, r.Update) for write in record.writes]
    copies["n1"].trim(unannounced=True)

    def on_its_way(_sender: str, to: str, said: Said) -> int:
        """What the log has not got any more was under way to the copy, and comes before it asks for all."""
        if to == "n3" and isinstance(said, Supply) and said.missed:
            covers = copies["n3"].replica.fragment(name_of(0)).counter.covers
            copies["n3"].log(r.History([write for write in written if not covers(write.start, write.delta)]))
        return 1

    copies.trouble = on_its_way
    move(copies)
    copies.run()
    end(copies)
    assert copies["n3"].demander.progress.kinds[name_of(0)] == Kind.HISTORICAL
    assert copies.said.count("Demand") < 10, "who is told that nothing is missing has all"


def test_a_row_that_differs_is_found_before_it_is_vouched_for() -> None:
    copies = three()
    historical(copies)
    copies["n3"].spoil(0, "k9", "rot")
    move(copies)
    end(copies, differs=1)
    assert copies["n1"].supply.vouching.differed == {(name_of(0), "n3"): 1}
    assert copies["n3"].demander.settling.answers.differed == {name_of(0): 1}


def test_what_differs_at_its_primary_is_asked_for_less_and_less_often() -> None:
    copies = three()
    historical(copies)

    def rotting(_sender: str, to: str, said: Said) -> int:
        """The row rots again each time that all was supplied."""
        if to == "n3" and isinstance(said, Supply) and said.last:
            copies["n3"].spoil(0, "k9", "rot")
        return 1

    copies.trouble = rotting
    move(copies)
    copies.wait(40)
    often = copies["n3"].demander.settling.answers.differed[name_of(0)]
    assert 3 <= often < 10, "it is put off"
    end(copies, differs=often)


def test_a_history_that_differs_is_taken_in_full() -> None:
    copies = three()
    copies["n3"].replica.fragment(name_of(0)).digest ^= 1
    historical_copy = copies["n3"].replica.fragment(name_of(0))
    assert historical_copy.digest != copies["n1"].replica.fragment(name_of(0)).digest
    move(copies)
    end(copies)
    assert copies["n3"].demander.progress.rows["full"] > 0


@pytest.mark.parametrize("ended", [False, True], ids=["in doubt", "ended meanwhile"])
@pytest.mark.parametrize("way", WAYS)
def test_a_reader_in_doubt_is_in_doubt_on_every_copy_or_on_none(way: str, ended: bool) -> None:
    copies = three()
    copies["n1"].prepare_reader(0, READER)
    copies.run()
    WAYS[way](copies)
    if ended:
        copies["n1"].end_reader(0, READER)
        copies.run()
    move(copies)
    copies.whole()
    copies.judge()
    held = [READER in copies[node].replica.partition(0).prepared for node in copies.copies]
    assert held == [not ended] * 3
    end(copies)
    held = [READER in copies[node].replica.partition(0).prepared for node in copies.copies]
    assert held == [not ended] * 3, "and after a promotion"


@pytest.mark.parametrize("steps", [3, 6, 9])
@pytest.mark.parametrize("begins", [True, False], ids=["begins", "ends"])
def test_a_copy_that_misses_a_reader_and_nothing_else_is_told_of_it_before_it_is_vouched_for(
    begins: bool, steps: int
) -> None:
    """It comes to stand at all counters that there are, and contains the same. What it was told of the reader was lost,
    when nobody waited for its answer."""
    copies = three()
    if not begins:
        copies["n1"].prepare_reader(0, READER)
        copies.run()
    historical(copies)
    move(copies)
    for _ in range(steps):
        copies.step()
    known = len(copies.wire)
    if begins:
        copies["n1"].prepare_reader(0, READER)
    else:
        copies["n1"].end_reader(0, READER)
    told = [at for at, (_, to, said) in enumerate(copies.wire) if at >= known and to == "n3" and isinstance(said, Batch)]
    for at in reversed(told):
        del copies.wire[at]
    copies.whole()
    copies.judge()
    held = [READER in copies[node].replica.partition(0).prepared for node in copies.copies]
    assert held == [begins] * 3
    end(copies)
    assert (READER in copies["n3"].replica.partition(0).prepared) == begins


@pytest.mark.parametrize("begins", [True, False], ids=["begins", "ends"])
def test_a_reader_that_begins_or_ends_during_the_transfer_is_taken_over(begins: bool) -> None:
    copies = three()
    if not begins:
        copies["n1"].prepare_reader(0, READER)
        copies.run()
    historical(copies)
    move(copies)
    for _ in range(4):
        copies.step()
    if begins:
        copies["n1"].prepare_reader(0, READER)
    else:
        copies["n1"].end_reader(0, READER)
    end(copies)
    assert (READER in copies["n3"].replica.partition(0).prepared) == begins


def test_small_partitions_go_in_full_together() -> None:
    """A session for a few rows of each would do nothing but begin and end."""
    copies = three(partitions=4)
    full(copies)
    copies.settings.supply_batch_bytes = 1 << 20
    move(copies)
    copies.run()
    assert copies.said.count("Demand") == 1
    assert copies.said.count("Supply") == 3, "what is to come, all rows, and the end"
    end(copies)
    assert set(copies["n3"].demander.progress.kinds) == {name_of(n) for n in range(4)}


@pytest.mark.parametrize("way", ["full", "historical"])
def test_no_batch_is_more_than_a_turn_makes_however_large_batches_may_be(way: str) -> None:
    """With the largest setting one had 64 MiB: a turn to make it, and one to take it, were as long as that takes."""
    copies = Copies("n1", "n2", "n3", settings=Settings(supply_batch_bytes=64 << 20))
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    value = "v" * (1 << 20)
    if way == "historical":
        historical(copies)
    for at in range(12):
        copies["n1"].put(0, **{f"large{at}": value})
    copies.run()
    if way == "full":
        full(copies)
    sizes = list[int]()

    def trouble(_sender: str, _to: str, said: Said) -> int:
        sizes.extend([said.size] if isinstance(said, Supply) else [])
        return 1

    copies.trouble = trouble
    move(copies)
    copies.run()
    assert sum(sizes) > 12 << 20
    assert max(sizes) < BATCH_BYTES_MAX + (2 << 20)
    end(copies)


def test_a_supplier_looks_at_hardly_more_rows_than_fit_in_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch holds few large rows; whoever looked at a thousand for each would read everything again and again."""
    rows = 120
    copies = Copies("n1", "n2", "n3", settings=Settings(supply_batch_bytes=16 << 10))
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    for at in range(rows):
        copies["n1"].put(0, **{f"k{at:03}": "v" * 4_000})
    copies.run()
    full(copies)
    looked = list[int]()
    store = copies["n1"].replica.store
    page = store.page

    def look(name: Fragment, start: bytes, limit: int, *, down: bool = False) -> Page:
        found = page(name, start, limit, down=down)
        looked.append(len(found.rows))
        return found

    monkeypatch.setattr(store, "page", look)
    move(copies)
    copies.run()
    read = sum(looked)
    end(copies)
    assert rows <= read < 2 * rows, f"{read} rows were read to send {rows}"


def test_many_answers_go_in_pieces_and_what_is_forgotten_meanwhile_stays_forgotten() -> None:
    copies = three()
    full(copies)
    copies.settings.supply_batch_bytes = 1 << 20
    session, count = b"s" * SESSION_BYTES, 4 * BATCH_WORK
    for node in ("n1", "n2"):
        results = copies[node].replica.partition(0).results
        for at in range(count):
            results.note(tx_of(session, at), COMMITTED)
            results.keep(tx_of(session, at), b"%d" % at)
    move(copies)
    mine, sizes, deaf = copies["n1"].replica.partition(0).results, list[int](), False

    def noted(_sender: NodeId, _to: NodeId, said: Said) -> int:
        if isinstance(said, Supply):
            sizes.append(said.work)
        return 0 if deaf and isinstance(said, Credit) else 1

    copies.trouble = noted
    while not (theirs := copies["n3"].replica.partition(0).results):
        assert copies.step()
    assert len(theirs) < count // 2, "the rest is still to come"
    deaf, local = True, copies["n1"].local[0]
    copies["n1"].decide(r.Forget(0, local.epoch, [(session, count - 9)]), local)
    copies.run()
    assert (len(mine), len(theirs)) == (8, 0)
    deaf = False
    end(copies)
    theirs = copies["n3"].replica.partition(0).results
    assert (theirs.items(), theirs.answers(), theirs.floor) == (mine.items(), mine.answers(), mine.floor)
    assert max(sizes) == BATCH_WORK


def test_large_partitions_go_in_full_a_few_at_a_time_and_all_of_them_go() -> None:
    copies = three(partitions=3)
    full(copies)
    for number in range(3):
        copies["n1"].put(number, **{f"many{at}": "rows" for at in range(MANY_UPDATES)})
    copies.settings.supply_batch_bytes = 1 << 20
    copies.run()
    copies["n1"].trim()
    move(copies)
    later, loading = 0, 0
    while copies.step():
        later += sum(bool(getattr(said, "later", ())) for *_, said in copies.wire)
        loading = max(loading, sum(copies["n3"].replica.fragment(name_of(n)).loading for n in range(3)))
    assert later, "some were left for another session"
    assert loading == 1
    end(copies)
    assert set(copies["n3"].demander.progress.kinds) == {name_of(n) for n in range(3)}


def test_a_primary_that_is_not_there_yet_is_asked_now_and_then() -> None:
    """Its promotion waits for a survivor that it cannot reach: whoever demands of it meanwhile does not ask without end."""
    copies = three()
    historical(copies)
    move(copies)
    copies.trouble = lambda sender, to, _: 0 if {sender, to} == {"n1", "n2"} else 1
    copies.map(("n2", "n1", "n3"), ("n1", "n2"), promote=True)
    copies.run()
    copies.said.clear()
    copies.wait(10)
    assert 1 <= copies.said.count("Demand") <= 10
    end(copies)


def test_a_live_write_that_comes_before_the_transfer_is_not_lost_in_it() -> None:
    copies = three()
    full(copies)
    move(copies)
    for _ in range(6):
        copies["n1"].put(0, k3="live", k11=None)
        copies.step()
    end(copies)


def test_a_key_that_was_deleted_long_ago_does_not_come_back_with_a_transfer() -> None:
    copies = three()
    historical(copies)
    move(copies)
    copies["n1"].put(0, k9=None)
    end(copies)
    assert all(b"k9" not in copies[node].rows(0) for node in copies.copies)


def test_a_copy_is_not_vouched_for_while_it_lacks_what_was_promised() -> None:
    copies = three()
    historical(copies)
    copies.trouble = lambda _sender, to, said: 0 if to == "n3" and type(said).__name__ in {"Batch", "Supply"} else 1
    move(copies)
    copies["n1"].put(0, k1="live")
    copies.wait(20)
    assert copies["n1"].supply.vouching.vouched == {}
    end(copies)


def test_undoing_names_the_keys_that_it_touched() -> None:
    copies = three()
    parted(copies)
    move(copies)
    end(copies)
    undone = [record for record in copies["n3"].records if isinstance(record, r.EpochStart | r.Undo)]
    assert undone, "its own history was left"
    assert copies["n3"].rows(0)[b"k4"][2] == b"v4"


@pytest.mark.parametrize("restarts", [False, True], ids=["goes on", "restarts"])
def test_rows_that_a_copy_undid_are_suspects_until_they_were_fetched(restarts: bool) -> None:
    copies = three()
    parted(copies)
    move(copies)
    name, suspects = name_of(0), dict[bytes, int]()
    while not suspects and copies.step():
        suspects = dict(copies["n3"].replica.fragment(name).suspects)
    assert suspects == {b"k4": 0, b"k5": 0}, "it has undone what nobody heard of"
    if restarts:
        copies.leaves("n3")
        copies.map(("n1", "n2"), ("n1", "n2"))
        copies.returns("n3")
        assert copies["n3"].replica.fragment(name).suspects == suspects, "its log says so"
        move(copies)
    end(copies)
    assert copies["n3"].replica.fragment(name).suspects == {}
    assert copies["n3"].demander.progress.rows.get("fetched", 0) >= 1
    assert [copies["n3"].rows(0)[key][2] for key in suspects] == [b"v4", b"said"]


def test_rows_that_a_copy_undid_are_fetched_a_few_at_a_time_where_they_are_large() -> None:
    copies, fetched = three(), list[list[bytes]]()

    def said(_sender: NodeId, to: NodeId, what: Said) -> int:
        if to == "n3" and isinstance(what, Supply):
            fetched.extend(list(rows.keys) for rows in what.rows)
        return 1

    parted(copies, k6="nobody")
    copies["n1"].settings.supply_batch_bytes = 10
    copies.trouble = said
    move(copies)
    copies.wait(20)
    assert sorted(fetched) == [[b"k4"], [b"k6"]], "each is more than a batch may have"


def test_a_key_whose_tombstone_is_gone_is_gone_from_a_copy_that_still_had_it() -> None:
    copies = three()
    historical(copies)
    copies["n1"].put(0, k5="settles what was before")
    copies.run()
    copies["n1"].checkpoint()
    copies["n1"].trim()
    assert b"k2" in copies["n3"].rows(0)
    move(copies)
    copies.whole()
    copies.judge()
    assert b"k2" not in copies["n3"].rows(0)
    assert copies["n1"].supply.vouching.differed == {}, "and not because it was found to differ"
    end(copies)
    assert b"k2" not in copies["n1"].rows(0)


def test_a_write_under_way_waits_for_a_copy_that_is_about_to_be_vouched_for() -> None:
    copies = three()
    historical(copies)
    move(copies)
    copies.trouble = lambda sender, to, said: (
        0
        if isinstance(said, Batch) and isinstance(said.records[0], r.Update) and "n3" in (sender, to)
        else 0
        if isinstance(said, Taken) and sender == "n2"
        else 1
    )
    copies["n1"].put(0, k1="under way")
    counter = copies["n1"].replica.fragment(name_of(0)).counter
    copies.run()
    assert "n3" in copies["n1"].supply.vouching.pending[0], "it has settled"
    copies.trouble = lambda _sender, to, said: 0 if isinstance(said, Batch) and to == "n3" else 1
    copies.wait(4)
    assert counter.lwm < counter.hwm, "nobody was told that it counts while one that may be promoted lacks it"
    end(copies)


def test_a_copy_that_is_settled_and_behind_is_not_waited_for_before_it_has_caught_up() -> None:
    copies = three()
    historical(copies)
    copies["n1"].shipping.behind = ["n3"]
    move(copies)
    copies.run()
    copies.wait(40)
    vouching = copies["n1"].supply.vouching
    assert not vouching.pending, "it has settled, and what is written would wait for it"
    copies["n1"].shipping.behind = []
    copies.wait(10)
    assert (0, "n3") in vouching.vouched, "it says so again"
    end(copies)


def test_a_supplier_does_not_come_to_have_what_only_its_demander_had() -> None:
    copies = three()
    stray = r.Write("stray", 0, 1, 0, [b"k"], [b"v"], 0)
    copies["n3"].log(r.Update([stray]))
    move(copies)
    copies.whole()
    copies.judge()
    assert [name for name in copies["n1"].replica.fragments if name[0] == "stray"] == []
    assert copies["n3"].replica.fragment(("stray", 0)).counter.highest_applied == 0, "it was undone"


def test_a_copy_that_its_primary_has_vouched_for_says_so_seldom() -> None:
    """It waits for the next map, and so may a thousand others."""
    copies = three()
    historical(copies)
    copies.map(("n1", "n2", "n3"), ("n1", "n2"))
    copies.wait(3)
    assert (0, "n3") in copies["n1"].supply.vouching.vouched
    copies.said.clear()
    copies.wait(64)
    assert 8 <= copies.said.count("Settled") <= 64 // 8 + 4


def test_copies_that_lack_nothing_are_vouched_for_after_one_message_about_all_of_them() -> None:
    """They say what they contain, and their primary, who stands at the same counters, has nothing to ask."""
    copies = three(partitions=20)
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    copies.returns("n3")
    copies.run()
    copies.said.clear()
    move(copies)
    copies.run()
    assert len(copies["n1"].supply.vouching.vouched) == 20
    assert copies.said.count("AllSettled") == 1
    assert not {"Settled", "Settle", "Batch"} & set(copies.said)
    end(copies)


@pytest.mark.parametrize("before", [False, True], ids=["always", "again"])
def test_a_primary_of_an_older_version_is_told_of_each_copy_by_itself(before: bool) -> None:
    """Also where one of a newer version ran on its disk before."""
    copies = three(partitions=3)
    historical(copies)
    settling = copies["n3"].demander.settling
    settling.may_say_together("n1", before)
    around(settling, "may_say_together", lambda right, primary, _may: right(primary, False))
    move(copies)
    copies.run()
    assert copies.said.count("Settled") == 3
    assert "AllSettled" not in copies.said
    end(copies)


def test_of_many_copies_that_have_settled_a_turn_takes_what_it_has_room_for() -> None:
    copies = three(partitions=5)
    historical(copies)
    kept: list[AllSettled] = []

    def keep(_sender: str, _to: str, said: Said) -> int:
        if isinstance(said, AllSettled):
            kept.append(said)
        return int(not kept)

    copies.trouble = keep
    move(copies)
    copies.run()
    primary, copies.trouble = copies["n1"], None
    vouched = primary.supply.vouching.vouched
    primary.work = WORK_MAX - 3
    primary.supply.on("n3", kept[0])
    assert 0 < len(vouched) < 5
    while primary.go_on():
        pass
    assert len(vouched) == 5


def test_of_many_copies_that_have_settled_a_turn_says_what_it_has_room_for() -> None:
    copies = three(partitions=9)
    historical(copies)
    move(copies)
    n3, said = copies["n3"], list[Settled]()

    def unheard(_sender: str, _to: str, said_: Said) -> int:
        said.extend(said_.copies if isinstance(said_, AllSettled) else [said_] if isinstance(said_, Settled) else [])
        return 0 if isinstance(said_, Settled | AllSettled) else 1

    copies.trouble = unheard
    copies.run()
    assert len(said) == 9
    assert all(word.contents is not None for word in said)
    said.clear()
    copies.now += copies.settings.retransmit_ms * MS
    n3.work = WORK_MAX - 5
    n3.demander.settling.go_on()
    copies.run()
    assert 0 < len(said) < 9
    said.clear()
    copies.wait(12)
    assert all(word.contents is None for word in said[9:]), "what is said again and again is no work"


@pytest.mark.parametrize("another", [False, True], ids=["same-map", "another-map"])
def test_what_was_supplied_is_said_again_once_each_time_and_in_the_map_that_is_here(another: bool) -> None:
    copies = three()
    historical(copies)
    said: list[Supply] = []

    def unheard(_sender: str, _to: str, said_: Said) -> int:
        said.extend([said_] if isinstance(said_, Supply) else [])
        return 0 if isinstance(said_, Supply) or (isinstance(said_, Demand) and said) else 1

    copies.trouble = unheard
    move(copies)
    copies.run()
    n1 = copies["n1"]
    assert [batch.batch for batch in said] == [1, 2]
    del said[0]
    n1.work = WORK_MAX
    if another:
        copies.commit()
    else:
        for _ in range(3):
            n1.supply.on("n3", Credit(n1.fence, copies["n3"].demander._number, 0, 2, again=True))
    copies.run()
    assert [batch.batch for batch in said[1:]] == [1, 2]
    assert {batch.version for batch in said[1:]} == {n1.fence}
    copies.trouble = None
    end(copies)


def test_a_node_on_another_disk_counts_its_sessions_from_the_beginning() -> None:
    """Its numbers are below those of the life before, of which all was taken."""
    copies = three()
    historical(copies)
    move(copies)
    copies.whole()
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    copies.returns("n3", wiped=True)
    move(copies)
    end(copies)


@pytest.mark.parametrize("led", ["n1", "n2"])
def test_a_demand_that_nobody_answers_is_said_again_part_by_part(monkeypatch: pytest.MonkeyPatch, led: str) -> None:
    """In each turn one, and none that is of a map before."""
    monkeypatch.setattr(demanding, "PART_HAVES", 1)
    copies = three(partitions=4)
    historical(copies)
    said: list[Demand] = []

    def unheard(_sender: str, _to: str, said_: Said) -> int:
        said.extend([said_] if isinstance(said_, Demand) else [])
        return 0 if isinstance(said_, Demand) else 1

    copies.trouble = unheard
    move(copies)
    copies.run()
    n3 = copies["n3"]
    assert [demand.part for demand in said] == [0, 1, 2, 3]
    first = said[0].session
    said.clear()
    copies.now += copies.settings.retransmit_ms * MS
    n3.tick()
    assert len(copies.wire) == 1
    if led == "n2":
        copies.wire.clear()
        copies.map(("n2", "n1", "n3"), ("n1", "n2"), promote=True)
    copies.run()
    assert [demand.part for demand in said] == [0, 1, 2, 3]
    assert all((demand.session > first) == (led == "n2") for demand in said)
    copies.trouble = None
    end(copies)


def test_words_about_copies_that_are_in_sync_are_work_too_and_each_is_looked_at_once() -> None:
    """One that came late, or says nothing: a frame holds very many."""
    n1 = three()["n1"]
    n1.supply.on("n3", AllSettled(n1.fence, [Settled(n1.fence, 0, [], [], 1)] * (3 * WORK_MAX)))
    turns = [n1.work]
    while n1.go_on() and len(turns) < 9:
        turns.append(n1.work)
    assert turns == [WORK_MAX] * 3


def test_what_a_copy_contains_is_summed_up_later_where_a_turn_has_no_room_left() -> None:
    copies, told = three(), list[list[Contents] | None]()
    copies["n1"].work = WORK_MAX
    with heard() as reached:
        sum_up(copies["n1"], 0, told.append)
    assert "contents.summed_up_later" in reached
    assert not told
    expected = contents_now(copies["n1"], 0)
    copies["n1"].put(0, k1="after it was asked")
    copies.run()
    assert told == [expected]


def test_what_is_written_while_a_copy_says_what_it_contains_is_compared_when_it_is_there() -> None:
    copies = three(partitions=4)
    historical(copies)

    def meanwhile(_sender: str, _to: str, said: Said) -> int:
        if isinstance(said, AllSettled) and not copies["n1"].supply.vouching.pending:
            copies["n1"].put(2, k7="meanwhile")
        return 1

    copies.trouble = meanwhile
    move(copies)
    copies.run()
    assert copies.said.count("Settle") == 1, "of this one"
    assert len(copies["n1"].supply.vouching.vouched) == 4
    end(copies)


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("times", [1, 2])
def test_a_demand_that_comes_late_when_all_was_supplied_begins_nothing(times: int, answered: bool) -> None:
    """Nobody would take what it brings, or answer: it would hold the log for as long as the copy's node lives."""
    copies = three(partitions=4)
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    for at in range(10):
        for number in range(4):
            copies["n1"].put(number, **{f"more{at}": "x" * 20})
    copies.run()
    copies.returns("n3")
    late: list[Demand] = []
    is_sent = False

    def trouble(sender: str, _to: str, said: Said) -> int:
        nonlocal is_sent
        late.extend([said] if isinstance(said, Demand) else [])
        is_sent = is_sent or (isinstance(said, Supply) and said.last)
        lost = is_sent and isinstance(said, Credit) and not answered
        return 0 if lost or isinstance(said, Settled | AllSettled) else 1

    copies.trouble = trouble
    move(copies)
    copies.run()
    n1 = copies["n1"]
    if not answered:
        copies.wait(OVER_AFTER_MS // copies.settings.retransmit_ms + 2)
    assert not n1.cursors
    for demand in late * times:
        n1.supply.on("n3", demand)
    copies.run()
    copies.wait(2)
    assert not n1.cursors
    copies.trouble = None
    end(copies)


@pytest.mark.parametrize("demanded", [True, False], ids=["demanded", "not-yet"])
def test_what_a_copy_said_before_it_began_anew_is_not_believed(demanded: bool) -> None:
    """Its word comes late, and is true no more: it was found to differ meanwhile, has been emptied, and is not filled."""
    copies = three()
    historical(copies)
    late: list[Settled] = []

    def trouble(_sender: str, to: str, said: Said) -> int:
        if isinstance(said, Settled) and not late:
            late.append(said)
            return 0
        if isinstance(said, Demand) and late and not demanded:
            return 0
        return 0 if isinstance(said, Supply) and to == "n3" and late else 1

    copies.trouble = trouble
    move(copies)
    copies.run()
    assert late[0].contents is not None
    copies["n3"].spoil(0, "k9", "rot")
    copies.wait(2)
    assert not copies["n3"].rows(0)
    for session in (late[0].session, 0):
        copies["n1"].supply.on("n3", replaced(late[0], session=session))
    copies.run()
    assert not copies["n1"].supply.vouching.vouched
    end(copies, differs=1)


def test_what_a_copy_said_before_it_was_let_go_is_not_believed_when_it_is_to_be_there_again() -> None:
    """It was emptied when it went. Maps that follow each other by steps have one fence, and its word may be as late."""
    copies = three()
    historical(copies)
    late: list[Settled] = []

    def trouble(sender: str, to: str, said: Said) -> int:
        late.extend([said] if isinstance(said, Settled) else [])
        return 0 if (sender, to) == ("n3", "n1") and isinstance(said, Settled | Demand) and late else 1

    copies.trouble = trouble
    move(copies)
    copies.run()
    copies.map(("n1", "n2"), ("n1", "n2"))
    move(copies)
    n1 = copies["n1"]
    n1.supply.on("n3", replaced(late[0], version=n1.fence))  # as if it had been steps
    assert not n1.supply.vouching.vouched
    copies.trouble = None
    end(copies)


@pytest.mark.parametrize("changed", [AT_ONCE - 12, AT_ONCE + 1])
def test_what_takes_long_to_sum_up_is_summed_up_when_it_is_asked_for(changed: int) -> None:
    copies = three()
    copies["n1"].put(0, **{f"x{at}": "y" for at in range(changed)})
    copies.run()
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    copies.returns("n3")
    move(copies)
    copies.said.clear()
    copies.run()
    assert (contents_now(copies["n3"], 0) is None) == (changed > AT_ONCE)
    asked = any(isinstance(record, r.Compare) for record in copies["n3"].records)
    assert asked == (changed > AT_ONCE)
    end(copies)


@pytest.mark.parametrize("what", ["loading", "in doubt", "a gap"])
def test_a_copy_that_cannot_be_compared_says_nothing_of_what_it_contains(what: str) -> None:
    n1 = three()["n1"]
    fragment = n1.replica.fragment(name_of(0))
    assert contents_now(n1, 0) is not None
    match what:
        case "loading":
            n1.log(r.FragmentClear(*fragment.name, "it is to be", kept=True))
        case "in doubt":
            fragment.doubt({b"k1": 0})
        case _:
            write = r.Write(*fragment.name, n1.local[0].epoch, fragment.counter.lwm + 1, [b"k1"], values=[b"beyond"])
            n1.log(r.History([write]))
    assert contents_now(n1, 0) is None


def test_of_very_many_rows_that_are_new_none_is_listed_to_see_that_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n1 = three()["n1"]
    n1.put(0, **{f"x{at}": "y" for at in range(AT_ONCE + 1)})
    n1.world.run()
    monkeypatch.setattr(n1.replica.store, "walk", None)
    assert contents_now(n1, 0) is None


def test_of_many_namespaces_with_large_rows_no_more_is_summed_up_at_once_than_a_turn_may_do() -> None:
    """Each of them alone would be little: of 256 a turn of either side hashed 2 GiB."""
    copies = three()
    n1 = copies["n1"]
    value = bytes(HASHED_MAX // 4)
    for number in range(12):
        n1.log(r.History([r.Write(f"large-{number}", 0, n1.local[0].epoch, 0, [b"k"], values=[value])]))
    n1.work = 0
    assert contents_now(n1, 0) is None
    assert n1.work <= AT_ONCE + HASHED_MAX // HASHED_OF_WORK


def test_a_primary_compares_at_once_what_its_copy_says_though_it_has_more_to_sum_up() -> None:
    copies = three()
    copies["n1"].put(0, **{f"x{at}": "y" for at in range(AT_ONCE + 1)})
    copies.run()
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    copies.returns("n3")
    copies["n3"].checkpoint()
    move(copies)
    copies.run()
    assert not any(isinstance(record, r.Compare) for record in copies["n3"].records)
    assert (0, "n3") in copies["n1"].supply.vouching.vouched
    end(copies)


def test_a_copy_is_taken_anew_by_order() -> None:
    """Nothing is emptied before the map says that nobody relies on it; then all of it comes from the primary."""
    copies = three()
    copies["n3"].spoil(0, "k4", "nobody wrote this")
    name, anew = name_of(0), copies["n3"].anew
    assert anew.order([("other", 0)]) == "n3 has no copy of other/0"
    assert anew.order([name]) == ""
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"))
    assert copies["n3"].rows(0), "that map was made before the order was told"
    anew.told()
    move(copies)
    assert not copies["n3"].rows(0)
    copies.run()
    assert copies["n3"].demander.progress.kinds[name] == Kind.FULL
    end(copies)
    assert anew.as_object() == {"wanted": [], "loading": [], "kept": []}


def test_a_copy_that_the_map_still_relies_on_is_not_emptied_by_order() -> None:
    copies = three()
    anew = copies["n3"].anew
    assert anew.order([name_of(0)]) == ""
    anew.told()
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"))
    assert copies["n3"].rows(0) == copies["n1"].rows(0)
    assert anew.as_object()["kept"] == ["acc/0"]


def test_what_was_written_last_becomes_stable_on_every_copy() -> None:
    copies = three()
    copies["n1"].put(0, k1="last")
    copies.run()
    assert all(copy.replica.tails for copy in copies.copies.values())
    for _ in range(3):
        copies.now += LOOK_MS * MS
        for copy in copies.copies.values():
            copy.stability.tick()
        copies.run()
    assert not any(copy.replica.tails for copy in copies.copies.values())
    assert {copy.replica.fragment(name_of(0)).stable for copy in copies.copies.values()} == {13}
    copies.judge()


def test_a_partition_that_gets_another_primary_leaves_the_rest_of_a_session_alone() -> None:
    """Nobody waits for anything to be said again: what was under way is said at once in the new version."""
    copies = three(partitions=4)
    full(copies)
    copies.settings.supply_batch_bytes = 300
    move(copies)
    while "full" not in copies["n3"].demander.progress.rows or not any(
        isinstance(said, Supply) for *_, said in copies.wire
    ):
        assert copies.step()
    copies.placements[3] = Placement(9, copies.placements[3].epoch + 1, ("n2", "n1", "n3"), ("n1", "n2"))
    copies.commit()
    copies.run()
    assert all((number, "n3") in copies["n1"].supply.vouching.vouched for number in range(3))
    end(copies)


def test_what_was_lost_with_its_connection_is_said_again_though_an_older_answer_comes_after_that() -> None:
    """The copy had answered before the connection broke, and that came over another one: it says nothing of the rest."""
    copies = Copies("n1", "n2", "n3", settings=Settings(link_bytes_per_s=20))  # what is under way takes ten seconds
    copies.wait(1)
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    copies["n1"].put(0, **{f"k{at}": "x" * 50 for at in range(12)})
    copies.run()
    full(copies)
    copies.map(("n1", "n2", "n3"), ("n1", "n2"))
    answers: list[Said] = []

    def breaks(sender: NodeId, to: NodeId, said: Said) -> int:
        if isinstance(said, Supply) and said.batch > 1:
            return 0
        if isinstance(said, Credit) and said.batch == 1 and not answers:
            answers.append(said)
            return 0
        return 1

    copies.trouble = breaks
    copies.run()
    assert answers, "the first batch was taken"
    copies["n1"].supply.on_peer_seen("n3")
    copies.trouble = None
    copies["n1"].hear("n3", answers[0])
    copies.whole(patience=4)
