"""`foreshore node`: how a node starts, what it refuses to start on and why, and how it ends."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest

import engine.aio
from engine.client.admin import ask
from engine.errors import CorruptionError, UsageError
from engine.host.data_directory import open_data_directory
from engine.host.server import Server, ServerConfig
from engine.turn.lent import Room
from engine.turn.settings import Settings
from tests.support.commands import FORESHORE, Background, Node, damage_log, environment, foreshore, free_port, nodes
from tests.support.patience import PATIENCE_SECONDS
from tools.asking import too_full
from tools.cluster_commands import whole_of
from tools.config import KEYS
from tools.node_commands import SAME_SECONDS, status_lines
from wal import list_segments
from wal.checksum import crc32c

pytestmark = pytest.mark.processes

SETTINGS = Settings(partitions=4, backups=0, wal_segment_bytes=1 << 16, wal_total_bytes=1 << 20)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a node that formed a cluster of one, wrote something, and was killed."""
    root = tmp_path_factory.mktemp("left")

    async def write() -> None:
        server = await Server.start(config_of(root / "live"), note=lambda _: None)
        await ask(server.address, "init", cluster=["c1"], nodes=["n1"])
        async with await engine.aio.connect(server.address) as database:
            for at in range(50):
                await database.namespace("acc").put(b"k%d" % at, b"a value of the log")
        shutil.copytree(root / "live", root / "left", ignore=shutil.ignore_patterns("*.tmp"))
        await server.close()

    asyncio.run(write())
    return root / "left"


@pytest.fixture
def directory(left: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(left, tmp_path / "n1"))


def config_of(data: Path, *, accept_loss: bool = False, node: str = "n1") -> ServerConfig:
    return ServerConfig(data=data, listen="127.0.0.1:0", node=node, settings=SETTINGS, accept_loss=accept_loss)


async def start_and_stop(config: ServerConfig) -> list[str]:
    """Start a node and close it again; what it said."""
    said: list[str] = []
    server = await Server.start(config, note=said.append)
    await server.close()
    return said


def refused(*arguments: object, env: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit code of a start that is refused, and its one line."""
    result = foreshore("node", "start", *arguments, env=env)
    lines = result.stderr.splitlines()
    assert result.stdout == ""
    assert lines, "it said nothing"
    assert lines[-1].startswith("foreshore: "), result.stderr
    assert "Traceback" not in result.stderr
    return result.returncode, lines[-1]


def files(path: Path) -> dict[str, bytes]:
    """Every file's contents, but for the lock and LMDB's table of readers."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in {"lock", "lock.mdb"}
    }


# Configuration.


def test_flags_variables_and_a_file_are_checked_before_anything_is_made(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("suspicion_seconds = 3\n")
    data = tmp_path / "data"
    for arguments, env, says in (
        (["--config", file], {}, "'suspicion_seconds' in "),
        (["--config", file], {}, "did you mean suspicion_ms?"),
        ([], {"FORESHORE_LISTEM": "x"}, "did you mean FORESHORE_LISTEN?"),
        (["--backups", "many"], {}, "backups is 'many' in --backups: expected a whole number, 0 to 6"),
        (["--listen", "0.0.0.0:0"], {}, "0.0.0.0:0 is not loopback"),
        (["--partitions", "1000"], {}, "expected a power of two"),
        (["--node", "n 1"], {}, "node 'n 1' is not a legal name"),
        (["--cluster", "two words"], {}, "cluster 'two words' is not a legal name"),
    ):
        code, line = refused("--data", data, *arguments, env=environment(**env))
        assert (code, says in line) == (2, True), line
    assert not data.exists()


def test_a_mistyped_option_or_command_suggests_the_nearest() -> None:
    option = foreshore("node", "start", "--suspicion-sm", "3")
    assert option.returncode == 2
    assert "--suspicion-ms" in option.stderr
    command = foreshore("node", "statsu")
    assert command.returncode == 2
    assert "Did you mean 'status'" in command.stderr
    assert "Did you mean 'node'" in foreshore("noed").stderr


def test_config_prints_a_file_that_a_node_takes(tmp_path: Path) -> None:
    printed = foreshore("node", "config")
    assert printed.returncode == 0
    (tmp_path / "node.toml").write_text(printed.stdout)
    code, line = refused("--config", tmp_path / "node.toml", "--listen", "10.0.0.1:1", "--data", tmp_path)
    assert (code, "not loopback" in line) == (2, True), "all but the address was taken"
    told = [msgspec.json.decode(line) for line in foreshore("node", "config", "--json").stdout.splitlines()]
    assert [key["key"] for key in told] == list(KEYS)
    assert told[0]["variable"] == "FORESHORE_DATA"
    assert {"unit": "ms", "default": 250, "least": 10}.items() <= next(
        k for k in told if k["key"] == "heartbeat_ms"
    ).items()


# Directories.


def test_a_directory_belongs_to_its_node_and_its_cluster(directory: Path) -> None:
    code, line = refused("--data", directory, "--node", "n2")
    assert (code, "belongs to node 'n1', not 'n2': give its own --node, or none" in line) == (2, True)
    code, line = refused("--data", directory, "--cluster", "other")
    assert (code, "belongs to cluster 'foreshore', not 'other': check --cluster and --data" in line) == (2, True)


def test_a_name_that_could_lead_anywhere_is_no_name(tmp_path: Path) -> None:
    code, line = refused("--data", tmp_path / "data", "--node", "../n1")
    assert (code, "node '../n1' is not a legal name" in line) == (2, True)
    assert not (tmp_path / "data" / "identity.json").exists()


def test_a_directory_of_a_newer_format_is_left_alone(directory: Path) -> None:
    identity = directory / "identity.json"
    identity.write_bytes(msgspec.json.encode(msgspec.json.decode(identity.read_bytes()) | {"format": 2, "more": 1}))
    before = files(directory)
    code, line = refused("--data", directory)
    assert (code, "has format 2, this version knows 1: upgrade foreshore" in line) == (2, True)
    assert files(directory) == before


def test_a_log_of_a_newer_format_is_left_alone(directory: Path) -> None:
    segment = directory / "wal" / list_segments(directory / "wal")[0].name
    data = bytearray(segment.read_bytes())
    data[8:10] = (2).to_bytes(2, "big")
    data[12:16] = crc32c(bytes(data[:12]) + bytes(data[16:256])).to_bytes(4, "big")
    segment.write_bytes(data)
    before = files(directory)
    with pytest.raises(UsageError, match=r"newer segment=.*Start the version that wrote it, or a newer one"):
        asyncio.run(start_and_stop(config_of(directory)))
    assert files(directory) == before


def test_an_identity_that_cannot_be_read_or_is_gone_is_damage(directory: Path) -> None:
    (directory / "identity.json").write_bytes(b'{"format": 1, "cluster": 3}')
    with pytest.raises(CorruptionError, match=r"identity.json cannot be read: .*cluster"):
        asyncio.run(start_and_stop(config_of(directory)))
    (directory / "identity.json").write_bytes(b"")
    with pytest.raises(CorruptionError, match="put the file back, or move the directory away"):
        asyncio.run(start_and_stop(config_of(directory)))
    (directory / "identity.json").unlink()
    with pytest.raises(CorruptionError, match=r"holds a log or a store and no identity\.json: put the file back"):
        asyncio.run(start_and_stop(config_of(directory)))


def test_a_directory_in_use_says_by_whom(directory: Path) -> None:
    with (directory / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, line = refused("--data", directory)
        assert (code, "is in use by process" in line, "stop it first" in line) == (2, True, True)


@contextmanager
def nobody() -> Iterator[None]:
    """As a user who may write nowhere here: root may write everywhere."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_directory_that_may_not_be_written_is_refused(directory: Path, tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    shut.mkdir()
    shut.chmod(0o500)
    for path in (shut, shut / "data"):
        with nobody(), pytest.raises(UsageError, match=f"cannot (make|use) the data directory {path}.*Permission denied"):
            open_data_directory(path, cluster="foreshore", node=None, settings=SETTINGS)
    (directory / "lock").unlink()
    (directory / "lock").mkdir()
    with pytest.raises(UsageError, match=r"cannot use the data directory .*lock: Is a directory; expected files"):
        open_data_directory(directory, cluster="foreshore", node=None, settings=SETTINGS)


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "data"):
        code, line = refused("--data", path)
        assert (code, "cannot make the data directory" in line) == (2, True)


# Damage.


def test_a_damaged_segment_is_refused_with_its_place_until_the_loss_is_accepted(directory: Path) -> None:
    name = damage_log(directory)
    before = files(directory)
    code, line = refused("--data", directory)
    assert code == 5
    assert f"the log of {directory} is not whole: damaged segment={name} offset=256 lsn=1: " in line
    assert f"`foreshore wal verify {directory}` shows all of it" in line
    assert f"accept the loss: `foreshore node start --accept-loss --data {directory}` sets aside" in line
    assert files(directory) == before
    said = asyncio.run(start_and_stop(config_of(directory, accept_loss=True)))
    aside = [file.name for file in (directory / "wal").iterdir() if name in file.name and file.name != name]
    assert aside, "nothing was deleted"
    assert any("set aside" in words and aside[0] in words for words in said), said


def test_a_log_that_ends_before_its_store_is_refused(directory: Path) -> None:
    asyncio.run(start_and_stop(config_of(directory)))  # with a last checkpoint
    for file in (directory / "wal").iterdir():
        file.unlink()
    with pytest.raises(CorruptionError, match=r"the store needs the log from LSN \d+ on, and the log ends before LSN 1"):
        asyncio.run(start_and_stop(config_of(directory)))


def test_a_store_that_was_cut_short_is_refused_and_brings_nobody_down(directory: Path, tmp_path: Path) -> None:
    asyncio.run(start_and_stop(config_of(directory)))  # with a last checkpoint
    file = directory / "store" / "data.mdb"
    with file.open("r+b") as store:
        store.truncate(20_000)
    code, line = refused("--data", directory)
    assert (code, f"store {directory}/store: expected " in line, "found 20000: " in line) == (5, True, True), line
    assert f"if it is alone, move only {directory}/store away" in line
    (directory / "store").rename(tmp_path / "store")
    said = asyncio.run(start_and_stop(config_of(directory)))
    assert any("recovered" in words for words in said), "what it says to do next does it"
    file.write_bytes(bytes(20_000))
    code, line = refused("--data", directory)
    assert (code, "is not a store: expected an LMDB file in data.mdb" in line) == (2, True), line


# Addresses.


def test_a_port_in_use_is_told_and_the_directory_is_left_alone(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, line = refused("--data", tmp_path / "n1", "--listen", address)
        assert (code, f"cannot listen on {address}: the port is in use" in line) == (2, True)
        assert not (tmp_path / "n1").exists(), "it is found before the directory is recovered, which may take minutes"
        with closing(open_data_directory(tmp_path / "n1", cluster="foreshore", node=None, settings=SETTINGS)):
            code, line = refused("--data", tmp_path / "n1", "--listen", address)
            assert (code, f"in use by process {os.getpid()}" in line) == (2, True), line
    open_data_directory(tmp_path / "n1", cluster="foreshore", node=None, settings=SETTINGS).close()


def test_an_address_of_another_machine_is_told(tmp_path: Path) -> None:
    code, line = refused("--data", tmp_path / "n1", "--listen", "192.0.2.1:0", "--insecure")
    assert (code, "cannot listen on 192.0.2.1:0: the address is not one of this machine" in line) == (2, True)


def test_a_node_whose_seeds_do_not_answer_starts_and_keeps_trying(tmp_path: Path) -> None:
    port = free_port()
    lonely = Node(tmp_path, "n1", seeds=[f"127.0.0.1:{port}"])
    try:
        assert lonely.address
        lonely.wait_until_it_says(f"127.0.0.1:{port}: cannot connect: ")
        assert f"looks for other nodes at 127.0.0.1:{port}, and keeps trying where none answers" in lonely.said()
        late = Background(
            ["node", "start", "--data", tmp_path / "n2", "--node", "n2", "--listen", f"127.0.0.1:{port}"],
            tmp_path / "n2.log",
        )
        try:
            formed = foreshore("cluster", "init", lonely.address, "--nodes", "n1,n2")
            assert (formed.returncode, "members=n1,n2" in formed.stdout) == (0, True), formed.stderr
        finally:
            late.kill()
    finally:
        lonely.kill()


def test_a_node_of_another_cluster_of_the_same_name_is_not_let_in(tmp_path: Path) -> None:
    async def meet() -> list[str]:
        said: list[str] = []
        first = await Server.start(config_of(tmp_path / "n1"), note=lambda _: None)
        second = await Server.start(config_of(tmp_path / "n2", node="n2"), note=lambda _: None)
        await ask(first.address, "init", cluster=["c1"], nodes=["n1"])
        await ask(second.address, "init", cluster=["c2"], nodes=["n2"])
        await second.close()
        config = msgspec.structs.replace(config_of(tmp_path / "n2", node="n2"), seeds=[first.address])
        second = await Server.start(config, note=said.append)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not any("belongs to cluster id" in words for words in said):
                await asyncio.sleep(0.02)
        assert first.node.core.topology is not None
        assert [member.node for member in first.node.core.topology.members] == ["n1"]
        await second.close()
        await first.close()
        return said

    assert any("node n2 belongs to cluster id c2, this is c1" in words for words in asyncio.run(meet()))


# The end.


def test_sigterm_leaves_in_good_order(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", "n2", "n3") as (first, second, third):
        second.signal(signal.SIGTERM)
        assert second.ended() == 0
        assert "SIGTERM: hands its primaries over and stops" in second.said()
        assert f"ends: left the cluster; lets go of {second.data} when its last checkpoint is written" in second.said()
        assert second.said().endswith(f" INFO n2 has ended: {second.data} may be used by another process\n")
        status = asyncio.run(ask(first.address, "status"))
        assert [member["node"] for member in status["members"]] == ["n1", "n3"]
        assert (status["lost"], status["baseline"]) == ([], ["n1", "n2", "n3"])
        for node in (first, third):
            node.signal(signal.SIGINT)
            assert node.ended() == 0
            assert "ends: told to; those who are left are no majority, so nothing is handed over" in node.said()
    verified = foreshore("wal", "verify", first.data, second.data)
    assert verified.returncode == 0, verified.stdout
    assert "store_lsn=0" not in verified.stdout, "both wrote a last checkpoint"


def test_a_terminal_that_is_closed_stops_its_node_in_good_order(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1") as (node,):
        node.signal(signal.SIGHUP)
        assert node.ended() == 0, "it was not just gone"
        assert "SIGHUP: hands its primaries over and stops" in node.said()


def test_who_signals_a_process_and_its_group_means_it_once(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1") as (node,):
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            node.signal(number)
        assert node.ended() == 0
        assert node.said().endswith(f" INFO n1 has ended: {node.data} may be used by another process\n")


def test_a_node_that_may_have_hardly_any_files_says_so(tmp_path: Path) -> None:
    command = ["sh", "-c", 'ulimit -n 12 && exec "$@"', "sh", *FORESHORE, "node", "start", "--data", str(tmp_path / "n1")]
    result = subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS, check=False, env=environment()
    )
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
    assert result.stderr.startswith("foreshore: this process may have 12 files and connections open: expected 64 at least")
    assert not (tmp_path / "n1").exists()


def test_all_nodes_may_be_told_to_stop_at_once(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", "n2", "n3") as members:
        for node in members:
            node.signal(signal.SIGTERM)
        for node in members:
            assert (node.ended(), " ends: " in node.said()) == (0, True), node.said()
    assert foreshore("wal", "verify", *(node.data for node in members)).returncode == 0


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", "n2", "n3", options=["--suspicion-ms", 3_600_000]) as (first, second, third):
        for node in (second, third):
            node.signal(signal.SIGSTOP)  # so that n1 waits for a majority to let it go
        first.signal(signal.SIGINT)
        first.wait_until_it_says("SIGINT: hands its primaries over and stops; once more to end at once")
        first.wait_until_it_says("told to stop: it waits for n1, which coordinates, to let it go")
        assert " waits_for_coordinator=n1" in foreshore("node", "status", first.address).stdout
        time.sleep(SAME_SECONDS)
        first.signal(signal.SIGINT)
        assert first.ended() == 130
        assert "SIGINT again: ends at once" in first.said()


def test_without_a_majority_a_node_ends_as_a_member(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", "n2") as (first, second):
        second.kill()
        first.signal(signal.SIGTERM)
        assert first.ended() == 0
        assert "those who are left are no majority, so nothing is handed over" in first.said()


def test_a_node_in_no_cluster_stops_when_it_is_asked(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1")
    try:
        stopped = foreshore("node", "stop", node.address)
        assert (stopped.returncode, stopped.stdout) == (0, "n1 is gone\n"), stopped.stderr
        assert node.ended() == 0
    finally:
        node.kill()


def test_status_of_a_node_that_is_there_and_of_one_that_is_not(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1") as (node,):
        status = foreshore("node", "status", node.address)
        assert status.returncode == 0
        assert status.stdout.startswith(f"n1 at {node.address}: serving\ncluster=foreshore id=")
        assert "\nlongest turn " in status.stdout
        told = msgspec.json.decode(foreshore("node", "status", node.address, "--json").stdout)
        assert told["turns"]["taken"] > 1, "the driver measures every turn"
        assert told["turns"]["longest_ms"] > 0
        assert told["turns"]["longest_took"]
        assert (told["node"], told["partitions"]) == ("n1", {"PRIMARY": 16})
        address = node.address
    gone = foreshore("node", "status", address)
    assert (gone.returncode, gone.stdout) == (3, "")
    assert gone.stderr.startswith(f"foreshore: no answer from {address}: ")
    assert foreshore("node", "stop", address).returncode == 3
    assert foreshore("node", "status", "nowhere").returncode == 2


def test_a_disk_that_is_nearly_full_is_told_before_it_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node prepares its next segment when the last one is half full: until then it was said to be well."""

    async def story() -> None:
        server = await Server.start(config_of(tmp_path / "n1"), note=lambda _: None)
        try:
            await ask(server.address, "init", cluster=["c1"], nodes=["n1"])
            real = server.directory.room()
            assert real is not None
            assert (real.free_bytes > 0, real.next_bytes) == (True, server.directory.log.next_bytes)
            segment = real.next_bytes
            for left, files, low in ((segment, None, False), (segment - 1, 9, True), (segment + 1, 0, True)):
                room = Room(left, segment, files)
                monkeypatch.setattr(server.directory, "room", lambda room=room: room)
                until = time.monotonic() + PATIENCE_SECONDS
                while (told := await ask(server.address, "status"))["disk"]["free_bytes"] != left:
                    assert time.monotonic() < until
                    await asyncio.sleep(0.05)
                assert told["disk"] == room._asdict() | {"low": low, "full": False}
                assert ("no file can be made there" in too_full(told["disk"])) == (files == 0)
                problems = (await whole_of([server.address])).problems
                assert [p.startswith("the disk of n1 is nearly full: ") for p in problems] == [True] * low
                assert any("THE DISK IS NEARLY FULL" in line for line in status_lines(told)) == low
        finally:
            await server.close()

    asyncio.run(story())
