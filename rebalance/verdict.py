"""Which copies of a fragment are wrong, by what all of its in-sync copies say: decided here and nowhere else.

A copy gives evidence of two kinds. Its **digest** says what it ought to contain, at the counters that it stands at; two
copies that stand at different ones say nothing of each other. Its **proof** is that its rows were read, and add up to what
its store keeps of them, or do not. Nobody is believed who has not been read.

* The primary's rows prove their digest: a copy whose rows do not, or whose digest is another one, is wrong. But where two
  or more copies that prove theirs speak against the primary, it may be the primary: nothing is touched, and a person is
  told.
* The primary's do not: it is wrong if all others prove theirs, and none of them differs from another.
* All else is undecided. A row that is right on one copy alone is not to be overwritten by a guess.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rebalance.messages import Contents
from wal.ids import NodeId


class Evidence(msgspec.Struct, frozen=True):
    """What one copy says of a fragment: what it ought to contain, and whether its rows were read and prove that."""

    contents: Contents
    proven: bool


class Verdict(msgspec.Struct, frozen=True):
    """Who is wrong; or, where nobody can be named, why not."""

    wrong: tuple[NodeId, ...] = ()
    undecided: str = ""


def differ(a: Contents, b: Contents) -> bool:
    """Whether two copies contradict each other: they stand at the same counters, and something else came of it."""
    return (a.lwm, a.ranges) == (b.lwm, b.ranges) and (a.digest, a.history) != (b.digest, b.history)


def judge(primary: NodeId, copies: Mapping[NodeId, Evidence]) -> Verdict:
    """Who is wrong of all in-sync copies of a fragment, the primary's among them."""
    mine = copies[primary]
    others = {node: said for node, said in copies.items() if node != primary}
    if mine.proven:
        against = [node for node, said in others.items() if said.proven and differ(said.contents, mine.contents)]
        if len(against) > 1:
            return Verdict(undecided=f"{', '.join(against)} have other rows than {primary}, and all prove their own")
        return Verdict(tuple(node for node, said in others.items() if node in against or not said.proven))
    if not others:
        return Verdict(undecided=f"the rows of {primary} are not those that were written, and there is no other copy")
    unproven = [node for node, said in others.items() if not said.proven]
    if unproven:
        return Verdict(undecided=f"neither the rows of {primary} nor those of {', '.join(unproven)} are what was written")
    first, *rest = others.values()
    if any(differ(first.contents, said.contents) for said in rest):
        return Verdict(undecided=f"the rows of {primary} are not what was written, and the other copies differ")
    return Verdict((primary,))
