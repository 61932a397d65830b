"""Conversations with a node's write-ahead log (`wal.log`) over a disk in memory that forgets as disks do.

```
open [segment=2048] [total=8192] [from=7] [node=n2] [accept-loss]
append [unsynced]              one block of the records in the body (tests/conversations/records.py)
fill 1..20 acc/0               a block each for updates with these counters
sync | close | prepare-next
replay [from=3] | segments | files
power-cut [keeping=all | keeping=none | keeping=2,5]    what survives of all that was not synced, by its place in `unsynced`
unsynced                       what a power cut may keep or lose
flip FILE BYTE | shorten FILE BYTES | remove FILE | zero FILE FROM
fail sync 1                    the next call of this kind fails
room 1000                      so many bytes are free on the disk
verify                         what `foreshore wal verify` would find
pin NAME LSN | unpin NAME | pins
trim checkpoint=12 [open=4]    as the driver trims after a checkpoint
history acc/0 up-to=9 [have=2] [ranges=(4,1)] epochs=1:1,2:5
```

A segment is called by its first LSN, without the zeros: `9.wal`. Offsets and sizes are bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.conversations.choice import pairs, ranges
from tests.conversations.names import Names
from tests.conversations.records import fragment, record
from tests.conversations.speech import Speech
from tests.conversations.story import Command, Interpreter, StoryError
from tests.support.memory_disk import MemoryDisk, Unsynced
from wal import Log, LogClosed, LogError, LogSettings, PartitionCounter, Want, verify
from wal.disk import DiskError
from wal.ids import fragment_name
from wal.records import Record, Update, Write
from wal.segment import segment_name

_SEGMENT = re.compile(r"\b0*(\d+)\.wal\b")


class LogStory(Interpreter):
    """One disk, and the log that is open on it."""

    refusals = (LogError, LogClosed, DiskError)

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.log: Log | None = None
        self.names = Names()
        self.speech = Speech(self.names)
        self.settings = LogSettings(segment_bytes=2048, total_bytes=1 << 20)

    def answer(self, command: Command) -> list[str]:
        """Segments and transactions have short names."""
        return [self.names.shorten(_SEGMENT.sub(r"\1.wal", line)) for line in super().answer(command)]

    @property
    def opened(self) -> Log:
        """The log that is open."""
        if self.log is None:
            raise StoryError("no log is open")
        return self.log

    def on_open(self, command: Command) -> list[str]:
        segment, total = command.option("segment"), command.option("total")
        if segment or total:
            self.settings = LogSettings(segment_bytes=int(segment or 2048), total_bytes=int(total or 1 << 20))
        self.log = None
        log = Log.open(
            self.disk,
            cluster="tests",
            node=command.option("node") or "n1",
            settings=self.settings,
            from_lsn=int(command.option("from") or 1),
            accept_loss=command.flag("accept-loss"),
        )
        self.log = log
        lines = [f"open, next LSN {log.next_lsn}"]
        if log.torn is not None:
            torn = log.torn
            kept = f", kept as {torn.kept_as}" if torn.kept_as else ""
            gone = f", {torn.gone} bytes of the file are gone" if torn.gone else ""
            lines.append(f"torn at LSN {torn.lsn}: {torn.bytes} bytes{kept}{gone}: {torn.why}")
        lines += [f"set aside: {name}" for name in log.set_aside]
        return lines

    # Writing.

    def on_append(self, command: Command) -> str:
        durable = not command.flag("unsynced")
        return self._append([self._record(line, command) for line in command.body], durable=durable)

    def on_fill(self, command: Command) -> str:
        first, _, last = command.word("counters, as 1..20").partition("..")
        durable = not command.flag("unsynced")
        name, partition = fragment(command)
        said = ""
        for counter in range(int(first), int(last or first) + 1):
            write = Write(name, partition, 1, counter - 1, [b"key-%04d" % counter], [b"value of twenty bytes"])
            said = self._append([Update([write])], durable=durable)
        return said

    def _append(self, records: list[Record], *, durable: bool) -> str:
        log = self.opened
        last = log.append(records, now_ms=1_000 * log.next_lsn, durable=durable)
        return f"up to LSN {last}, durable up to LSN {log.durable_lsn}"

    def _record(self, line: str, command: Command) -> Record:
        said = Command(line, [], command.line)
        found = record(said, self.names)
        said.done()
        return found

    def on_sync(self, _: Command) -> str:
        self.opened.sync()
        return f"durable up to LSN {self.opened.durable_lsn}"

    def on_close(self, _: Command) -> None:
        self.opened.close()

    def on_prepare_next(self, _: Command) -> str:
        return "made" if self.opened.prepare_next() else "it is there"

    # Looking.

    def on_replay(self, command: Command) -> list[str]:
        lines = []
        for block in self.opened.replay(int(command.option("from") or 1)):
            last = f"..{block.last_lsn}" if len(block.records) > 1 else ""
            lines.append(f"{block.first_lsn}{last} {self.speech.records(block.records)}")
        return _folded(lines) or ["nothing"]

    def on_segments(self, _: Command) -> list[str]:
        return [
            f"{info.name} LSN {info.first_lsn}..{info.last_lsn} {info.bytes} bytes {'sealed' if info.sealed else 'live'}"
            for info in self.opened.segments()
        ]

    def on_files(self, _: Command) -> list[str]:
        return [f"{name} {len(self.disk.image(name))}" for name in self.disk.names()]

    def on_verify(self, _: Command) -> list[str]:
        report = verify(self.disk)
        lines = [f"{report.blocks} blocks, {report.records} records, LSN {report.first_lsn}..{report.last_lsn}"]
        return lines + [str(finding) for finding in report.findings]

    # Cruelty.

    def on_unsynced(self, _: Command) -> list[str]:
        return [f"{at} {u.kind} {u.at} of {u.file}" for at, u in enumerate(self.disk.unsynced())] or ["nothing"]

    def on_power_cut(self, command: Command) -> str:
        keeping = command.option("keeping") or "none"
        things = self.disk.unsynced()
        chosen = {"all": set(range(len(things))), "none": set[int]()}.get(keeping)
        kept = chosen if chosen is not None else {int(n) for n in keeping.split(",")}
        places = iter(range(len(things)))
        survives: Callable[[Unsynced], bool] = lambda _: next(places) in kept  # noqa: E731  # asked in their order
        self.disk, self.log = self.disk.crash(survives), None
        return f"{len(kept)} of {len(things)} unsynced things survive"

    def on_flip(self, command: Command) -> None:
        self.disk.flip(self._file(command), 8 * command.number("a byte"))

    def on_zero(self, command: Command) -> None:
        name, start = self._file(command), command.number("from")
        self.disk.put(name, self.disk.image(name)[:start].ljust(len(self.disk.image(name)), b"\0"))

    def on_shorten(self, command: Command) -> None:
        name, by = self._file(command), command.number("by how many bytes")
        self.disk.put(name, self.disk.image(name)[:-by])

    def on_remove(self, command: Command) -> None:
        self.disk.remove(self._file(command))

    def on_fail(self, command: Command) -> None:
        self.disk.fail(command.word("a kind of call"), command.number("which"))

    def on_room(self, command: Command) -> None:
        self.disk.capacity = self.disk.used + command.number("bytes")

    # Retention and history.

    def on_pin(self, command: Command) -> None:
        self.opened.pin(command.word("a name"), command.number("LSN"))

    def on_unpin(self, command: Command) -> None:
        self.opened.unpin(command.word("a name"))

    def on_pins(self, _: Command) -> list[str]:
        held = [f"{token} from LSN {lsn}" for token, lsn in self.opened.pins().items()]
        return [*held, *(f"{token} gave way" for token in self.opened.gave_way)] or ["none"]

    def on_trim(self, command: Command) -> list[str]:
        trimmed = self.opened.trimmable(int(command.option("checkpoint") or 0))
        if trimmed is None:
            return ["nothing goes"]
        self._append([trimmed], durable=True)
        self.opened.trim(trimmed.first_lsn)
        return [self.speech.record(trimmed)]

    def on_history(self, command: Command) -> list[str]:
        name = fragment(command)
        have = PartitionCounter(int(command.option("have") or 0))
        for start, delta in ranges(command.option("ranges") or ""):
            have.update(start, delta)
        want = Want(name, have, int(command.option("up-to") or 0), pairs(command.option("epochs") or ""))
        cursor = self.opened.history([want])
        lines = []
        while not cursor.done:
            lines += [self.speech.write(write) for write in cursor.read(1 << 20)]
        return [*_folded(lines), *(f"missed {fragment_name(name)}" for name in cursor.missed)] or ["nothing"]

    # Names.

    @staticmethod
    def _file(command: Command) -> str:
        name = command.word("a file")
        lsn = name.removesuffix(".wal")
        return segment_name(int(lsn)) if lsn.isdigit() else name


def _folded(lines: list[str]) -> list[str]:
    """Long answers without their middle."""
    return lines if len(lines) <= 8 else [*lines[:2], f"... {len(lines) - 4} more ...", *lines[-2:]]
