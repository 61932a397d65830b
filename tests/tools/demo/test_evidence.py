"""The demo's checks can fail: each is shown evidence that is wrong, and says what."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.turn.settings import Settings
from tests.support.directories import SEGMENT_BYTES, copies
from tools.demo import flights as data
from tools.demo.evidence import Return, check_return, damage, equal, lost_hours, read_return, same_counters
from tools.demo.screen import summary_rows
from tools.demo.summary import Killed, Summary
from tools.reconcile import check
from wal import DirectoryDisk, Log, LogSettings
from wal import records as r

HEAD = "year,month,day,hour,minute,carrier,flight,tailnum,origin,dest,dep_delay,arr_delay,air_time,distance"
FLIGHTS = [
    "2013,1,1,5,15,UA,1545,N14228,EWR,IAH,2,11,227,1400",
    "2013,1,1,5,29,UA,1714,N14228,LGA,IAH,4,20,227,1416",
    "2013,1,2,5,40,AA,1141,NA,JFK,MIA,NA,NA,NA,1089",
    "2013,2,1,6,0,DL,461,N668DN,LGA,ATL,-6,-25,116,762",
]


def departures(months: int = 12) -> list[data.Departure]:
    return list(data.parse_departures([HEAD, *FLIGHTS], months=months))


def held(checks: list[Any]) -> list[bool]:
    return [check.held for check in checks]


# The input.


def test_a_transaction_is_an_hour_and_what_it_adds() -> None:
    first, second, third = data.hours_of(departures())
    assert [hour.name for hour in (first, second, third)] == ["2013-01-01T05", "2013-01-02T05", "2013-02-01T06"]
    assert list(first.flights) == [b"{2013-01-01T05}UA1545/EWR", b"{2013-01-01T05}UA1714/LGA"]
    assert first.adds["tails"] == {b"{05h tails}N14228": data.Total(2, 2, 2816, 6)}
    assert first.adds["carriers"] == {b"{05h carriers}UA": data.Total(2, 2, 2816, 6)}
    assert list(first.adds["origins"]) == [b"{05h origins}EWR", b"{05h origins}LGA"]
    assert first.keys == 2 + 1 + 1 + 2
    assert second.adds["tails"] == {}, "an aircraft that is not known has no total"
    assert second.adds["carriers"] == {b"{05h carriers}AA": data.Total(1, 0, 1089, 0)}, "it did not leave"


def test_months_are_the_first_ones() -> None:
    assert [d.hour for d in departures(months=1)] == ["2013-01-01T05", "2013-01-01T05", "2013-01-02T05"]


def test_stripes_add_up_to_the_totals_of_the_file() -> None:
    stored: dict[str, dict[bytes, data.Total]] = {name: {} for name in data.TOTALS}
    for hour in data.hours_of(departures()):
        for name, adds in hour.adds.items():
            for key, total in adds.items():
                stored[name].setdefault(key, data.Total()).add(total)
    for name, expected in data.expected_totals(departures()).items():
        rows = [(key, data.encode(total)) for key, total in stored[name].items()]
        assert data.found_totals(rows) == expected
        assert data.found_totals(rows[1:]) != expected


def test_the_files_of_the_package_are_read_whole() -> None:
    path = data.data_file("flights.csv.zip")
    january = list(data.read_departures(path, months=1))
    assert len(january) == 27_004
    assert len({data.flight_key(d) for d in january}) == len(january)
    airlines = data.read_table(data.data_file("airlines.csv"))
    assert msgspec.json.decode(airlines[b"UA"]) == {"carrier": "UA", "name": "United Air Lines Inc."}
    with data.data_file("airports.csv").open(newline="", encoding="utf-8") as file:
        assert len(data.read_table(data.data_file("airports.csv"))) == sum(1 for _ in csv.reader(file)) - 1


# Checks.


def test_what_differs_is_shown_and_not_all_of_it() -> None:
    assert equal("x", 1, 1).held
    assert str(equal("x", 1, 2)) == "FAILED: x: expected 1, found 2"
    assert equal("x", {"a": 1}, {"a": 1}).held
    wrong = equal("x", {"a": 1, "b": 2}, {"b": 3, "c": 4})
    assert (wrong.held, wrong.expected, wrong.found) == (False, "a: 1, b: 2, c: nothing", "a: nothing, b: 3, c: 4")
    hours = [f"hour {number}" for number in range(5000)]
    assert (
        str(equal("x", hours, hours[:-1])) == "FAILED: x: expected 5000 entries, among them hour 4999, found 4999 entries"
    )
    assert equal("x", hours, list(hours)).expected == "5000 entries"
    assert len(str(equal("x", hours, []))) < 200
    assert equal("x", [("key", ["n1"])], [("key", ["n1"])]).held
    assert not equal("x", [("key", ["n1"])], [("key", ["n1", "n2"])]).held
    many = equal("x", dict.fromkeys(range(9), 1), dict.fromkeys(range(9), 2))
    assert many.found == "0: 2, 1: 2, 2: 2, 3: 2, 4: 2 and 4 more that differ"


def counters(**other: object) -> dict[str, dict[str, Any]]:
    return {"acc/1": {"lwm": 5, "hwm": 5, "digest": "aa", "ranges": []} | other}


@pytest.mark.parametrize(
    ("wrong", "fails"),
    [
        ({"lwm": 4}, [False, True, True]),
        ({"digest": "ab"}, [True, False, True]),
        ({"ranges": [[6, 1]]}, [True, True, False]),
    ],
)
def test_a_copy_that_counts_otherwise_is_told(wrong: dict[str, Any], fails: list[bool]) -> None:
    assert held(same_counters({"n1": counters(), "n2": counters()})) == [True, True, True]
    assert held(same_counters({"n1": counters(), "n2": counters(**wrong)})) == fails
    assert held(same_counters({"n1": counters(), "n2": {}})) == [False, False, True]


def test_an_hour_that_is_not_there_as_it_was_acknowledged_is_lost() -> None:
    hours = data.hours_of(departures())
    stored = {key: value for hour in hours for key, value in hour.flights.items()}
    names = [hour.name for hour in hours]
    assert lost_hours(names, hours, stored) == {}
    key = next(iter(hours[0].flights))
    assert lost_hours(names, hours, stored | {key: b"{}"}) == {"2013-01-01T05": "1 of 2 flights"}
    del stored[key]
    assert lost_hours(names, hours, stored) == {"2013-01-01T05": "1 of 2 flights"}
    assert lost_hours(names[1:], hours, stored) == {}, "what was not acknowledged was not promised"


WHOLE = Return(before=10, undone=1, supplied=5, live=4, ends={"acc/1": 12, "acc/2": 6})
SURVIVORS = {"acc/1": {"lwm": 12}, "acc/2": {"lwm": 6}, "acc/3": {"lwm": 0}}


@pytest.mark.parametrize(
    ("wrong", "supplied", "fails"),
    [
        ({}, 5, [True, True, True, True]),
        ({}, 6, [True, True, True, True]),
        ({}, 3, [True, True, False, True]),
        ({"supplied": 6}, 6, [True, False, True, True]),
        ({"supplied": 4}, 5, [True, False, True, True]),
        ({"live": 3}, 5, [True, False, True, True]),
        ({"before": 11}, 5, [True, False, True, True]),
        ({"undone": 0}, 5, [True, False, True, True]),
        ({"twice": 1}, 5, [True, True, True, False]),
        ({"ends": {"acc/1": 12}}, 5, [False, True, True, True]),
    ],
)
def test_a_return_is_exact_or_it_is_told(wrong: dict[str, Any], supplied: int, fails: list[bool]) -> None:
    told = msgspec.structs.replace(WHOLE, **wrong)
    assert held(check_return("n2", told, SURVIVORS, supplied, 1)) == fails


def test_a_return_is_read_from_the_log_counter_by_counter(tmp_path: Path) -> None:
    def write(start: int, *keys: bytes, epoch: int = 1) -> r.Write:
        return r.Write("acc", 1, epoch, start, list(keys), [b""] * len(keys))

    tx = bytes(16)
    settings = LogSettings(segment_bytes=1 << 20, total_bytes=1 << 24)
    log = Log.open(DirectoryDisk(tmp_path / "wal"), cluster="c", node="n2", settings=settings, from_lsn=1)
    log.append([r.Boot(1), r.Update([write(0, b"a", b"b")]), r.Update([write(2, b"c")])], now_ms=1, durable=True)
    log.append([r.Boot(2), r.Undo("acc", 1, 2, [b"c"])], now_ms=2, durable=True)
    log.append([r.History([write(2, b"d", b"e", epoch=2)]), r.History([write(3, b"e", epoch=2)])], now_ms=3, durable=True)
    prepare = r.Prepare(tx, 1, 2, [write(4, b"f", epoch=2)], [], [1], 1)
    log.append([prepare, r.Outcome(tx, 1, 2, True, []), r.NoOp(1, 2, [("acc", 5, 1)])], now_ms=4, durable=True)
    log.append([r.Update([write(4, b"f", epoch=2)])], now_ms=5, durable=True)
    log.close()
    told = read_return(tmp_path)
    assert told == Return(before=3, undone=1, supplied=3, live=2, twice=1, ends={"acc/1": 6})


def test_damage_is_one_value_that_no_checksum_finds(left: list[Path], tmp_path: Path) -> None:
    directories = copies(left, tmp_path)
    settings = Settings(partitions=16, wal_segment_bytes=SEGMENT_BYTES)
    where = damage(directories[1], cluster="foreshore", settings=settings, namespace="acc", key=b"k42")
    report = check([str(path) for path in directories], grace_seconds=0)
    assert [(f.kind, f.where, f.key, f.on) for f in report.decoded()] == [("VALUE_MISMATCH", where, "k42", ["n2"])]
    assert report.exit_code == 1


def test_what_did_not_hold_is_in_the_summary() -> None:
    summary = Summary(checks=[equal("one", 1, 1), equal("other", 1, 2)])
    summary.kill = Killed("n2", coordinator=True, primary_of=9, blocked_seconds=1.0, silence_seconds=1.0, at=3.0)
    rows = summary_rows(summary)
    assert ("checks", "1 of 2 held", "all") in rows
    assert ("FAILED: other", "2", "1") in rows
    assert rows[0] == ("kill -9 of n2, primary of 9, the coordinator", "writes blocked for 1.00 s", "< 2 s")


def test_many_things_are_told_by_their_number() -> None:
    hours = {f"2013-01-01T{number:05d}" for number in range(5_000)}
    same = equal("every hour was acknowledged", hours, set(hours))
    assert (same.held, same.expected, same.found) == (True, "5000 entries", "5000 entries")
    missing = equal("every hour was acknowledged", hours, hours - {"2013-01-01T00007"})
    assert (missing.held, missing.expected) == (False, "5000 entries, among them 2013-01-01T00007")
