r"""Conversations with the `foreshore` command (`tools.cli`) over data directories that the story makes.

```
node n1 [cluster=other] [member]  the directory of a node whose log was opened once; of a member, with its first checkpoint
append n1                      one block of the records in the body (tests/conversations/records.py), one second after LSN
                               1970-01-01; bytes of keys and values may be written as \x1b
flip n1 BYTE                   one bit of the last segment
cut n1 BYTES                   its store's file is shortened to so many bytes
newer n1                       the directory is of a format that is not known yet
foreshore WORD...              the command; directories and transactions by their names
```

What goes to stderr is marked by `!`, and an exit code that is not 0 ends the answer.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import msgspec
from typer.testing import CliRunner

from engine.host.data_directory import DataDirectory, open_data_directory
from engine.turn.settings import Settings
from rebalance.table import Member, Placement, Topology, encode
from tests.conversations.names import Names
from tests.conversations.records import record
from tests.conversations.story import Command, Interpreter, StoryError
from tools.cli import app
from tools.terminal import bytes_of
from wal import list_segments
from wal import records as r
from wal.ids import Version

SETTINGS = Settings(partitions=4, wal_segment_bytes=4096, wal_total_bytes=1 << 20)
_ALONE = Placement(1, 1, ("n1",), ("n1",))
MAP = Topology(Version(1, 0), "c1", "foreshore", 4, 0, (Member("n1", "d1", 1, "-", 1),), ("n1",), (_ALONE,) * 4, {}, {}, 2)
"""A cluster of one."""
_OF_PYDANTIC = "Value error, "
"""Releases of typer that check arguments by pydantic begin a refusal so."""
_LIST = re.compile(r"\{(\w+)(?:\.\.\.)?\}(?:\.\.\.)?")
"""An argument in a usage line: whether its dots are drawn, and where, differs from one release of typer to the next."""
_SEGMENT = re.compile(r"\b0*(\d+)\.wal\b")


class CliStory(Interpreter):
    """A place with directories in it, and somebody who types."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="foreshore-story-"))
        self.names = Names()
        self.nodes: list[str] = []

    def answer(self, command: Command) -> list[str]:
        """Paths, segments and transactions have short names."""
        lines = [line.replace(f"{self.root}/", "").replace(_OF_PYDANTIC, "") for line in super().answer(command)]
        return [self.names.shorten(_LIST.sub(r"{\1}", _SEGMENT.sub(r"\1.wal", line))) for line in lines]

    def close(self) -> None:
        shutil.rmtree(self.root)

    # Directories.

    def on_node(self, command: Command) -> None:
        name = command.word("a name")
        self.nodes.append(name)
        directory = self._open(name, command.option("cluster") or "foreshore")
        if command.flag("member"):
            for said in (r.Boot(1), r.Committed(MAP.version, encode(MAP))):
                directory.replica.apply(said)
            directory.store.write(directory.replica.begin_checkpoint(0, []))
        directory.close()

    def on_append(self, command: Command) -> str:
        directory = self._open(command.word("a node"))
        records = [self._record(line, command) for line in command.body]
        try:
            last = directory.log.append(records, now_ms=1_000 * directory.log.next_lsn, durable=True)
        finally:
            directory.close()
        return f"up to LSN {last}"

    def on_flip(self, command: Command) -> None:
        path = self.root / command.word("a node") / "wal"
        file = path / list_segments(path)[-1].name
        data = bytearray(file.read_bytes())
        data[command.number("a byte")] ^= 1
        file.write_bytes(data)

    def on_cut(self, command: Command) -> None:
        with (self.root / command.word("a node") / "store" / "data.mdb").open("r+b") as file:
            file.truncate(command.number("bytes"))

    def on_newer(self, command: Command) -> None:
        file = self.root / command.word("a node") / "identity.json"
        file.write_bytes(msgspec.json.encode(msgspec.json.decode(file.read_bytes()) | {"format": 2}))

    def _open(self, name: str, cluster: str = "foreshore") -> DataDirectory:
        if name not in self.nodes:
            raise StoryError(f"there is no directory of {name}; there are: {', '.join(self.nodes)}")
        return open_data_directory(self.root / name, cluster=cluster, node=name, settings=SETTINGS)

    def _record(self, line: str, command: Command) -> r.Record:
        said = Command(line, [], command.line)
        found = record(said, self.names)
        said.done()
        if isinstance(found, r.Update):
            return r.Update([_raw(write) for write in found.writes])
        return found

    # The command.

    def on_foreshore(self, command: Command) -> list[str]:
        result = CliRunner().invoke(app, [self._word(word) for word in command.rest()])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        lines = [line.rstrip() for line in result.stdout.splitlines()]
        lines += [f"! {line.rstrip()}" for line in result.stderr.splitlines() if line.strip()]
        if result.exit_code:
            lines.append(f"exit {int(result.exit_code)}")
        return [line for line in lines if line] or ["nothing"]

    def _word(self, word: str) -> str:
        if re.fullmatch(r"t\d+", word):
            return self.names.tx(word).hex()
        return str(self.root / word) if word.partition("/")[0] in self.nodes else word


def _raw(write: r.Write) -> r.Write:
    r"""The write with the bytes that its text stands for: `\x1b` is one."""
    keys = [bytes_of(key.decode()) for key in write.keys]
    values = [None if value is None else bytes_of(value.decode()) for value in write.values]
    return msgspec.structs.replace(write, keys=keys, values=values)
