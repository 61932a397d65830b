"""A node's configuration: who wins, what is refused, and that everything there is can be said."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from engine.errors import UsageError
from engine.host.server import ServerConfig, check_config
from engine.turn.settings import FIXED, Durability, Settings
from tools.config import CONFIG_BYTES_MAX, KEYS, load, nearest, toml_line

DATA = {"data": "data"}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_every_field_is_a_key_with_a_meaning_and_its_default() -> None:
    fields = [name for struct in (ServerConfig, Settings) for name in struct.__struct_fields__]
    assert list(KEYS) == [name for name in fields if name not in {"settings", "chosen"}]
    assert all(key.meaning for key in KEYS.values())
    numbers = [key for key in KEYS.values() if key.kind == "number"]
    assert all(key.least is not None and key.most is not None and key.least < key.most for key in numbers)
    assert {key.unit for key in numbers if key.name.endswith("_ms")} == {"ms"}
    assert load(DATA, {}) == ServerConfig(data=Path("data"))


def test_what_is_printed_is_a_configuration_file_of_the_defaults(tmp_path: Path) -> None:
    file = write(tmp_path / "node.toml", "\n".join(map(toml_line, KEYS.values())))
    assert len(tomllib.loads(file.read_text())) == len(KEYS) - 1, "all but the directory have a default"
    assert load(DATA, {}, file) == ServerConfig(data=Path("data"), chosen=frozenset(FIXED))


def test_flags_win_over_the_environment_and_the_environment_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "node.toml", 'data = "of file"\nnode = "of-file"\nbackups = 1\ninsecure = true\n')
    environment = {"FORESHORE_NODE": "of-environment", "FORESHORE_BACKUPS": "3", "PATH": "/bin"}
    flags = {"backups": "4", "cluster": None, "insecure": False}
    config = load(flags, environment, file)
    assert (config.data, config.node, config.settings.backups) == (Path("of file"), "of-environment", 4)
    assert (config.insecure, config.settings.cluster, config.chosen) == (False, "foreshore", frozenset({"backups"}))


def test_text_becomes_what_the_key_is() -> None:
    environment = {
        "FORESHORE_SEEDS": "127.0.0.1:1, 127.0.0.1:2,",
        "FORESHORE_PREFER_HISTORY": "true",
        "FORESHORE_DURABILITY": "NONE",
        "FORESHORE_WAL_SEGMENT_BYTES": "4096",
        "FORESHORE_JAVA_HOME": "/somewhere",
        "FORESHORE_PORT": "tcp://10.0.0.7:7400",
        "FORESHORE_SERVICE_HOST": "10.0.0.7",
        "FORESHORE_SERVICE_PORT_CLIENTS": "7400",
        "FORESHORE_PORT_7400_TCP_ADDR": "10.0.0.7",
        "FORESHORE_NODE_PORT": "tcp://10.0.0.8:7400",
    }
    config = load(DATA, environment)
    assert config.seeds == ["127.0.0.1:1", "127.0.0.1:2"]
    settings = config.settings
    assert (settings.prefer_history, settings.durability, settings.wal_segment_bytes) == (True, Durability.NONE, 4096)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"FORESHORE_SUSPICON_MS": "1"}, "'FORESHORE_SUSPICON_MS' in the environment is not a key of a node's "),
        ({"FORESHORE_SUSPICON_MS": "1"}, "did you mean FORESHORE_SUSPICION_MS?"),
        (
            {"FORESHORE_SUSPICION_MS": "soon"},
            "suspicion_ms is 'soon' in FORESHORE_SUSPICION_MS: expected a whole number of ms",
        ),
        (
            {"FORESHORE_SUSPICION_MS": "49"},
            "suspicion_ms is '49' in FORESHORE_SUSPICION_MS: expected a whole number of ms, 50 to",
        ),
        ({"FORESHORE_PORTS": "7"}, "'FORESHORE_PORTS' in the environment is not a key of a node's "),
        ({"FORESHORE_BACKUPS": "7"}, "backups is '7' in FORESHORE_BACKUPS: expected a whole number, 0 to 6"),
        ({"FORESHORE_DURABILITY": "FSYN"}, "expected one of FSYNC, LOG_ONLY, BACKGROUND, NONE"),
        ({"FORESHORE_INSECURE": "perhaps"}, "insecure is 'perhaps' in FORESHORE_INSECURE: expected true or false"),
        ({"FORESHORE_DATA": ""}, "data is '' in FORESHORE_DATA: expected a path"),
        ({"FORESHORE_NODE": "a\x1b[2J"}, r"node is 'a\\x1b\[2J' in FORESHORE_NODE: expected a text"),
    ],
)
def test_the_environment_is_checked(environment: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load(DATA, environment)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("suspicion-ms = 1", r"'suspicion-ms' in .*node.toml is not a key .*: did you mean suspicion_ms\?"),
        ("zebra = 1", "`foreshore node config` lists what there is"),
        ("backups = '1'", "backups is '1' in .*node.toml: expected a whole number, 0 to 6"),
        ("backups = true", "backups is True in .*node.toml: expected a whole number"),
        ("backups = 1.5", "backups is 1.5 in .*node.toml: expected a whole number"),
        ("backups = -1", "backups is -1 in .*node.toml"),
        ("insecure = 1", "insecure is 1 in .*node.toml: expected true or false"),
        ("seeds = '127.0.0.1:1'", "seeds is '127.0.0.1:1' in .*node.toml: expected a list of texts"),
        ("[settings]\nbackups = 1", "'settings' in .*node.toml is not a key"),
        ("data = 3", "data is 3 in .*node.toml: expected a path"),
        ("backups = \n", "node.toml is not TOML: .*line 1"),
        ("\x00", "node.toml is not TOML"),
        ("#" * (CONFIG_BYTES_MAX + 1), "is larger than"),
    ],
)
def test_a_file_is_checked(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        load(DATA, {}, write(tmp_path / "node.toml", text))


def test_a_file_that_is_not_text_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_bytes(b"\xff\xfe")
    for file, says in (
        (tmp_path / "node.toml", "is not TOML"),
        (tmp_path / "no.toml", "No such file"),
        (tmp_path, "directory"),
    ):
        with pytest.raises(UsageError, match=says):
            load(DATA, {}, file)


def test_a_node_without_a_directory_is_told_the_three_ways_to_name_one() -> None:
    with pytest.raises(
        UsageError, match=r"data is missing .*: give --data, FORESHORE_DATA, or data in the file of --config"
    ):
        load({}, {})


def test_nothing_near_is_no_suggestion() -> None:
    assert nearest("backup", KEYS) == "did you mean backups?"
    assert "did you mean" not in nearest("qqqq", KEYS)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"partitions": 100}, "partitions is 100: expected a power of two"),
        ({"suspicion_ms": 300}, "suspicion_ms is 300 and heartbeat_ms is 250: expected two heartbeats or more"),
        ({"wal_total_bytes": 100_000}, "wal_total_bytes is 100000 .* expected room for three segments"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_config(ServerConfig(data=Path("data"), settings=msgspec.structs.replace(Settings(), **changes)))


@pytest.mark.parametrize(
    ("listen", "says"),
    [
        ("0.0.0.0:7400", "not loopback, .* say --insecure"),
        ("localhost.example.org:7400", "not loopback"),
        ("127.example.org:7400", "not loopback"),
        ("10.0.0.1:7400", "not loopback"),
        ("[::]:7400", "not loopback"),
        ("7400", "listen: '7400' is not an address: expected host:port"),
        ("127.0.0.1:70000", "is not an address"),
    ],
)
def test_only_loopback_is_listened_on_unless_it_is_asked_for(listen: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_config(ServerConfig(data=Path("data"), listen=listen))


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.9.9.9:7400", "localhost:7400", "[::1]:7400"])
def test_loopback_is_more_than_one_address(listen: str) -> None:
    check_config(ServerConfig(data=Path("data"), listen=listen))


def test_what_others_dial_must_lead_somewhere() -> None:
    everywhere = ServerConfig(data=Path("data"), listen="0.0.0.0:7400", insecure=True)
    with pytest.raises(UsageError, match="which nobody can dial: say with --advertise"):
        check_config(everywhere)
    check_config(msgspec.structs.replace(everywhere, advertise="10.0.0.1:7400"))
    with pytest.raises(UsageError, match=r"advertise is 10\.0\.0\.1:0: expected a port"):
        check_config(msgspec.structs.replace(everywhere, advertise="10.0.0.1:0"))
    with pytest.raises(UsageError, match="seeds: 'n2' is not an address"):
        check_config(ServerConfig(data=Path("data"), seeds=["n2"]))
