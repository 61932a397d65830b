"""While a task reads, the collector rests; afterwards it is as it was."""

from __future__ import annotations

import gc

import pytest

from tools.reconcile.uncollected import uncollected


@uncollected
def task(*, fails: bool) -> bool:
    """Whether the collector runs meanwhile."""
    if fails:
        raise ValueError("a bad page")
    return gc.isenabled()


def test_the_collector_rests_while_a_task_reads_and_is_then_as_it_was() -> None:
    assert gc.isenabled()
    assert not task(fails=False)
    with pytest.raises(ValueError, match="a bad page"):
        task(fails=True)
    assert gc.isenabled()
    gc.disable()
    try:
        assert not task(fails=False)
        assert not gc.isenabled()
    finally:
        gc.enable()
