"""Conversations with what a node has (`engine.state.replica` over `engine.state.store`), its checkpoints and its way back.

```
log                        log the records in the body as one block, and apply them (tests/conversations/records.py)
log open                   log them only: they do not count yet, as a primary's before its copies answered
count                      all open records count now, and are applied
freeze | write | thaw      a checkpoint begins, is written to the base, is let go of; `checkpoint` is all three
keep                       remember the base as it is now: an older checkpoint
recover [kept]             the process died: come back from the base (or from the older one) and the log
replay                     fold the whole log over what is there, once more
rows acc/0 | get acc/0 a   what a reader sees; tombstones included
base acc/0                 what the checkpoint in the base has of it
state acc/0 | result t1
```
"""

from __future__ import annotations

from engine.state.recover import recover
from engine.state.replica import Replica
from engine.state.store import CheckpointImage, Entry, LayeredStore
from engine.state.store_memory import MemoryStore
from rebalance.results import COMMITTED
from tests.conversations.fragment import standing_of
from tests.conversations.names import Names
from tests.conversations.records import fragment, record
from tests.conversations.story import Command, Interpreter, StoryError
from wal.ids import fragment_name
from wal.records import Record


class _Block:
    """One block of a log in memory."""

    def __init__(self, first_lsn: int, records: list[Record]) -> None:
        self.first_lsn = first_lsn
        self.records = records


class _Log:
    """A log in memory, for `recover`."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []

    @property
    def last_lsn(self) -> int:
        return self.blocks[-1].first_lsn + len(self.blocks[-1].records) - 1 if self.blocks else 0

    @property
    def begins(self) -> int:
        return self.blocks[0].first_lsn if self.blocks else 1

    def replay(self, from_lsn: int) -> list[_Block]:
        return [block for block in self.blocks if block.first_lsn >= from_lsn]


class StoreStory(Interpreter):
    """One node's replica, its layered store, and its log."""

    refusals = (ValueError,)

    def __init__(self) -> None:
        self.names = Names()
        self.base = MemoryStore()
        self.kept: MemoryStore | None = None
        self.log = _Log()
        self.open: list[Record] = []
        self.image: CheckpointImage | None = None
        self.replica = Replica(LayeredStore(self.base))

    def check(self) -> None:
        self.replica.check()

    def on_log(self, command: Command) -> list[str]:
        is_open = command.flag("open")
        lines, records = [], []
        for text in command.body:
            said = Command(text, [], command.line)
            records.append(record(said, self.names))
            said.done()
        self.log.blocks.append(_Block(self.log.last_lsn + 1, records))
        if is_open:
            self.open += records
            return [f"LSN {self.log.last_lsn}, not applied yet"]
        for made in records:
            lines.append("applied" if self.replica.apply(made) else "known already")
        return [f"LSN {self.log.last_lsn} {', '.join(lines)}"]

    def on_count(self, _: Command) -> str:
        records, self.open = self.open, []
        return ", ".join("applied" if self.replica.apply(made) else "known already" for made in records)

    # Checkpoints.

    def on_freeze(self, _: Command) -> str:
        self.image = self.replica.begin_checkpoint(self.log.last_lsn, list(self.open))
        rows = sum(map(len, self.image.rows.values()))
        cleared = "".join(f", clears {fragment_name(name)}" for name in self.image.cleared)
        return f"up to LSN {self.image.lsn}: {rows} rows, {len(self.open)} open records{cleared}"

    def on_write(self, _: Command) -> None:
        if self.image is None:
            raise StoryError("no checkpoint was begun")
        self.base.write(self.image)

    def on_thaw(self, _: Command) -> None:
        self.replica.store.thaw()
        self.image = None

    def on_checkpoint(self, command: Command) -> str:
        frozen = self.on_freeze(command)
        self.on_write(command)
        self.on_thaw(command)
        return frozen

    def on_keep(self, _: Command) -> str:
        self.kept = self.base.copy()
        return f"the checkpoint up to LSN {self.kept.load().lsn}"

    def on_recover(self, command: Command) -> str:
        if command.flag("kept"):
            if self.kept is None:
                raise StoryError("no older checkpoint was kept")
            self.base = self.kept.copy()
        self.image, self.open = None, []
        self.replica = recover(LayeredStore(self.base), self.log)
        lsn = self.base.load().lsn
        return f"checkpoint up to LSN {lsn}, {self.log.last_lsn - lsn} records of the log"

    def on_replay(self, _: Command) -> str:
        new = sum(self.replica.apply(made) for block in self.log.blocks for made in block.records)
        return f"{self.log.last_lsn} records, {new} new"

    # Looking.

    def on_lose(self, command: Command) -> str:
        """Blocks that are gone, at the log's beginning or at its end."""
        below, above = int(command.option("below") or 0), int(command.option("above") or 1 << 60)
        self.log.blocks = [b for b in self.log.blocks if below <= b.first_lsn <= above]
        return f"the log has LSN {self.log.begins} to {self.log.last_lsn}"

    def on_serves(self, command: Command) -> str:
        return f"what came after {self.replica.fragment(fragment(command)).history_from}"

    def on_rows(self, command: Command) -> list[str]:
        name = fragment(command)
        return [f"{key.decode()} {_entry(entry)}" for key, entry in self.replica.store.scan(name, b"", 100)] or ["none"]

    def on_base(self, command: Command) -> list[str]:
        name = fragment(command)
        return [f"{key.decode()} {_entry(entry)}" for key, entry in self.base.scan(name, b"", 100)] or ["none"]

    def on_get(self, command: Command) -> str:
        name = fragment(command)
        entry = self.replica.store.get(name, command.word("a key").encode())
        return "nothing" if entry is None else _entry(entry)

    def on_state(self, command: Command) -> str:
        name = fragment(command)
        state = self.replica.fragments.get(name)
        if state is None:
            return "there is no such fragment"
        prepared = [self.names.tx_name(tx) for tx in self.replica.partition(name[1]).prepared]
        return f"{standing_of(state)}{f' prepared={chr(44).join(prepared)}' if prepared else ''}"

    def on_result(self, command: Command) -> str:
        tx = self.names.tx(command.word("a transaction"))
        found = [p.results.get(tx) for p in self.replica.partitions.values() if p.results.get(tx) is not None]
        return "unknown" if not found else "committed" if found[0] == COMMITTED else "aborted"


def _entry(entry: Entry) -> str:
    value = "deleted" if entry.value is None else f"= {entry.value.decode()}"
    return f"{value} at {entry.epoch}.{entry.counter}"
