"""Which blocks of a log concern one key: of each segment little more is read, as far as its footer or its notes tell."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from wal import RawBlock
from wal.codec import HEADER_BYTES, FormatError
from wal.footer import Ask, Span, Told, among
from wal.ids import CLIENTS, DECISIONS, MAPS, Fragment, TxId
from wal.outline import may_have
from wal.parts import Few
from wal.register import Registers, key_name, mention_name

_ALWAYS = frozenset({"clear", "ready", "undo", "epoch", "origin", "committed"})
"""Kinds of records that concern a key whose bytes are not in them."""


class KeyBlocks:
    """One log's. `waiting` are the transactions that wrote the key, by what was read so far, and have no outcome yet.

    `apart`: who asks here does not know what was taken of the blocks before.
    """

    def __init__(self, fragment: Fragment, key: bytes, waiting: Collection[TxId], *, apart: bool) -> None:
        self._fragment = fragment
        self._key = key
        self._waiting = waiting
        self._apart = apart
        self._told: tuple[int, int, list[Span]] = (0, 0, [])
        """A segment, up to where it was told of, and where something concerns the key that does not name it."""
        self._kinds = _ALWAYS | {"outcome"} if apart else _ALWAYS
        self._beside = [(DECISIONS, fragment[1]), CLIENTS, MAPS]

    def ask(self, told: Told) -> Iterable[Span | Few] | None:
        """What is to be read of a segment. Of most of it the key's bytes tell whether it concerns the key."""
        try:
            named = self._named(told) if not self._apart else None
        except FormatError:
            named = None
        return named if named is not None else self._spoken_of(told)

    def choose(self, raw: RawBlock) -> bool:
        """Whether a block may concern the key."""
        data = raw.data
        if self._key in data or any(tx in data for tx in self._waiting):
            return True
        segment, end, silent = self._told
        if raw.segment == segment and raw.offset < end and not among(silent, raw.offset):
            return False
        return may_have(self._kinds, raw.header, data)

    def _named(self, told: Told) -> Iterator[Span] | None:
        """By the register: the blocks that name the key, or mention what it is in; and then those in which transactions
        end that were found in these."""
        register = told.register()
        if register is None:
            return None
        silent = register.mentioning(map(mention_name, [self._fragment, *self._beside]))
        mine = register.naming([key_name(self._fragment[0], self._key)])
        self._told = told.header.first_lsn, told.trailer.end, silent
        return self._with_outcomes(register, [*{*silent, *mine}])

    def _with_outcomes(self, register: Registers, spans: list[Span]) -> Iterator[Span]:
        """These blocks, and those in which what waits for its outcome by then may have it."""
        looked = set[TxId]()
        at = HEADER_BYTES
        heapify(spans)
        while True:
            txs = [tx for tx in self._waiting if tx not in looked]
            looked.update(txs)
            try:
                for span in register.naming(key_name(DECISIONS, tx) for tx in txs) if txs else ():
                    heappush(spans, span)
            except FormatError:
                yield at, register.trailer.end  # all that is left
                return
            while spans and spans[0][0] < at:
                heappop(spans)
            if not spans:
                return
            span = heappop(spans)
            at = span[1]
            yield span

    def _spoken_of(self, told: Told) -> Sequence[Span | Few] | None:
        """The same by the index, or by notes: all blocks that speak of its fragment."""
        found = told.telling(self._fragment, self._beside)
        if found is None:
            return told.speaking_of([self._fragment, *self._beside])
        self._told = told.header.first_lsn, told.trailer.end, found[1]
        return found[0]


def deciding(decided: Mapping[TxId, int]) -> Ask:
    """The blocks with the decisions of transactions, each of which was made in a partition, and where they come from."""
    fragments = [(DECISIONS, number) for number in sorted(set(decided.values()))]

    def ask(told: Told) -> list[Span] | None:
        try:
            register = told.register()
            if register is not None:
                naming = register.naming(key_name(DECISIONS, tx) for tx in decided)
                return sorted({*naming, *register.mentioning(map(mention_name, fragments))})
        except FormatError:
            pass  # the index tells as well
        return told.speaking_of(fragments)

    return ask
