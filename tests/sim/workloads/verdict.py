"""What is read when nothing is written any more, and how each history is judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from engine.client.calls import GetCall
from engine.client.scans import ScanCall
from tests.sim.checkers import bank, idempotent, list_append, monotonic, register, ring, scan, sets
from tests.sim.checkers.history import Anomaly, Get, Read, ReadSet, Scan, Transaction
from tests.sim.clients import Client
from tests.sim.workloads import one_key
from tests.sim.workloads.load import ACCOUNTS, BALANCE, NODES_OF_RING, TIMEOUT_NS, Load
from tests.sim.workloads.retry import PREFIX
from tests.sim.workloads.transactions import bank_of, ring_of, room_rows


async def read_everything(load: Load, client: Client) -> None:
    """When nothing is written any more: scans of all namespaces, and gets of all that they show."""
    recorder = load.recorder
    process = recorder.process()
    for namespace in ("bank", "lists", "rooms", "ring", "registers", "batches", "retry", "rows", "strays"):
        rows: list[tuple[bytes, bytes]] = []
        start: bytes | None = b"\0"
        recorder.begin("scan", process, Scan(namespace, namespace + "~"))
        while start is not None:
            page = await client.call(ScanCall(namespace, start, None, 200), timeout_ns=10 * TIMEOUT_NS)
            rows += page.rows
            start = page.next_start
        numbers = {value: at for at, value in enumerate(sorted({value for _, value in rows}))}
        named = tuple((f"{namespace}{key.decode()}", numbers[value]) for key, value in rows)
        recorder.end(process, "ok", Scan(namespace, namespace + "~", named))
        for key, _ in rows:
            recorder.begin("scan", process, Get(f"{namespace}{key.decode()}"))
            call = await client.call(GetCall(namespace, [key]), timeout_ns=10 * TIMEOUT_NS)
            held = call.values[0][2]
            recorder.end(
                process, "ok", Get(f"{namespace}{key.decode()}", numbers.get(held, -1) if held is not None else None)
            )
        if namespace == "rooms":
            recorder.begin("rooms", process, Transaction(()))
            rooms = dict.fromkeys(key.partition(b"/")[0] for key, _ in rows)
            of = {room: {k: v for k, v in rows if k.partition(b"/")[0] == room} for room in rooms}
            told = tuple(Read(room.decode(), tuple(room_rows(held))) for room, held in of.items())
            recorder.end(process, "ok", Transaction(told))
        if namespace == "lists":
            recorder.begin("lists", process, Transaction(()))
            told = tuple(Read(key.decode(), tuple(map(int, value.split()))) for key, value in rows)
            recorder.end(process, "ok", Transaction(told))
    recorder.begin("set", process, ReadSet())
    elements: list[int] = []
    start = b"{set}"
    while start is not None:
        page = await client.call(ScanCall("set", start, None, 2_000), timeout_ns=10 * TIMEOUT_NS)
        elements += [int(key[5:]) for key, _ in page.rows]
        start = page.next_start
    recorder.end(process, "ok", ReadSet(tuple(elements)))
    if load.many is not None:
        for each in load.many.keys.values():
            await one_key.read(load, client, each)
    for workload in (bank_of, ring_of):
        quiet = _Always()
        await workload(load, client, quiet)(process)


class _Always(Random):
    """Draws that make a workload read."""

    def random(self) -> float:
        """The least there is."""
        return 0.0


def judge(load: Load, quiet_from: int) -> dict[str, list[Anomaly]]:
    """What each history has against the engine; workloads without anomalies are left out."""
    recorder = load.recorder
    verdicts: dict[str, Sequence[Anomaly]] = {
        "bank": bank.check(BALANCE * len(ACCOUNTS), recorder.history("bank"), accounts=ACCOUNTS),
        "lists": list_append.check(recorder.history("lists")),
        "rooms": list_append.check(recorder.history("rooms")),
        "ring": ring.check(NODES_OF_RING, recorder.history("ring")),
        "registers": register.check(recorder.history("registers")),
        "versions": monotonic.check(recorder.history("versions")),
        "set": sets.check(recorder.history("set")),
        "batches": register.check(recorder.history("batches")),
        "rows": scan.check(recorder.history("rows")),
        "scan": scan.check(recorder.history("scan"), quiet_from=quiet_from),
    }
    if load.many is not None:
        verdicts[one_key.NAME] = list_append.check(load.many.history(recorder))
    for name in recorder.workloads():
        if name.startswith(PREFIX):
            verdicts[name] = idempotent.check(recorder.history(name))
    return {name: _accusing(found) for name, found in verdicts.items() if _accusing(found)}


def _accusing(found: Iterable[Anomaly]) -> list[Anomaly]:
    return [anomaly for anomaly in found if anomaly.kind != "undecided"]
