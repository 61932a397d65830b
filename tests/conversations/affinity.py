"""Conversations with rendezvous affinity (`rebalance.affinity`).

```
nodes a b c=rack1 d=rack1      the members, some with the failure domain they are in
table partitions=4 copies=2    who holds what, primary first
load partitions=64 copies=2    how even it is
moved                          what the last change of members moved, against the table before
```
"""

from __future__ import annotations

from collections.abc import Sequence

from rebalance.affinity import assign
from tests.conversations.story import Command, Interpreter


class AffinityStory(Interpreter):
    """Remembers the last table, to compare the next one with."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.domains: dict[str, str] = {}
        self.table: Sequence[Sequence[str]] = []
        self.before: Sequence[Sequence[str]] = []

    def on_nodes(self, command: Command) -> str:
        named = [word.partition("=") for word in command.rest()]
        self.nodes = [name for name, _, _ in named]
        self.domains = {name: domain for name, _, domain in named if domain}
        return f"{len(self.nodes)} nodes"

    def on_table(self, command: Command) -> list[str]:
        self._assign(command)
        return [f"p{number} {' '.join(owners) or '-'}" for number, owners in enumerate(self.table)]

    def on_load(self, command: Command) -> list[str]:
        self._assign(command)
        lines = []
        for node in sorted(self.nodes):
            held = sum(node in owners for owners in self.table)
            led = sum(owners[0] == node for owners in self.table)
            lines.append(f"{node} primary={led} copies={held}")
        return lines

    def on_moved(self, _: Command) -> list[str]:
        gained = lost = primaries = 0
        for old, new in zip(self.before, self.table, strict=True):
            gained += len(set(new) - set(old))
            lost += len(set(old) - set(new))
            primaries += old[0] != new[0]
        total = sum(map(len, self.table))
        kept = total - gained
        return [f"{gained} of {total} copies are new, {lost} went, {kept} stayed; {primaries} primaries changed"]

    def on_shared_domains(self, _: Command) -> str:
        """How many partitions have two copies in one failure domain."""
        shared = [n for n, o in enumerate(self.table) if len({self.domains.get(x, x) for x in o}) < len(o)]
        return " ".join(f"p{n}" for n in shared) or "none"

    def _assign(self, command: Command) -> None:
        partitions, copies = int(command.option("partitions") or 4), int(command.option("copies") or 2)
        self.before = self.table
        self.table = assign(self.nodes, self.domains, partitions, copies)
        assert assign(self.nodes[::-1], self.domains, partitions, copies) == self.table, "the order of members matters"
