"""What may go: as little as the cap asks for, never the checkpoint's, pins last."""

from __future__ import annotations

from wal.retention import Trim, plan
from wal.segment import SegmentInfo

MB = 1 << 20


def segments(count: int, size: int = MB) -> list[SegmentInfo]:
    """Sealed segments of ten records each, of a second each."""
    return [
        SegmentInfo(
            name=f"{10 * at + 1:020d}.wal",
            first_lsn=10 * at + 1,
            last_lsn=10 * at + 10,
            bytes=size,
            sealed=True,
            first_time_ms=0,
            last_time_ms=1_000 * (at + 1),
        )
        for at in range(count)
    ]


def trim(
    count: int,
    *,
    cap: int,
    checkpoint: int,
    pins: dict[str, int] | None = None,
    room: int = 0,
    older_than_ms: int = 0,
) -> Trim | None:
    """The plan for `count` sealed segments beside a live and a prepared one, all of one megabyte."""
    return plan(
        segments(count),
        bytes_now=(count + 2) * MB,
        bytes_max=cap * MB,
        pin_bytes=room * MB,
        older_than_ms=older_than_ms,
        checkpoint_lsn=checkpoint,
        pins=pins or {},
    )


def test_a_log_within_its_cap_is_kept_for_history_whatever_the_checkpoint() -> None:
    assert trim(5, cap=7, checkpoint=50) is None


def test_it_is_trimmed_only_as_far_as_the_cap_asks() -> None:
    assert trim(5, cap=5, checkpoint=50) == Trim(2, 21, ())


def test_the_checkpoint_s_segments_never_go_even_if_the_cap_is_exceeded() -> None:
    assert trim(5, cap=3, checkpoint=25) == Trim(2, 21, ())
    assert trim(5, cap=3, checkpoint=9) is None


def test_a_checkpoint_at_a_segment_s_last_record_lets_it_go() -> None:
    assert trim(5, cap=3, checkpoint=10) == Trim(1, 11, ())


def test_pins_give_way_to_the_cap_and_only_those_that_stand_in_the_way() -> None:
    pins = {"late": 21, "early": 5, "edge": 20}
    assert trim(5, cap=5, checkpoint=50, pins=pins) == Trim(2, 21, ("early", "edge"))
    assert trim(5, cap=7, checkpoint=50, pins=pins) is None


def test_what_is_pinned_may_take_the_room_that_is_kept_for_it_and_nothing_else_may() -> None:
    assert trim(5, cap=7, checkpoint=50, room=2) == Trim(2, 21, ()), "nobody needs them"
    assert trim(5, cap=7, checkpoint=50, room=2, pins={"n2": 1}) is None, "all of it is needed, and there is room"
    assert trim(5, cap=7, checkpoint=50, room=2, pins={"n2": 15}) == Trim(1, 11, ()), "the first is not"
    assert trim(5, cap=6, checkpoint=50, room=2, pins={"n2": 1}) == Trim(1, 11, ("n2",)), "the cap is hard"


def test_what_is_too_old_goes_although_there_is_room_but_not_what_is_pinned_or_needed() -> None:
    assert trim(5, cap=100, checkpoint=50, older_than_ms=3_000) == Trim(2, 21, ())
    assert trim(5, cap=100, checkpoint=50, older_than_ms=1_000) is None
    assert trim(5, cap=100, checkpoint=15, older_than_ms=9_000) == Trim(1, 11, ())
    assert trim(5, cap=100, checkpoint=50, older_than_ms=9_000, pins={"supply n2": 15}) == Trim(1, 11, ())
    assert trim(5, cap=5, checkpoint=50, older_than_ms=9_000, pins={"supply n2": 15}) == Trim(2, 21, ("supply n2",))
