"""Faults in how a map is chosen, and in what a new primary owes before it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from engine.cluster import attempt, exchange
from engine.cluster import orders as orders_that_stand
from engine.cluster import steps as steps_of_maps
from engine.messages import (
    Accept,
    AcceptStep,
    Announce,
    Commit,
    CopyReport,
    Follows,
    HandOver,
    Promise,
    Propose,
    ProposeStep,
    SetBaseline,
)
from rebalance import beginning, lives, promotion
from rebalance import plan as assignment
from rebalance import steps as step_rules
from rebalance import survivors as believed
from rebalance import table as topologies
from rebalance.issuing import Again
from rebalance.messages import AskTail, Tail
from rebalance.partition import LocalPartition, PartitionState, Role
from rebalance.rule import NewMap, Rule
from rebalance.steps import Step
from rebalance.table import Placement, Topology
from rebalance.telling import tail_of
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, around, during, replace, swapped
from tests.sim.planted.words import promise_not_logged
from wal import records as r
from wal.ids import NO_BALLOT, Ballot, NodeId, Version

ELECTIONS = Faults()

# The exchange.


@ELECTIONS.fault("2")
def own_map_instead_of_the_accepted_one(machine: Machine) -> None:
    """A coordinator proposes a map of its own although a promise told it of one that may be committed already."""
    assert machine.node is not None

    def on_promise(original: Callable[..., None], sender: NodeId, message: Promise) -> None:
        original(sender, msgspec.structs.replace(message, accepted_ballot=NO_BALLOT, accepted=b""))

    around(machine.node.exchange, "on_promise", on_promise)


@ELECTIONS.fault("2")
def any_accepted_map_instead_of_the_last(machine: Machine) -> None:
    """Of several maps that were accepted, the first that a coordinator hears of is proposed again."""
    assert machine.node is not None

    def on_promise(original: Callable[..., None], sender: NodeId, message: Promise) -> None:
        ballot = Ballot(1, "") if message.accepted else NO_BALLOT
        original(sender, msgspec.structs.replace(message, accepted_ballot=ballot))

    around(machine.node.exchange, "on_promise", on_promise)


@ELECTIONS.fault("2")
def any_life_of_a_voter_accepts(machine: Machine) -> None:
    """An accept counts for the name that it comes from, on whatever disk, and whatever that disk has forgotten."""
    exchanging = _exchange(machine)
    during(machine, exchanging, "on_accept", exchange, "may_vote", _always)
    during(machine, exchanging, "on_propose", exchange, "disk_of", lambda *_: machine.allocation)
    assert machine.node is not None
    around(machine.node.names, "hear", lambda original, *said: original(*said) or True)


@ELECTIONS.fault("2")
def claims_forgotten_in_a_restart(machine: Machine) -> None:
    """What others had claimed is kept in memory alone: after a loss of power, a disk of long ago passes for today's."""
    assert machine.node is not None
    held = machine.node.claims
    held._heard, held._sure, held._logged = {}, {}, {}


@ELECTIONS.fault("10")
def claims_outlive_the_map_that_settled_them(machine: Machine) -> None:
    """What a map settled when it let a node in again is held against its copies by whoever missed it."""
    assert machine.node is not None
    held = machine.node.claims

    def settle(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        held._voided_by = Version(1 << 30, 0)
        original(*args, **kwargs)

    around(held, "_void_older", settle)
    during(machine, _exchange(machine), "_try_propose", believed, "_that_count", lambda _, __, heard: heard)


@ELECTIONS.fault("2")
def accept_below_the_promise(machine: Machine) -> None:
    """A node answers a proposal below its promise, as if no higher ballot had been promised."""
    assert machine.node is not None
    core, node = machine.node.core, machine.node

    def on_propose(original: Callable[..., None], sender: NodeId, message: Propose) -> None:
        promised = core.replica.promised
        if message.after == core.version:
            core.replica.promised = (message.after, NO_BALLOT)
        original(sender, message)
        core.replica.promised = max(promised, core.replica.promised)

    around(node.exchange, "on_propose", on_propose)


@ELECTIONS.fault("1, 2")
def a_minority_may_commit(machine: Machine) -> None:
    """One voter is taken for a majority, by the exchange and by whoever asks whether there is a quorum."""
    during(machine, machine.node, "turn", Topology, "majority", property(lambda topology: 1))


@ELECTIONS.fault("1, 2")
def commit_with_one_accept(machine: Machine) -> None:
    """The first accept commits a map, though promises still need a majority."""
    assert machine.node is not None

    def on_accept(original: Callable[..., None], sender: NodeId, message: Accept) -> None:
        with swapped(Topology, "majority", property(lambda topology: 1)):
            original(sender, message)

    around(machine.node.exchange, "on_accept", on_accept)


@ELECTIONS.fault("2")
def a_promise_for_one_version(machine: Machine) -> None:
    """A voter takes its promise for one about the next version alone, and a coordinator goes on with light steps."""
    assert machine.node is not None
    core, node = machine.node.core, machine.node

    def forgetful(original: Callable[..., None], sender: NodeId, message: Announce | Propose) -> None:
        if core.replica.promised[0] < message.after == core.version:
            core.replica.promised = (message.after, NO_BALLOT)
        original(sender, message)

    around(node.exchange, "on_announce", forgetful)
    around(node.exchange, "on_propose", forgetful)


@ELECTIONS.fault("2")
def a_step_under_a_ballot_of_which_nobody_knows(machine: Machine) -> None:
    """A coordinator proposes a light step under a new ballot, without having asked for promises."""
    assert machine.node is not None
    exchange, steps = machine.node.exchange, machine.node.steps

    def begin(original: Callable[..., None], step: Step) -> None:
        assert exchange.standing is not None
        exchange.standing = Ballot(exchange.highest_seen + 100, exchange.standing.node)
        original(step)

    around(steps, "begin", begin)


@ELECTIONS.fault(
    "2",
    harmless="""Whoever has proposed it is a member in the life that the map lists, promises as all of them do, and counts
    no accepts of it any more: nobody has heard, and nobody will hear, that it is decided.""",
    both="a-ballot-stands-beside-one-that-goes-on",
)
def a_ballot_stands_whatever_was_accepted(machine: Machine) -> None:
    """Whoever asks all for their promises makes steps under them, although one of them has accepted a map before."""
    assert machine.node is not None

    def on_follows(original: Callable[..., bool], sender: NodeId, message: Follows) -> bool:
        return original(sender, msgspec.structs.replace(message, accepted=False))

    around(machine.node.steps.ballot, "on_follows", on_follows)


@ELECTIONS.fault("2")
def a_ballot_stands_beside_one_that_goes_on(machine: Machine) -> None:
    """A ballot stands though something was accepted before, and whoever proposed that counts accepts of it all the same."""
    a_ballot_stands_whatever_was_accepted(machine)
    assert machine.node is not None
    steps = machine.node.steps

    def on_accept(original: Callable[..., None], sender: NodeId, message: AcceptStep) -> None:
        attempt, stands = steps._attempt, steps.exchange.standing
        if attempt is not None and stands is None:
            steps.exchange.standing = attempt.ballot
        original(sender, message)
        steps.exchange.standing = stands

    around(steps, "on_accept", on_accept)


@ELECTIONS.fault("2")
def a_ballot_stands_before_it_was_promised(machine: Machine) -> None:
    """Whoever asks all for their promises counts on them before they have answered."""
    assert machine.node is not None
    standing, core, exchanging = machine.node.steps.ballot, machine.node.core, machine.node.exchange

    def stand(original: Callable[[], bool]) -> bool:
        asks = original()
        if asks and standing._asking is not None and exchanging.standing is None:
            exchanging.standing = standing._asking.ballot
            exchanging.all_hand_over = exchanging.all_admit = True
            core.vote(r.Promised(core.version, standing._asking.ballot))
        return asks

    around(standing, "stand", stand)


@ELECTIONS.fault("2")
def a_ballot_goes_on_under_other_voters(machine: Machine) -> None:
    """A ballot that was promised by those who voted before goes on under a map by which others do."""
    assert machine.node is not None
    exchanging = machine.node.exchange

    def goes_on(original: Callable[[Ballot], None], ballot: Ballot) -> None:
        original(ballot)
        exchanging.standing = ballot

    around(machine.node.steps.ballot, "goes_on", goes_on)


@ELECTIONS.fault("1, 2")
def a_step_is_taken_before_it_is_decided(machine: Machine) -> None:
    """A voter that accepts a light step goes by it at once, and lets copies go that may be relied on yet."""
    assert machine.node is not None
    exchange, steps = machine.node.exchange, machine.node.steps

    def on_propose(original: Callable[..., None], sender: NodeId, message: ProposeStep) -> None:
        original(sender, message)
        if exchange.accepted[0] == message.ballot and (made := exchange.making.what_it_makes(message.step)) is not None:
            exchange.adopt(made.map, made.topology, step=made.step)

    around(steps, "on_propose", on_propose)


@ELECTIONS.fault("1")
def who_joins_by_a_step_counts_at_once(machine: Machine) -> None:
    """A light step takes the copies of a node that it lets in for whole, as they were when the node left."""
    assert machine.node is not None
    right = step_rules.light_step

    def step(*args: Any, **more: Any) -> Step | None:
        made = right(*args, **more)
        if made is None or not made.joins:
            return made
        names = [m.node for m in made.joins]
        placed = [
            (n, msgspec.structs.replace(p, in_sync=(*p.in_sync, *(o for o in p.owners if o in names))))
            for n, p in made.placements
        ]
        return msgspec.structs.replace(made, placements=placed)

    during(machine, machine.node.steps, "take", steps_of_maps, "light_step", step)


@ELECTIONS.fault("10")
def what_other_lives_claimed_outlives_a_step(machine: Machine) -> None:
    """What earlier lives of a node had claimed is held against it after a light step has let it in."""
    assert machine.node is not None
    claims = machine.node.claims

    def step(original: Callable[[], Any]) -> Any:
        heard, sure = dict(claims._heard), dict(claims._sure)
        joined = original()
        claims._heard, claims._sure = heard | claims._heard, sure | claims._sure
        return joined

    around(claims, "step", step)


@ELECTIONS.fault("10")
def whoever_has_what_is_lost_joins_by_a_step(machine: Machine) -> None:
    """A node is let in by a light step although partitions are LOST, so that nobody asks what it has of them."""
    assert machine.node is not None
    during(machine, machine.node.steps, "take", steps_of_maps, "may_join", lambda *_: True)
    during(machine, machine.node.steps, "on_propose", step_rules, "may_join", lambda *_: True)
    during(machine, machine.node.steps, "on_commit", step_rules, "may_join", lambda *_: True)


@ELECTIONS.fault("1, 4")
def sums_say_nothing(machine: Machine) -> None:
    """A copy says that it adds up to what all others add up to, whatever it has."""
    assert machine.node is not None

    def sums(original: Callable[..., Iterator[int]], into: list[tuple[int, int]]) -> Iterator[int]:
        yield from original(into)
        into[:] = [(number, 1) for number, _ in into]

    around(machine.node.exchange.reporting, "_sums", sums)


def _with_survivors(machine: Machine, survivors: Callable[..., list[NodeId]]) -> None:
    """Choose the copies that count by another rule; `survivors` gets the right one first."""
    assert machine.node is not None
    right = believed.survivors_of

    def chosen(*args: Any, **more: Any) -> list[NodeId]:
        return survivors(right, *args, **more)

    during(machine, machine.node.exchange, "_try_propose", assignment, "survivors_of", chosen)


@ELECTIONS.fault("1, 4")
def owner_by_highest_counter(machine: Machine) -> None:
    """The copies with the highest counters count as in-sync, whether or not they belong to the in-sync set."""

    def survivors(
        right: Any, placement: Placement, trusted: Mapping[NodeId, None], vouched: Any, reports: Any, **_: Any
    ) -> Any:
        here = [n for n in placement.owners if n in trusted]
        total = {n: _total(reports, n) for n in here}
        return [n for n in here if total[n] == max(total.values())]

    _with_survivors(machine, survivors)


def _total(reports: Mapping[str, Mapping[NodeId, CopyReport]], node: NodeId) -> int:
    return sum(by_node[node].highest for by_node in reports.values() if node in by_node)


@ELECTIONS.fault("1")
def lost_partition_revived(machine: Machine) -> None:
    """Where no in-sync copy is left, the MOVING ones are promoted instead of the partition being LOST."""

    def survivors(
        right: Any, placement: Placement, trusted: Mapping[NodeId, None], *rest: Any, **more: Any
    ) -> list[NodeId]:
        found: list[NodeId] = right(placement, trusted, *rest, **more)
        return found or [n for n in placement.owners if n in trusted]

    _with_survivors(machine, survivors)


@ELECTIONS.fault(
    "1, 4",
    harmless="""A copy lacks such updates only if its disk was wiped or set back, and then its name or its claims
    betray it.""",
    both="lost-disk-passes-though-it-lacks-everything",
)
def copies_that_lack_acknowledged_updates_stay(machine: Machine) -> None:
    """An in-sync copy that reports less than is known to be everywhere stays in the in-sync set."""

    def survivors(right: Any, placement: Placement, trusted: Any, vouched: Any, reports: Any, **more: Any) -> list[NodeId]:
        blind = {
            namespace: {node: msgspec.structs.replace(report, stable=0) for node, report in by_node.items()}
            for namespace, by_node in reports.items()
        }
        found: list[NodeId] = right(placement, trusted, vouched, blind, **more)
        return found

    _with_survivors(machine, survivors)


@ELECTIONS.fault("9")
def surplus_copy_dropped_at_once(machine: Machine) -> None:
    """A copy that is not wanted any more goes before the one that replaces it is in sync."""
    assert machine.node is not None
    right = assignment._place

    def place(
        old: Placement,
        ideal: Sequence[NodeId],
        copies: int,
        survivors: list[NodeId],
        leaders: list[NodeId],
        **more: Any,
    ) -> Any:
        wanted = [n for n in survivors if n in ideal or n == old.owners[0]] or survivors
        return right(old, ideal, copies, wanted, [n for n in leaders if n in wanted] or wanted, **more)

    during(machine, machine.node.exchange, "_try_propose", assignment, "_place", place)
    during(machine, machine.node.steps, "take", assignment, "_place", place)


@ELECTIONS.fault(
    "1",
    harmless="""It begins its life with less than the disk of that name had claimed in its heartbeats and answers,
    and so passes for one that was set back.""",
    both="lost-disk-passes-whatever-it-says",
)
def wiped_disk_passes_as_in_sync(machine: Machine) -> None:
    """A wiped disk takes the name of the one before it, so that its empty copies pass for those it replaced."""
    assert machine.node is not None
    machine.allocation = machine.node.core.allocation = f"{machine.name}-disk1"


@ELECTIONS.fault("1")
def set_back_disk_passes_as_in_sync(machine: Machine) -> None:
    """Nobody minds that a disk begins a life with less than an earlier one had claimed."""
    assert machine.node is not None

    def wrapper(original: Callable[..., None], *args: Any) -> None:
        with (
            swapped(believed, "set_back", _never),
            swapped(attempt, "set_back", _never),
            swapped(lives, "set_back", _never),
        ):
            original(*args)

    around(machine.node.exchange, "_try_propose", wrapper)


@ELECTIONS.fault("2, 6")
def promise_not_logged_and_nobody_minds(machine: Machine) -> None:
    """A promise is not written down, and a life counts that has less on its disk than an earlier one had promised."""
    promise_not_logged(machine)
    during(machine, _exchange(machine), "on_accept", lives, "set_back", _never)
    set_back_disk_passes_as_in_sync(machine)


@ELECTIONS.fault("1")
def lost_disk_passes_whatever_it_says(machine: Machine) -> None:
    """A wiped disk keeps its name, and nobody minds that it begins with less than it had claimed."""
    wiped_disk_passes_as_in_sync(machine)
    set_back_disk_passes_as_in_sync(machine)


@ELECTIONS.fault("1")
def lost_disk_passes_though_it_lacks_everything(machine: Machine) -> None:
    """A wiped disk keeps its name, nobody minds what it claims, nor that it lacks what is known to be everywhere."""
    lost_disk_passes_whatever_it_says(machine)
    copies_that_lack_acknowledged_updates_stay(machine)


@ELECTIONS.fault("2")
def formed_without_consent(machine: Machine) -> None:
    """Whoever is told to form a cluster does so at once, and tells those whom it names."""
    assert machine.node is not None
    forming, core = machine.node.formation, machine.node.core

    def begin(original: Callable[..., None], order: Any) -> None:
        encoded = topologies.encode(order.first)
        others = tuple(n for n in order.nodes if n != core.node)
        core.send(others, Commit(order.first.version, encoded))
        forming.exchange.adopt(order.first, encoded)
        forming._end("")

    around(forming, "_begin", begin)


@ELECTIONS.fault("10")
def an_old_order_is_carried_out(machine: Machine) -> None:
    """An order to change the baseline is kept until a map has that very baseline, whatever was ordered since."""
    assert machine.node is not None
    orders = machine.node.membership.orders

    def standing(original: Callable[[Topology, list[str]], Any], topology: Topology, here: list[str]) -> Any:
        if orders._baseline is not None and tuple(nodes := orders._baseline[0].nodes) != topology.baseline:
            orders._baseline = SetBaseline(nodes, topology.baselined), orders.core.now
        return original(topology, here)

    around(orders, "standing", standing)


@ELECTIONS.fault("10")
def a_baseline_that_cannot_decide_is_tried(machine: Machine) -> None:
    """An order is carried out with whoever is there, also where they could decide nothing by the map that it makes."""
    for module in (orders_that_stand, attempt):
        during(machine, machine.node, "turn", module, "can_decide", lambda baseline, here: True)


@ELECTIONS.fault("10")
def only_members_vote(machine: Machine) -> None:
    """Whoever is in the map votes and nobody else, so that a stop takes a vote away."""
    during(machine, machine.node, "turn", Topology, "voters", property(lambda t: tuple(m.node for m in t.members)))


@ELECTIONS.fault("10")
def whoever_never_answers_is_waited_for(machine: Machine) -> None:
    """A copy that beats and does not answer stays in sync, and every write waits for it."""
    assert machine.node is not None
    replace(machine.node.membership.pace, "to_set_aside", lambda *_: {})


def _exchange(machine: Machine) -> exchange.Exchange:
    assert machine.node is not None
    return machine.node.exchange


def _always(*_: Any) -> bool:
    return True


def _never(*_: Any) -> bool:
    return False


@ELECTIONS.fault("10")
def own_absence_taken_for_the_silence_of_others(machine: Machine) -> None:
    """A node whose process was stopped, or whose clock jumped, suspects everyone whom it could not hear."""
    assert machine.node is not None
    detector = machine.node.detector

    def listen(original: Callable[[], None]) -> None:
        detector._last_look = 0
        original()

    around(detector, "listen", listen)


@ELECTIONS.fault(
    "1",
    harmless="""A read needs the word of every in-sync copy; whoever was made primary in between is one of them and
    has left the version, so that it does not give its word.""",
)
def reported_copy_goes_on_confirming(machine: Machine) -> None:
    """A node that sent its single map still confirms the primary of the version that is being left."""
    assert machine.node is not None
    core, reads = machine.node.core, machine.node.reads

    def on_confirm(original: Callable[..., None], sender: NodeId, message: Any) -> None:
        frozen, core.frozen = core.frozen, False
        try:
            original(sender, message)
        finally:
            core.frozen = frozen

    around(reads, "on_confirm", on_confirm)


@ELECTIONS.fault(
    "5",
    harmless="""The transactions that are interrupted meet what they meet when a primary fails: what is prepared is
    kept by the next primary, what is not loses its locks and conflicts.""",
)
def handover_without_draining(machine: Machine) -> None:
    """A node reports for a handover at once, while transactions on the partitions go on."""
    assert machine.node is not None
    replace(machine.node.exchange, "_drained", lambda handover: [])


@ELECTIONS.fault("2")
def announce_answered_below_the_promise(machine: Machine) -> None:
    """A node promises a lower ballot after a higher one."""
    assert machine.node is not None
    core = machine.node.core

    def on_announce(original: Callable[..., None], sender: NodeId, message: Announce) -> None:
        if message.after == core.version:
            core.replica.promised = (message.after, NO_BALLOT)
        original(sender, message)

    around(machine.node.exchange, "on_announce", on_announce)


# Promotion.


def _with_beginning(machine: Machine, begin: Callable[..., Any]) -> None:
    """Begin an epoch by another rule; `begin` gets the right one first."""
    assert machine.node is not None
    right = beginning.beginning

    def chosen(local: LocalPartition, state: PartitionState, again: Again) -> Any:
        return begin(partial(right, again=again), local, state)

    during(machine, machine.node.promotion, "_begin", promotion, "beginning", chosen)


@ELECTIONS.fault("3, 4")
def epoch_begins_at_max_plus_1(machine: Machine) -> None:
    """A new primary begins its epoch after its highest counter, as a log without gaps would, and issues nothing again."""

    def begin(right: Any, local: LocalPartition, state: PartitionState) -> tuple[r.EpochStart, list[r.Record]]:
        start, own = right(local, state)
        firsts = [(ns, state.fragments[ns].counter.highest_applied + 1) for ns, _ in start.firsts]
        return r.EpochStart(start.partition, start.epoch, firsts), [o for o in own if isinstance(o, r.NoOp | r.Prepare)]

    _with_beginning(machine, begin)


@ELECTIONS.fault("3, 4")
def gap_closed_without_a_record(machine: Machine) -> None:
    """A new primary closes its gaps in memory: neither the log nor the copies hear of it."""
    assert machine.node is not None
    replica = machine.node.core.replica
    closed: list[r.Record] = []

    def begin(right: Any, local: LocalPartition, state: PartitionState) -> tuple[r.EpochStart, list[r.Record]]:
        start, own = right(local, state)
        closed.extend(o for o in own if isinstance(o, r.NoOp))
        return start, [o for o in own if not isinstance(o, r.NoOp)]

    _with_beginning(machine, begin)

    def finish(original: Callable[..., None], local: LocalPartition, answers: Any) -> None:
        original(local, answers)
        while closed:
            replica.apply(closed.pop())

    around(machine.node.promotion, "_finish", finish)


@ELECTIONS.fault("3, 10")
def gaps_left_open(machine: Machine) -> None:
    """A new primary does not close the gaps that are left below what it has."""

    def begin(right: Any, local: LocalPartition, state: PartitionState) -> tuple[r.EpochStart, list[r.Record]]:
        start, own = right(local, state)
        return start, [o for o in own if not isinstance(o, r.NoOp)]

    _with_beginning(machine, begin)


@ELECTIONS.fault("5")
def prepared_counters_closed_as_gaps(machine: Machine) -> None:
    """A new primary forgets the transactions in doubt, and closes the counters that they hold."""

    def begin(right: Any, local: LocalPartition, state: PartitionState) -> tuple[r.EpochStart, list[r.Record]]:
        kept, state.prepared = state.prepared, {}
        start, own = right(local, state)
        state.prepared = kept
        return start, own

    _with_beginning(machine, begin)


@ELECTIONS.fault("1, 4")
def nobody_is_asked_for_the_tail(machine: Machine) -> None:
    """A new primary begins its epoch from what it has, without asking the other survivors what it lacks."""
    assert machine.node is not None
    node = machine.node

    def begin(original: Callable[..., None], partitions: Any) -> None:
        needed = {local.number: local.needed for local in partitions}
        for local in partitions:
            local.needed = ()
        original(partitions)
        for local in partitions:
            local.needed = needed[local.number]

    around(node.promotion, "begin", begin)


def _activate_once(promoting: promotion.Promotion) -> None:
    """What serves already is not made to serve when its promotion is done."""

    def activated(original: Callable[..., None], local: LocalPartition) -> None:
        if not local.active:
            original(local)

    around(promoting, "_activated", activated)


@ELECTIONS.fault("1, 4")
def primary_serves_before_its_promotion_is_done(machine: Machine) -> None:
    """A new primary serves as soon as the map names it, before it has asked the survivors."""
    assert machine.node is not None
    promoting = machine.node.promotion
    _activate_once(promoting)

    def begin(original: Callable[..., None], partitions: Sequence[LocalPartition]) -> None:
        original(partitions)
        for local in partitions:
            promoting._activated(local)

    around(promoting, "begin", begin)


@ELECTIONS.fault("1, 4")
def primary_serves_before_its_epoch_is_on_the_copies(machine: Machine) -> None:
    """A new primary serves as soon as it has logged its epoch, before the copies have answered for it."""
    assert machine.node is not None
    promoting = machine.node.promotion
    _activate_once(promoting)

    def finish(original: Callable[..., None], local: LocalPartition, answers: Any) -> None:
        original(local, answers)
        promoting._activated(local)

    around(promoting, "_finish", finish)


@ELECTIONS.fault("1, 4")
def primary_that_a_step_names_serves_at_once(machine: Machine) -> None:
    """A primary that a handover step names serves as soon as it has the step, whoever has yet to hear of it."""
    assert machine.node is not None
    promoting = machine.node.promotion
    _activate_once(promoting)

    def step(original: Callable[..., None], new: NewMap) -> None:
        original(new)
        for local in new.promoted:
            promoting._activated(local)

    _in_steps(machine, promoting, "step", step)


@ELECTIONS.fault("10")
def copies_answer_before_they_go_by_the_step(machine: Machine) -> None:
    """Who is asked by the primary that a step is about to name answers at once, and the new primary goes by that."""
    assert machine.node is not None
    core, promoting = machine.node.core, machine.node.promotion
    heard: list[tuple[NodeId, Tail]] = []
    take = promoting.on_tail

    def on_ask_tail(original: Callable[..., None], sender: NodeId, message: AskTail) -> None:
        early = [c.partition for c in message.copies if core.local[c.partition].placement.primary != sender]
        if early:
            core.send(sender, Tail(message.version, [tail_of(core.replica.partition(number)) for number in early]))
        else:
            original(sender, message)

    def on_tail(original: Callable[..., None], sender: NodeId, message: Tail) -> None:
        heard.append((sender, message))
        original(sender, message)

    def step(original: Callable[..., None], new: NewMap) -> None:
        original(new)
        if new.promoted:
            for said in heard:
                take(*said)
            heard.clear()

    around(promoting, "on_ask_tail", on_ask_tail)
    around(promoting, "on_tail", on_tail)
    _in_steps(machine, promoting, "step", step)


@ELECTIONS.fault("2")
def primary_serves_on_after_it_was_moved(machine: Machine) -> None:
    """A primary that a handover step moves elsewhere goes on as if it had not been."""
    assert machine.node is not None
    node = machine.node

    def step(original: Callable[..., None], new: NewMap) -> None:
        original(new)
        for local in new.changed:
            if local.role is Role.BACKUP and local.number in led:
                local.role = Role.PRIMARY

    led: dict[int, None] = {}

    def hand_over(original: Callable[..., None], sender: NodeId, message: HandOver) -> None:
        led.update(dict.fromkeys(message.partitions))
        original(sender, message)

    around(node.handovers, "on_hand_over", hand_over)
    _in_steps(machine, node.promotion, "step", step)


@ELECTIONS.fault("2")
def a_copy_is_let_go_before_its_successor_serves(machine: Machine) -> None:
    """A copy that is not wanted any more goes whether or not its partition's primary, who asks it, serves by then."""
    assert machine.node is not None
    reasons, core = machine.node.membership.reasons, machine.node.core

    def wanted_moves(original: Callable[..., Any], topology: Topology, present: list[str]) -> Any:
        reasons.serves = {m.node: core.version for m in topology.members}
        return original(topology, present)

    around(reasons, "_wanted_moves", wanted_moves)


def _in_steps(machine: Machine, rule: Rule, name: str, wrapper: Callable[..., None]) -> None:
    """Wrap what a rule does when a handover step takes effect: the order of these is a list of methods, made before."""
    assert machine.node is not None
    order = machine.node.order_of_handovers
    at = next(i for i, (takes_effect, _) in enumerate(order) if takes_effect == getattr(rule, name))
    around(rule, name, wrapper)
    order[at] = (getattr(rule, name), order[at][1])
