"""Facts are fields: what a refusal means stands in its code, and never in its words."""

from __future__ import annotations

import pytest

from engine import errors
from engine.client.calls import GetCall
from engine.client.refusals import ERRORS, error_of
from engine.protocol.requests import Code, Failed, Get, Put
from tests.engine.client.test_routing import KEYS, SECOND, A, Story

CODES = [value for name, value in vars(Code).items() if name.isupper()]
WORDINGS = ["", "NoQuorum: partition 3 is LOST", "floor 17, it may have been done", "UsageError"]


def test_every_code_has_its_error() -> None:
    assert set(ERRORS) == set(CODES)
    assert error_of("Exception") is errors.Error, "no class is found by a name that came over a socket"


@pytest.mark.parametrize("code", [*CODES, "NewerThanThis", "__doc__"])
def test_no_wording_of_a_refusal_changes_what_is_done(code: str) -> None:
    told = set()
    for wording in WORDINGS:
        story = Story()
        call = story.put(0)
        (put,) = story.of(A, Put)
        story.router.on_reply(A, Failed(put.id, code, wording), story.now)
        story.wait(100)
        at_once, again = call.finished, len(story.of(A, Put))
        story.wait(11_000)
        told.add((at_once, again, type(call.error)))
    assert len(told) == 1, told


def test_a_call_that_ends_late_says_what_stood_in_its_way_last() -> None:
    for code, kind in ((Code.NO_QUORUM, errors.NoQuorum), (Code.BUSY, errors.Unavailable)):
        story = Story()
        call = GetCall("acc", [KEYS[0]])
        story.router.begin(call, story.now, story.now + 10 * SECOND)
        for _ in range(1_100):
            for asked in story.of(A, Get):
                story.router.on_reply(A, Failed(asked.id, code, "partition 0 is LOST"), story.now)
            story.wait(10)
        assert type(call.error) is kind
