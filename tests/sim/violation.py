"""What a run found: a broken promise, with enough to tell its story."""

from __future__ import annotations

from dataclasses import dataclass, field

from wal.ids import Fragment, NodeId, TxId, fragment_name


@dataclass(frozen=True)
class About:
    """What a finding concerns; the story is made of everything that mentions one of these."""

    txs: tuple[TxId, ...] = ()
    fragments: tuple[Fragment, ...] = ()
    partitions: tuple[int, ...] = ()
    nodes: tuple[NodeId, ...] = ()
    keys: tuple[bytes, ...] = ()

    @property
    def empty(self) -> bool:
        """Nothing in particular."""
        return not (self.txs or self.fragments or self.partitions or self.nodes or self.keys)

    def __str__(self) -> str:
        said = [f"transaction {tx.hex()}" for tx in self.txs]
        said += [fragment_name(f) for f in self.fragments]
        said += [f"partition {p}" for p in self.partitions]
        said += [f"node {n}" for n in self.nodes]
        said += [f"key {k!r}" for k in self.keys]
        return ", ".join(said) or "the whole cluster"


NOTHING = About()


class Violation(Exception):
    """An oracle says that a promise was broken. `oracle` is its name, as in `docs/planted-faults.md`."""

    def __init__(self, oracle: str, message: str, about: About = NOTHING) -> None:
        super().__init__(oracle, message, about)
        self.oracle = oracle
        self.message = message
        self.about = about

    def __str__(self) -> str:
        return f"{self.oracle}: {self.message}"


@dataclass
class Findings:
    """Violations of one run, the first of each oracle in full."""

    violations: list[Violation] = field(default_factory=list)

    def add(self, violation: Violation) -> None:
        """Keep it, unless its oracle has spoken already."""
        if all(v.oracle != violation.oracle for v in self.violations):
            self.violations.append(violation)

    def __bool__(self) -> bool:
        return bool(self.violations)
