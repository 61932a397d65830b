"""Faults in cuts: of the withheld answers, of what is noted when an era is entered, of what is kept and carried."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.data.cuts import Cuts
from engine.messages import EnterEra, Finish
from engine.protocol.requests import KeepCut, Request
from engine.turn.events import SessionId
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, around, replace
from wal import records as r
from wal.ids import NO_ERA, NO_VERSION, Era, Fragment, NodeId

CUTS = Faults()


def _cuts(machine: Machine) -> Cuts:
    assert machine.node is not None
    return machine.node.cuts


@CUTS.fault("11")
def answers_are_given_while_an_era_is_entered(machine: Machine) -> None:
    """A node answers its clients as soon as it has entered an era, while others have yet to."""
    assert machine.node is not None
    desk = machine.node.desk

    def flush(original: Callable[[], None]) -> None:
        desk.withholding = False
        original()

    around(desk, "flush", flush)


@CUTS.fault("11")
def a_write_is_of_the_era_in_which_it_was_issued(machine: Machine) -> None:
    """A write that does not count yet when a cut is taken is in it, when it does."""
    assert machine.node is not None
    core, issued = machine.node.core, dict[tuple[Fragment, int], Era]()

    def log_unapplied(original: Callable[[r.Record], None], record: r.Record) -> None:
        if isinstance(record, r.Update):
            issued.update(((write.fragment, write.start), core.era) for write in record.writes)
        original(record)

    def keep(original: Callable[[r.Write, Era], None], write: r.Write, era: Era) -> None:
        original(write, issued.pop((write.fragment, write.start), era))

    around(core, "log_unapplied", log_unapplied)
    around(_cuts(machine), "keep", keep)


@CUTS.fault("11")
def what_is_prepared_is_not_noted(machine: Machine) -> None:
    """A cut is read although a transaction of before it has no outcome yet."""
    replace(_cuts(machine), "in_doubt", tuple)


@CUTS.fault("11")
def nothing_is_kept_before_a_cut_is_handed_out(machine: Machine) -> None:
    """What is overwritten between the entering of an era and the cut is not kept."""
    cuts = _cuts(machine)

    def keep(original: Callable[..., None], write: r.Write, era: Era) -> None:
        lease = cuts.leases.get(cuts.core.era)
        if lease is None or lease.sealed:
            original(write, era)

    around(cuts, "keep", keep)


@CUTS.fault("11")
def a_range_at_a_cut_is_marked_as_it_stands_now(machine: Machine) -> None:
    """Who has read a range at a cut is told where it stands by then, with what has come since."""
    cuts = _cuts(machine)

    def mark(_: Era, name: Fragment) -> int:
        return cuts._lwm(name)

    replace(cuts.kept, "mark", mark)


@CUTS.fault("11")
def a_range_at_a_cut_is_marked_as_far_as_anything_was_issued(machine: Machine) -> None:
    """Who has read a range at a cut is told a counter that is above such as have yet to be applied."""
    assert machine.node is not None
    cuts, fragments = _cuts(machine), machine.node.core.replica.fragments

    def lwm(name: Fragment) -> int:
        return fragments[name].counter.hwm if name in fragments else 0

    replace(cuts.kept, "_lwm", lwm)


@CUTS.fault("11")
def an_outcome_is_of_the_era_in_which_it_comes(machine: Machine) -> None:
    """A transaction is taken to be of the era that its participant has when it hears of the outcome."""
    assert machine.node is not None
    participant = machine.node.participant

    def on_finish(original: Callable[..., None], sender: NodeId, message: Finish) -> None:
        original(sender, msgspec.structs.replace(message, era=participant.core.era))

    around(participant, "on_finish", on_finish)


@CUTS.fault("11")
def an_era_that_nobody_knows_is_guessed(machine: Machine) -> None:
    """A transaction that was recovered is taken to be newer than every cut that was taken while it was prepared."""
    cuts = _cuts(machine)

    def outcome(original: Callable[..., None], prepare: r.Prepare | None, era: Era, *, commit: bool) -> None:
        original(prepare, cuts.core.era if era == NO_ERA else era, commit=commit)

    around(cuts, "outcome", outcome)


@CUTS.fault("11")
def a_reader_lets_go_of_what_others_have_ended(machine: Machine) -> None:
    """Of those who let go of their cuts in one request, one lets go of what another has ended by then."""
    assert machine.node is not None
    cuts, handlers = _cuts(machine), machine.node._on_request

    def on_keep(session: SessionId, request: Request) -> None:
        assert isinstance(request, KeepCut)
        lease = cuts.leases.get(request.cut)
        cuts.on_keep(session, request)
        if request.others and request.over and lease is not None:
            cuts._let_go(lease, request.holder)

    handlers[KeepCut] = on_keep


@CUTS.fault("11")
def a_cut_outlives_its_primary(machine: Machine) -> None:
    """A node reads at a cut what it leads only since then, and what was overwritten before is what it finds."""
    cuts = _cuts(machine)

    def lose(_: int) -> None:
        pass

    replace(cuts, "lose", lose)


@CUTS.fault("11")
def a_round_outlives_a_handover(machine: Machine) -> None:
    """A cut is taken on over a step that moves a primary, and who leads since enters the era as if nobody had before."""
    assert machine.node is not None
    rounds, order = machine.node.rounds, machine.node.order_of_steps

    def on_enter(original: Callable[..., None], sender: NodeId, message: EnterEra) -> None:
        original(sender, msgspec.structs.replace(message, placed=NO_VERSION))

    around(_cuts(machine), "on_enter", on_enter)
    order[:] = [(takes_effect, why) for takes_effect, why in order if takes_effect != rounds.step]


@CUTS.fault("11")
def a_delete_is_forgotten_while_somebody_reads_the_past(machine: Machine) -> None:
    """A checkpoint drops the tombstones of fragments of which a cut keeps rows."""
    assert machine.node is not None
    machine.node.core.replica.kept = ()
