"""`foreshore wal verify --logic` and `--audit`: every byte is right, and it cannot be."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.offline.directory import read_directory
from engine.state.store import Entry
from tests.support.commands import objects, wal
from tests.support.directories import append, copies, replace
from tools.wal.logic import Logic
from wal import read
from wal import records as r
from wal.ids import Fragment, partition_of

TX = b"one transaction."
LATER_MS = 4_000_000_000_000
PARTITIONS = 16


def fragment_of(key: bytes) -> Fragment:
    return ("acc", partition_of(key, PARTITIONS))


class Copy:
    """One node's directory, and where its copies stand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def say(self, *records: r.Record, now_ms: int = LATER_MS) -> None:
        append(self.directory, records, now_ms=now_ms)

    def stands(self, fragment: Fragment) -> tuple[int, int]:
        """LWM and epoch."""
        with read_directory(self.directory) as state:
            return state.fragments[fragment].counter.lwm, state.partitions[fragment[1]].epoch

    def next(self, key: bytes, *, epoch: int = 0, stable: int = 0, fragment: Fragment | None = None) -> r.Write:
        """The next update of a key."""
        fragment = fragment or fragment_of(key)
        lwm, now = self.stands(fragment)
        return r.Write(*fragment, epoch or now, lwm, [key], [b"value"], stable)


@pytest.fixture
def copy(left: list[Path], tmp_path: Path) -> Copy:
    """A directory whose log has everything."""
    return Copy(copies(left[:1], tmp_path)[0])


def told(directory: Path, *options: str) -> list[str]:
    """What is contradictory, by the command; the exit code says so as well."""
    result = wal("verify", directory, *options)
    found = [line.partition(": contradiction ")[2] for line in result.stdout.splitlines() if ": contradiction " in line]
    assert result.exit_code == (7 if found else 0), result.output
    return found


def test_whole_logs_and_stores_contradict_nothing(left: list[Path], checkpointed: list[Path]) -> None:
    for directory in [*left, *checkpointed]:
        assert told(directory, "--logic", "--audit") == []
    result = wal("verify", *left, "--logic", "--audit")
    assert "not checked" not in result.stdout
    unsaid = "not checked: whether what it says can be, and its footers tell of all that is in it, with --logic and --audit"
    assert unsaid in wal("verify", left[0]).stdout


def test_a_key_in_a_partition_that_it_does_not_hash_to(copy: Copy) -> None:
    wrong = ("acc", (fragment_of(b"k9")[1] + 1) % PARTITIONS)
    copy.say(r.Update([copy.next(b"k9", fragment=wrong)]))
    right = fragment_of(b"k9")[1]
    assert told(copy.directory) == [], "the bytes are right"
    (found,) = told(copy.directory, "--logic")
    assert found.endswith(f" acc/{wrong[1]} has key k9, which hashes to partition {right}")
    assert told(copy.directory, "--audit") == [f"store acc/{wrong[1]} key k9: it hashes to partition {right}"]


def test_a_write_of_an_epoch_after_the_next_one_began(copy: Copy) -> None:
    name = fragment_of(b"k9")
    lwm, epoch = copy.stands(name)
    copy.say(r.EpochStart(name[1], epoch + 1, [(name[0], lwm + 1)]))
    copy.say(r.Prepare(TX, name[1], epoch, [copy.next(b"k9", epoch=epoch)], [], [name[1]], name[1]))
    (found,) = told(copy.directory, "--logic")
    assert found.endswith(f"of partition {name[1]} in epoch {epoch}, after epoch {epoch + 1} began")


def test_what_is_called_stable_before_it_was_written(copy: Copy) -> None:
    write = copy.next(b"k9", stable=1000)
    copy.say(r.Update([write]))
    (found,) = told(copy.directory, "--logic")
    assert found.endswith(f"counter {write.end} calls 1000 stable, which came later")


def test_an_outcome_without_a_prepare_leaves_a_hole_that_somebody_has_to_explain(copy: Copy) -> None:
    name = fragment_of(b"k9")
    lwm, epoch = copy.stands(name)
    copy.say(
        r.Outcome(TX, name[1], epoch, True, [(name[0], lwm, 1)]),
        r.Update([r.Write(*name, epoch, lwm + 1, [b"k9"], [b"later"])]),
    )
    found = told(copy.directory, "--logic")
    assert [what.partition(" ")[2] for what in found] == [
        f"tx={TX.hex()} was committed in partition {name[1]} without a prepare"
    ]


def test_two_outcomes_in_one_partition_in_two_and_in_two_directories(left: list[Path], tmp_path: Path) -> None:
    one, other = fragment_of(b"k9"), fragment_of(b"k8")
    directories = copies(left, tmp_path)
    first, second, third = map(Copy, directories)

    def vote(copy: Copy, ended: dict[bytes, bool]) -> None:
        said: list[r.Record] = []
        for key in (b"k9", b"k8"):
            write = copy.next(key)
            said.append(r.Prepare(TX, write.partition, write.epoch, [write], [], sorted([one[1], other[1]]), one[1]))
            if key in ended:
                ranges = [(write.namespace, write.start, 1)]
                said.append(r.Outcome(TX, write.partition, write.epoch, ended[key], ranges))
        copy.say(*said)

    vote(first, {b"k9": True})
    assert told(first.directory, "--logic") == []
    vote(second, {b"k8": False})
    assert told(second.directory, "--logic") == []
    result = wal("verify", first.directory, second.directory, "--logic")
    assert result.exit_code == 7
    (together,) = [line for line in result.stdout.splitlines() if line.startswith("together: ")]
    assert together == (
        f"together: contradiction tx={TX.hex()} ended in two ways: n1(p{one[1]} committed) n2(p{other[1]} rolled back)"
    )

    vote(third, {b"k9": True, b"k8": False})
    assert f"tx={TX.hex()} ended in two ways: n3(" in told(third.directory, "--logic")[0]

    lwm, epoch = first.stands(one)
    first.say(r.Outcome(TX, one[1], epoch, False, [(one[0], lwm, 1)]))
    assert any(
        what.endswith(f"partition {one[1]} was committed and is rolled back") for what in told(first.directory, "--logic")
    )


def test_a_prepare_of_which_nothing_was_heard_for_a_minute(copy: Copy) -> None:
    name = fragment_of(b"k9")
    write = copy.next(b"k9")
    copy.say(r.Prepare(TX, name[1], write.epoch, [write], [], [name[1], 3], 3))
    copy.say(r.Checkpoint(0), now_ms=LATER_MS + 59_000)
    assert told(copy.directory, "--logic") == []
    copy.say(r.Checkpoint(0), now_ms=LATER_MS + 61_000)
    (found,) = told(copy.directory, "--logic")
    assert found == f"tx={TX.hex()} is prepared in partition {name[1]} and undecided for 61 s"


def test_counters_that_are_applied_and_have_no_record(left: list[Path]) -> None:
    blocks = list(read(left[0] / "wal"))
    with read_directory(left[0]) as state:
        for without, found in ((None, []), (fragment_of(b"k9"), ["acc/{} counters 1..".format(fragment_of(b"k9")[1])])):
            logic = Logic(PARTITIONS)
            for block in blocks:
                kept = [record for record in block.records if without is None or not _only_about(record, without)]
                logic.take(msgspec.structs.replace(block, records=kept))
            told_of = [str(broken) for broken in logic.broken(state)]
            assert [what.startswith(begins) for what, begins in zip(told_of, found, strict=True)] == [True] * len(found)


def _only_about(record: r.Record, fragment: Fragment) -> bool:
    return isinstance(record, r.Update) and all(write.fragment == fragment for write in record.writes)


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        (Entry(1, 0, b"forged"), "the log has another value at epoch 1 counter "),
        (None, ", and the row is gone"),
    ],
)
def test_a_store_with_right_checksums_that_is_not_what_the_log_says(
    forged: Entry | None, why: str, checkpointed: list[Path], tmp_path: Path
) -> None:
    directories = copies(checkpointed, tmp_path)
    name = fragment_of(b"k301")
    for directory in directories:  # all three alike
        with read_directory(directory) as state:
            entry = dict(state.rows(name, lambda _key, _what: None))[b"k301"]
        row = None if forged is None else msgspec.structs.replace(entry, value=forged.value)
        replace(directory, name, {b"k301": row})
    for directory in directories:
        assert told(directory, "--logic") == []
        (found,) = told(directory, "--audit")
        assert found.startswith(f"store acc/{name[1]} key k301: ")
        assert why in found
    *_, last = [line for line in _json(directories[0], "--audit") if "verdict" in line]
    assert (last["exit_code"], last["exit_codes"]) == (7, [7])


def _json(directory: Path, *options: str) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in wal("verify", directory, "--json", *options).stdout.splitlines()]


def test_an_older_row_is_a_later_write_that_is_missing(checkpointed: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(checkpointed[:1], tmp_path)
    name = fragment_of(b"k301")
    replace(directory, name, {b"k301": Entry(1, 1, b"older")})
    (found,) = told(directory, "--audit")
    assert found.endswith(", which came later")
    assert objects("verify", checkpointed[0], "--audit")[-1]["verdict"] == "whole"
