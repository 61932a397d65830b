"""Who is waited for although it is slow: what a member that is set aside means for the partitions that it has copies of.

It leaves an in-sync set if enough fast copies stay behind. Of three copies or more two are enough; of two, one is. Where
fewer would be left, a slow copy that answers stays in sync, and leads only where no fast one can: what it makes everybody
wait for is its time, and what it saves is the last place of what was acknowledged. One that answers nothing at all is
waited for only where nobody else is left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from wal.ids import NodeId

ENOUGH = 2
"""So many fast copies of three or more are waited for, and no slow one."""


def fast(copies: Sequence[NodeId], aside: Mapping[NodeId, int]) -> list[NodeId]:
    """Those that are not set aside now."""
    return [n for n in copies if aside.get(n, 0) <= 0]


def waited_for(
    copies: Sequence[NodeId], aside: Mapping[NodeId, int], mute: Collection[NodeId], wanted: int
) -> list[NodeId]:
    """Of the copies that have everything, those to be in sync, the fast first; `wanted` is how many there should be."""
    quick = fast(copies, aside)
    slow = [n for n in copies if n not in quick and n not in mute]
    enough = ENOUGH if wanted > ENOUGH else 1
    return [*quick, *slow[: max(0, enough - len(quick))]] or list(copies)


def aside_next(
    before: Mapping[NodeId, int], wanted: Mapping[NodeId, int] | None, vouched: Mapping[int, Sequence[NodeId]]
) -> dict[NodeId, int]:
    """Who is set aside in the next map: whoever was, unless a primary vouches for it now; and who is from now on."""
    back = {n for copies in vouched.values() for n in copies}
    aside = before if wanted is None else wanted
    return {n: -times if n in back and 0 < times == before.get(n, 0) else times for n, times in aside.items()}
