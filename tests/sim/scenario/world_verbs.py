"""What happens to the world in a story: processes, power, disks, network, clocks, members, and time."""

from __future__ import annotations

from itertools import permutations

from engine.protocol.requests import Failed
from rebalance.namespaces import NOT_SAID
from tests.sim.machine import MS, PPM, Machine, all_of
from tests.sim.network import Pair
from tests.sim.scenario import holds
from tests.sim.scenario.language import Statement
from tests.sim.scenario.matching import KINDS, Wanted
from tests.sim.scenario.registry import MANY, VERBS, verb
from tests.sim.scenario.stage import Stage, Unmet, time_of
from tests.sim.violation import About
from tests.sim.world import SECOND
from tests.support.memory_disk import SECTOR
from wal.ids import NO_VERSION, fragment_name

COMMAND_NS = 5 * SECOND
SYNC_NS_MAX = 3_600 * SECOND

# What is held.


@verb("hold", "KIND [TX]", least=1, most=2, options="from to ns partition n")
def hold(stage: Stage, statement: Statement) -> None:
    """Messages of a kind wait, from now on, until they are released."""
    _rule(stage, statement, drop=False)


@verb("drop", "KIND [TX]", least=1, most=2, options="from to ns partition n")
def drop(stage: Stage, statement: Statement) -> None:
    """Messages of a kind are lost: those that are held now, and those that come."""
    wanted = _wanted(stage, statement)
    held = [h for h in stage.world.network.held if holds.is_meant(h, wanted, stage.batches)]
    stage.world.network.discard(held)
    _rule(stage, statement, drop=True)


@verb("release", "[all | KIND [TX]]", most=2, options="from to ns partition")
def release(stage: Stage, statement: Statement) -> None:
    """End what was held or dropped by these words, and send on what waited; without words, all of it."""
    everything = not statement.options and statement.words in ([], ["all"])
    wanted = holds.EVERYTHING if everything else _wanted(stage, statement)
    if not holds.release(stage.world.network, stage.batches, wanted) and wanted != holds.EVERYTHING:
        rules = "; ".join(rule.text for rule in stage.world.network.rules) or "nothing"
        raise statement.error(f"nothing of the kind is held. What is: {rules}")
    stage.breathe()


def _rule(stage: Stage, statement: Statement, *, drop: bool) -> None:
    left = statement.number("n", 0) or None
    stage.hold(statement.text, _wanted(stage, statement), drop=drop, left=left)


def _wanted(stage: Stage, statement: Statement) -> Wanted:
    words, options = statement.words, statement.options
    kind = stage.known(statement, words[0], "kind of message", list(KINDS)) if words else ""
    sides = [*stage.world.machines, *stage.world.clients]
    for side in ("from", "to"):
        if side in options:
            stage.known(statement, options[side], "node or client", sides)
    partition = stage.partition(statement, options["partition"]) if "partition" in options else None
    tx = stage.tx(statement, words[1]) if len(words) > 1 else None
    return Wanted(kind, tx, options.get("from", ""), options.get("to", ""), options.get("ns", ""), partition)


def when(stage: Stage, meant: Statement, then: Statement) -> None:
    """As soon as such a message was taken in, once, this is done; the message itself is not held up."""
    stage.watch_for(_wanted(stage, meant), lambda: _do(stage, then))


def _do(stage: Stage, statement: Statement) -> None:
    stage.world.say(f"----- {statement.text}")
    VERBS[statement.verb].do(stage, statement)


# Processes and power.


@verb("crash", "NODE...", least=1, most=MANY)
def crash(stage: Stage, statement: Statement) -> None:
    """Power is gone: what was not synced is lost."""
    for machine in _up(stage, statement):
        machine.stop("crashed", calls=0)


@verb("kill", "NODE...", least=1, most=MANY)
def kill(stage: Stage, statement: Statement) -> None:
    """The process is killed; its system lives on, and keeps what was written to it."""
    for machine in _up(stage, statement):
        machine.stop("killed", process_only=True, calls=0)


@verb("kill-clean", "NODE...", least=1, most=MANY)
def kill_clean(stage: Stage, statement: Statement) -> None:
    """A last checkpoint, then the process stops, without leaving the cluster."""
    for machine in _listening(stage, statement):
        machine.finish()
        stage.world.run_while(lambda m=machine: m.up, at_most=COMMAND_NS, look_every=MS)  # type: ignore[misc]  # m is bound


@verb("power-cut", "NODE... [torn|written]", least=1, most=MANY)
def power_cut(stage: Stage, statement: Statement) -> None:
    """Power is gone; `torn`: of what was not synced, and of what is being written, a random part survives."""
    how = statement.words[-1] if statement.words[-1] in ("torn", "written") else ""
    names = statement.words[:-1] if how else statement.words
    draw = stage.world.draws.of("power cuts")
    for name in names:
        machine = stage.machine(statement, name)
        _require_up(statement, machine)
        if how == "torn":
            kept = 0.25 + draw.random() / 2
            machine.stop("power cut", torn=lambda _, kept=kept: draw.random() < kept)  # type: ignore[misc]  # kept is bound
        else:
            machine.stop("power cut", torn=all_of if how else None, calls=1_000 if how else 0)


@verb("restart", "NODE...", least=1, most=MANY)
def restart(stage: Stage, statement: Statement) -> None:
    """The process starts again, from what its disk holds."""
    for name in statement.words:
        machine = stage.machine(statement, name)
        if machine.up:
            raise statement.error(f"{name} runs: crash, kill or stop it first")
        machine.gone = False
        machine.disk.repair()
        machine.speed.sync = stage.shape.fsync_ns
        if not machine.start():
            raise Unmet(statement, f"{name} to start", machine.why, About(nodes=(name,)))
    stage.breathe()


@verb("pause", "NODE [TIME]", least=1, most=2)
def pause(stage: Stage, statement: Statement) -> None:
    """The process is stopped (SIGSTOP), for a time or until `resume`; the story goes on."""
    machine = stage.machine(statement, statement.words[0])
    _require_up(statement, machine)
    machine.pause()
    stage.world.say(f"{machine.name} is stopped")
    if len(statement.words) > 1:
        length = time_of(statement, statement.words[1], "pause")
        stage.world.after(length, machine.resume)
        stage.due = max(stage.due, stage.world.now + length)


@verb("resume", "NODE...", least=1, most=MANY)
def resume(stage: Stage, statement: Statement) -> None:
    """The process goes on."""
    for name in statement.words:
        machine = stage.machine(statement, name)
        if not machine.paused:
            raise statement.error(f"{name} is not paused")
        machine.resume()
    stage.breathe()


def _up(stage: Stage, statement: Statement) -> list[Machine]:
    machines = [stage.machine(statement, name) for name in statement.words]
    for machine in machines:
        _require_up(statement, machine)
    return machines


def _listening(stage: Stage, statement: Statement) -> list[Machine]:
    """Nodes that can be told something."""
    machines = _up(stage, statement)
    for machine in machines:
        if machine.paused:
            raise statement.error(f"{machine.name} is paused: resume it first")
    return machines


def _require_up(statement: Statement, machine: Machine) -> None:
    if not machine.up:
        raise statement.error(f"{machine.name} does not run: {machine.why}")


# Disks.


@verb("wipe", "NODE...", least=1, most=MANY)
def wipe(stage: Stage, statement: Statement) -> None:
    """A new, empty disk; a node that runs loses its power first."""
    for name in statement.words:
        machine = stage.machine(statement, name)
        if machine.up:
            machine.stop("its disk broke", calls=0)
        machine.wipe()
        stage.world.destroyed(machine, "was wiped")


@verb("image", "NODE...", least=1, most=MANY)
def image(stage: Stage, statement: Statement) -> None:
    """A copy of the disk is taken, to be set back to."""
    for name in statement.words:
        machine = stage.machine(statement, name)
        if stage.shape.lmdb and machine.up:
            raise statement.error(f"{name} runs on LMDB: stop it before an image of its disk is taken")
        stage.images[name] = (machine.allocation, machine.disk.crash(all_of), machine.vault.copy())


@verb("set-back", "NODE...", least=1, most=MANY)
def set_back(stage: Stage, statement: Statement) -> None:
    """The disk is what it was when its image was taken; a node that runs loses its power first."""
    for name in statement.words:
        machine = stage.machine(statement, name)
        if name not in stage.images:
            raise statement.error(f"there is no image of {name}: take one first with `image {name}`")
        if machine.up:
            machine.stop("it is set back", calls=0)
        machine.allocation, disk, vault = stage.images[name]
        machine.disk, machine.vault = disk.copy(), vault.copy()
        stage.world.destroyed(machine, "was set back to an old image of its disk")


@verb("disk", "NODE slow TIME | fail [sync|write|read] | rot | full | repair", least=2, most=3)
def disk(stage: Stage, statement: Statement) -> None:
    """The disk becomes slow, fails once, loses a sector, is full, or works again."""
    machine, how = stage.machine(statement, statement.words[0]), statement.words[1]
    more = statement.words[2] if len(statement.words) > 2 else ""
    match how:
        case "slow":
            machine.speed.sync = min(time_of(statement, more, "slow"), SYNC_NS_MAX)
        case "fail":
            operation = stage.known(statement, more or "sync", "disk operation", ["sync", "write", "read"])
            machine.disk.fail(operation, 1, "EIO")
        case "rot":
            _rot(stage, machine)
        case "full":
            machine.disk.capacity = machine.disk.used
        case "repair":
            machine.disk.repair()
            machine.speed.sync = stage.shape.fsync_ns
        case _:
            stage.known(statement, how, "state of a disk", ["slow", "fail", "rot", "full", "repair"])


def _rot(stage: Stage, machine: Machine) -> None:
    """A sector of the log that holds something is junk from now on."""
    draw = stage.world.draws.of("rot")
    held = [(n, at) for n in machine.disk.names() for at in _sectors(machine.disk.image(n))]
    if held:
        name, at = draw.choice(held)
        stage.world.destroyed(machine, f"has a rotten sector: {name} at {at}")
        machine.disk.overwrite(name, at, draw.randbytes(SECTOR))


def _sectors(image: bytes) -> list[int]:
    return [at for at in range(0, len(image), SECTOR) if any(image[at : at + SECTOR])]


@verb("checkpoint", "NODE...", least=1, most=MANY)
def checkpoint(stage: Stage, statement: Statement) -> None:
    """A checkpoint is written, and is durable when the story goes on."""
    for machine in _listening(stage, statement):
        node = machine.node
        assert node is not None
        before = stage.records.count(machine.name, "checkpoint", None)
        _command(stage, statement, machine, "checkpoint", {})
        stage.world.run_while(
            lambda m=machine, b=before: m.up and stage.records.count(m.name, "checkpoint", None) == b,  # type: ignore[misc]  # both are bound
            at_most=COMMAND_NS,
        )
    stage.breathe()


@verb("truncate-wal", "NODE...", least=1, most=MANY)
def truncate_wal(stage: Stage, statement: Statement) -> None:
    """A checkpoint, and then the log goes up to there: it can serve no history of what was before."""
    for machine in _listening(stage, statement):
        machine.rotate_log()
    checkpoint(stage, statement)
    for machine in _listening(stage, statement):
        machine.truncate_log()
    stage.breathe()


# The network.


@verb("partition", "{NODE...} {NODE...} ...", least=2, most=MANY)
def partition(stage: Stage, statement: Statement) -> None:
    """The groups are cut off from each other, in both directions; who is in no group reaches everybody."""
    groups = [_sides(stage, statement, group) for group in statement.groups]
    if len(groups) != len(statement.words):
        raise statement.error("partition is written `partition {n1} {n2 n3}`")
    seen = [side for group in groups for side in group]
    if len(seen) != len(set(seen)):
        raise statement.error("somebody is in two groups")
    _cut(stage, statement, [(a, b) for one, other in permutations(groups, 2) for a in one for b in other])


@verb("cut", "{NODE...} {NODE...}", least=2)
def cut(stage: Stage, statement: Statement) -> None:
    """Nothing passes from the first group to the second; the other direction works."""
    if len(statement.groups) != 2:
        raise statement.error("cut is written `cut {n1} {n2 n3}`")
    one, other = (_sides(stage, statement, group) for group in statement.groups)
    _cut(stage, statement, [(a, b) for a in one for b in other])


@verb("heal")
def heal(stage: Stage, statement: Statement) -> None:
    """Nobody is cut off from anybody."""
    stage.world.say("healed")
    stage.world.network.heal()


@verb("reset", "NODE NODE", least=2)
def reset(stage: Stage, statement: Statement) -> None:
    """The connection that the first made to the second breaks, and it notices."""
    first, second = (stage.machine(statement, name).name for name in statement.words)
    stage.world.network.reset((first, second))
    stage.breathe()


@verb("weather", options="loss duplicate jitter reorder")
def weather(stage: Stage, statement: Statement) -> None:
    """Loss and duplicates in percent, jitter in time; without options, calm again."""
    now = stage.world.network.weather
    now.loss = statement.number("loss", 0) / 100
    now.duplicate = statement.number("duplicate", 0) / 100
    now.jitter = time_of(statement, statement.option("jitter", "0ms"), "jitter")
    now.reorder = statement.option("reorder", "no") == "yes"


def _sides(stage: Stage, statement: Statement, group: list[str]) -> list[str]:
    sides = [*stage.world.machines, *stage.world.clients]
    return [stage.known(statement, name, "node or client", sides) for name in group]


def _cut(stage: Stage, statement: Statement, pairs: list[Pair]) -> None:
    stage.cuts += 1
    stage.world.say(statement.text)
    stage.world.network.cut(f"cut {stage.cuts}", pairs)


# Clocks.


@verb("clock", "NODE|CLIENT [TIME]", least=1, most=2, options="wall rate")
def clock(stage: Stage, statement: Statement) -> None:
    """A clock jumps ahead; `wall=` sets the wall clock off, `rate=` makes the monotonic clock run fast or slow."""
    name = statement.words[0]
    wall = time_of(statement, statement.option("wall", "0ms"), "wall") // MS
    jump = time_of(statement, statement.words[1], "clock") if len(statement.words) > 1 else 0
    if name in stage.world.clients:
        stage.world.clients[name].wall_offset_ms += wall + jump // MS
        return
    machine = stage.machine(statement, name)
    if jump < 0:
        raise statement.error("a monotonic clock does not go back: set the wall clock back with wall=-1h")
    machine.wall_offset_ms += wall + jump // MS
    rate = statement.option("rate")
    if rate and not rate.replace(".", "", 1).isdigit():
        raise statement.error(f"rate={rate}: expected a number such as 1.1")
    if rate and not 0.1 <= float(rate) <= 10:
        raise statement.error(f"rate={rate}: expected 0.1 to 10")
    machine.set_clock(jump_ns=jump, rate=int(float(rate) * PPM) if rate else None)


# Members.


@verb("join", "NODE...", least=1, most=MANY)
def join(stage: Stage, statement: Statement) -> None:
    """New machines start and ask to be let in."""
    for name in statement.words:
        if name in stage.world.machines:
            raise statement.error(f"{name} is there already: expected a new name")
        stage.add_new(statement, name)
        assert stage.world.machines[name].start(), "a new disk was refused"
    stage.breathe()


@verb("leave", "NODE...", least=1, most=MANY)
def leave(stage: Stage, statement: Statement) -> None:
    """Nodes are told to stop in good order: they hand their primaries over first."""
    for machine in _listening(stage, statement):
        _command(stage, statement, machine, "stop", {})


@verb("baseline", "NODE...", least=1, most=MANY, options="at")
def baseline(stage: Stage, statement: Statement) -> None:
    """The operator says which nodes are meant to hold data, to the first node that serves or to the one that is named."""
    names = [stage.machine(statement, name).name for name in statement.words]
    at = stage.machine(statement, statement.options["at"]) if "at" in statement.options else None
    machine = at or next(
        (m for m in stage.world.running if m.node is not None and m.node.core.serving and not m.paused), None
    )
    if machine is None:
        raise statement.error("no node serves: nobody can be told")
    _command(stage, statement, machine, "baseline", {"nodes": names, "yes": []})
    stage.breathe()


@verb("create", "NAMESPACE", least=1, options="backups ttl loss refused")
def create(stage: Stage, statement: Statement) -> None:
    """The operator gives a namespace settings of its own, and everybody has the map that says so."""
    name = statement.words[0]
    stage.namespaces[name] = None
    newest = stage.world.newest()
    seen = newest.namespaces.get(name, NOT_SAID).since if newest is not None else NO_VERSION
    arguments = {"name": [name], "seen": [str(seen)], "ttl_ms": [statement.option("ttl", "0")]}
    arguments |= {what: [statement.options[what]] for what in ("backups", "loss") if what in statement.options}
    _order(stage, statement, "namespaces", arguments)
    if statement.option("refused", "no") != "yes":
        nodes = [machine.node for machine in stage.world.running if machine.node is not None]
        stage.world.run_while(
            lambda: (
                any(node.core.namespaces.get(name, NOT_SAID).since == seen for node in nodes)
                or any(not node.core.namespaces[name].usable for node in nodes)
            ),
            at_most=2 * COMMAND_NS,
            look_every=MS,
        )
        stage.breathe()


@verb("remove", "NODE...", least=1, most=MANY, options="yes refused")
def remove(stage: Stage, statement: Statement) -> None:
    """The operator takes nodes out of the baseline: their copies are made elsewhere, and they do not vote any more."""
    names = [stage.machine(statement, name).name for name in statement.words]
    _order(stage, statement, "remove", {"nodes": names})


@verb("refetch", "NODE FRAGMENT...", least=2, most=MANY, options="refused")
def refetch(stage: Stage, statement: Statement) -> None:
    """The operator orders a node to take its copies of these fragments anew, in full, from its peers."""
    machine = stage.machine(statement, statement.words[0])
    names = [stage.fragment(statement, word) for word in statement.words[1:]]
    _order(stage, statement, "refetch", {"fragments": [fragment_name(name) for name in names]}, machine)


@verb("reset-lost", options="yes refused")
def reset_lost(stage: Stage, statement: Statement) -> None:
    """The operator has lost partitions begin again with the best copies that are there."""
    _order(stage, statement, "reset-lost", {})


@verb("stop-cluster", options="yes refused")
def stop_cluster(stage: Stage, statement: Statement) -> None:
    """The operator stops all nodes at once, in sync."""
    _order(stage, statement, "halt", {})


@verb("recover", "NODE...", least=1, most=MANY, options="yes refused")
def recover(stage: Stage, statement: Statement) -> None:
    """The operator goes on from the disks of these nodes, the first of which is asked; `yes=yes` forces it."""
    machines = _listening(stage, statement)
    _order(stage, statement, "recover", {"nodes": [m.name for m in machines]}, machines[0])


def _order(
    stage: Stage, statement: Statement, command: str, arguments: dict[str, list[str]], machine: Machine | None = None
) -> None:
    """An order, which `yes=yes` insists on; with `refused=yes` it must be refused."""
    machine = machine or next(
        (m for m in stage.world.running if m.node is not None and m.node.core.serving and not m.paused), None
    )
    if machine is None:
        raise statement.error("no node serves: nobody can be told")
    if statement.option("yes", "no") == "yes":
        arguments["yes"] = []
    refused = statement.option("refused", "no") == "yes"
    try:
        _command(stage, statement, machine, command, arguments)
    except Unmet:
        if not refused:
            raise
    else:
        if refused:
            raise Unmet(statement, f"{machine.name} to refuse it", "done", About(nodes=(machine.name,)))
    stage.breathe()


def _command(stage: Stage, statement: Statement, machine: Machine, command: str, arguments: dict[str, list[str]]) -> None:
    """An operator's command; a refusal fails the story."""
    console = stage.world.console
    before = len(console)
    stage.world.command(machine, command, arguments)
    stage.world.run_while(lambda: len(console) == before and machine.up, at_most=2 * COMMAND_NS, look_every=MS)
    if len(console) > before and isinstance(console[-1], Failed):
        raise Unmet(statement, f"{machine.name} to do it", console[-1].message, About(nodes=(machine.name,)))


# Time.


@verb("run", "[for] TIME", least=1, most=2)
def run(stage: Stage, statement: Statement) -> None:
    """Time passes."""
    words = statement.words[1:] if statement.words[0] == "for" else statement.words
    if len(words) != 1:
        raise statement.error("run is written `run 5s`")
    stage.world.run_for(time_of(statement, words[0], "run"))
    stage.oracles.look(stage.world)


@verb("settle")
def settle(stage: Stage, statement: Statement) -> None:
    """Run until nothing is left to happen."""
    if not stage.settle():
        raise Unmet(statement, "everything to come to rest", "something still happens after two simulated minutes")
