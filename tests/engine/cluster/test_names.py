"""One name, one node: a second process with the name of a live member is refused, and the member is not touched."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from engine.client.admin import ask
from engine.cluster.attempt import Attempt, Intent
from engine.errors import UsageError
from engine.host.server import Server, ServerConfig
from engine.messages import Heartbeat, Join, Life, Promise, Replicated, SingleMap
from engine.turn.events import Connect, Received
from engine.turn.settings import Settings
from rebalance.ports import MS, WORK_MAX
from rebalance.table import Candidate
from tests.sim.planted.stage import Stage
from wal.ids import NO_BALLOT, NO_VERSION, Ballot

SETTINGS = Settings(
    cluster="names",
    partitions=4,
    backups=2,
    heartbeat_ms=50,
    suspicion_ms=700,
    connection_lost_ms=300,
    exchange_delay_ms=50,
)
PATIENCE_S = 60.0


async def _start(directory: Path, name: str, seeds: list[str]) -> Server:
    config = ServerConfig(data=directory, listen="127.0.0.1:0", seeds=seeds, node=name, settings=SETTINGS)
    return await Server.start(config, note=lambda _: None)


async def _until(holds: object, what: str) -> None:
    end = asyncio.get_running_loop().time() + PATIENCE_S
    while not holds():  # type: ignore[operator]  # a condition
        assert asyncio.get_running_loop().time() < end, f"in vain waited for: {what}"
        await asyncio.sleep(0.05)


async def _a_second_one(directory: Path) -> None:
    first = await _start(directory / "n1", "n1", [])
    servers = [first]
    try:
        for name in ("n2", "n3"):
            servers.append(await _start(directory / name, name, [first.address]))
        await _until(lambda: {"n2", "n3"} <= set(first.node.membership.joining.seen), "n1 sees all")
        await ask(first.address, "init", cluster=["c1"], nodes=["n1", "n2", "n3"])
        await _until(lambda: all(s.node.core.serving for s in servers), "all serve")
        third = servers[2].node.core
        version = first.node.core.version

        second = await _start(directory / "n3-again", "n3", [s.address for s in servers])
        with pytest.raises(UsageError, match="node id 'n3' is taken: the member of that name lives at"):
            await asyncio.wait_for(second.run(), PATIENCE_S)
        await second.close()
        assert first.node.core.version == version
        member = first.node.core.topology.member("n3") if first.node.core.topology is not None else None
        assert member is not None
        assert (member.allocation, member.incarnation) == (third.allocation, third.incarnation)

        await servers.pop().close()
        another = await _start(directory / "n3-again", "n3", [s.address for s in servers])
        servers.append(another)
        await _until(lambda: another.node.core.serving, "the name is free once its node is gone")
    finally:
        for server in servers:
            await server.close()


def test_a_second_process_of_a_name_ends_and_the_first_goes_on(tmp_path: Path) -> None:
    asyncio.run(_a_second_one(tmp_path))


async def _a_copy(directory: Path, known: int) -> None:
    """Somebody moves n3 by copying its directory while it runs, and starts it elsewhere."""
    first = await _start(directory / "n1", "n1", [])
    servers = [first]
    try:
        for name in ("n2", "n3"):
            servers.append(await _start(directory / name, name, [first.address]))
        await _until(lambda: {"n2", "n3"} <= set(first.node.membership.joining.seen), "n1 sees all")
        await ask(first.address, "init", cluster=["c1"], nodes=["n1", "n2", "n3"])
        await _until(lambda: all(s.node.core.serving for s in servers), "all serve")
        shutil.copytree(directory / "n3", directory / "copy")
        copy = await _start(directory / "copy", "n3", [s.address for s in servers[:known]])
        servers.append(copy)
        ends = [asyncio.ensure_future(server.run()) for server in (servers[2], copy)]
        done, goes_on = await asyncio.wait(ends, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1, "one of the two ends"
        with pytest.raises(UsageError, match="a copy of this directory"):
            done.pop().result()
        for waits in goes_on:
            waits.cancel()
        left = servers[2] if ends[0] in goes_on else copy
        await servers.pop(3 if left is not copy else 2).close()
        await _until(lambda: all(s.node.core.serving for s in servers), "the other one serves")
        topology = first.node.core.topology
        assert topology is not None
        member = topology.member("n3")
        assert member is not None
        assert member.address == left.address
        assert topology.version.major <= 5, "they do not take turns to be let in"
    finally:
        for server in servers:
            await server.close()


@pytest.mark.parametrize("known", [2, 3])
def test_of_a_node_and_a_copy_of_it_that_is_started_one_ends_and_says_so(tmp_path: Path, known: int) -> None:
    asyncio.run(_a_copy(tmp_path, known))


def test_who_answers_for_a_name_is_called_where_that_life_listens() -> None:
    with Stage(None) as stage:
        node = stage["n1"].node
        assert node is not None
        core = node.core
        assert core.topology is not None
        listed = core.topology.member("n3")
        assert listed is not None
        later = Candidate("n3", listed.allocation, listed.incarnation + 1, "there:2", "")
        attempt = Attempt(core.version, Ballot(9, "n1"), Intent([later]), 1 << 60, [])
        for life, address in ((listed.incarnation, listed.address), (later.incarnation, "there:2")):
            attempt.report("n3", SingleMap(core.version, Ballot(9, "n1"), Life(listed.allocation, life, 0), [], [], []))
            (found,) = attempt.change(core.topology, node.membership.claims, core.map_hash).candidates
            assert (found.incarnation, found.address) == (life, address)


def test_what_a_life_says_that_a_later_one_of_its_directory_has_replaced_is_not_heard() -> None:
    with Stage(None) as stage:
        node = stage["n1"].node
        assert node is not None
        assert node.core.topology is not None
        listed = node.core.topology.member("n3")
        assert listed is not None
        alone = Heartbeat(NO_VERSION, Life(listed.allocation, listed.incarnation - 1, 0), 1 << 30, False, ["n1", "n2"])
        assert node.names.hear("n3", listed.allocation, listed.incarnation - 1, alone), "its end is news, for all one knows"
        stage.wait(1_000)
        assert not node.names.hear("n3", listed.allocation, listed.incarnation - 1, alone)


def test_what_another_life_says_is_not_taken_for_the_members() -> None:
    with Stage(None) as stage:
        node = stage["n1"].node
        assert node is not None
        assert node.core.topology is not None
        listed = node.core.topology.member("n3")
        assert listed is not None
        stage.power_cut("n3")
        stage.wait(1_000)
        answer = Replicated(node.core.version, [1], 1 << 30)
        assert not node.names.hear("n3", "another-disk", 1, answer)
        beat = Heartbeat(node.core.version, Life("another-disk", 1, 0), 1 << 30, False, [])
        for _ in range(4):
            stage.wait(250)
            assert node.names.hear("n3", "another-disk", 1, beat)  # it may be told that it is behind
        assert node.core.topology.member("n3") is None  # it was left out, though somebody spoke under its name
        assert node.names.taken("n3", "another-disk", 1) == ""


def test_a_copy_of_a_members_directory_is_not_let_in_while_the_member_runs() -> None:
    with Stage(None) as stage:
        node = stage["n1"].node
        assert node is not None
        assert node.core.topology is not None
        listed = node.core.topology.member("n3")
        assert listed is not None
        assert node.names.taken("n3", listed.allocation, listed.incarnation + 1) == ""  # a restart, for all one knows
        stage.wait(1_000)
        assert "copy of this directory" in node.names.taken("n3", listed.allocation, listed.incarnation + 1)
        assert node.names.taken("n3", listed.allocation, listed.incarnation) == ""


def test_who_comes_back_at_once_is_called_where_it_listens_now() -> None:
    with Stage(None) as stage:
        stage.power_cut("n3")
        stage.left_out("n3")
        node = stage["n1"].node
        assert node is not None
        core = node.core
        for incarnation, address in ((8 << 20, "here:1"), (9 << 20, "there:2")):
            join = Join(
                "n3", "n3-disk1", incarnation, address=address, domain="", version=core.version, cluster="", silent=[]
            )
            node.membership.on_join("n3", join)
            assert Connect("n3", address) in core.effects.tasks


def test_of_two_lives_that_ask_the_later_one_counts_and_for_as_long_as_it_asks() -> None:
    """A disk that is set back has lives that count from an earlier one. What the one before has said, and what comes late,
    does not keep this one out for good (seed 900143)."""
    with Stage(None) as stage:
        stage.power_cut("n3")
        stage.left_out("n3")
        node = stage["n1"].node
        assert node is not None
        core, joining = node.core, node.membership.joining

        def asks(incarnation: int) -> int:
            join = Join("n3", "n3-disk1", incarnation, address="", domain="", version=core.version, cluster="", silent=[])
            node.membership.on_join("n3", join)
            return joining.seen["n3"].incarnation

        assert asks(8 << 20) == 8 << 20
        assert asks(9 << 20) == 9 << 20
        assert asks(8 << 20) == 9 << 20
        stage.wait(3 * core.settings.suspicion_ms)
        assert asks(8 << 20) == 8 << 20


def test_another_disk_makes_no_map_in_a_members_name_while_the_member_is_there() -> None:
    with Stage(None) as stage:
        node = stage["n1"].node
        assert node is not None
        promise = Promise(node.core.version, Ballot(9, "n1"), NO_BALLOT, b"", Life("another-disk", 1, 0))
        assert not node.names.hear("n3", "another-disk", 1, promise)
        stage["n3"].stop("killed", process_only=True)
        stage.until(lambda: node.detector.suspected("n3"), "n3 is suspected")
        assert node.names.hear("n3", "another-disk", 1, promise), "its disk was replaced, for all one knows"


def test_who_said_something_that_is_not_taken_yet_is_not_silent() -> None:
    """So many messages of one lie before a node that for a while it takes nothing that another says."""
    with Stage(None) as stage:
        stage.wait(1_000)
        said, busy = dict[str, Received](), stage["n3"].node
        assert busy is not None
        core = busy.core
        for name in ("n1", "n2"):
            node = stage[name].node
            assert node is not None
            said[name] = Received(name, node.core.allocation, node.core.incarnation, Replicated(core.fence, [], 0))

        def passes(*some: Received) -> None:
            """For longer than it takes to suspect somebody these are said all the time."""
            for _ in range(5):
                busy.turn(core.now + core.settings.suspicion_ms * MS // 4, some)
            assert busy.untaken[0] is said["n1"], "it has come to nothing else"

        busy.turn(core.now + MS, [said["n1"]] * 12 * WORK_MAX)
        passes(said["n2"])
        assert busy.detector.silent() == []
        passes()
        assert busy.detector.silent() == ["n2"], "that says nothing any more"
