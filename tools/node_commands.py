"""`foreshore node`: start, stop and look at one node."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from engine.errors import Error, UsageError
from engine.host.data_directory import MakeDisk
from engine.host.server import Server, ServerConfig
from engine.host.sockets import files_max, take_all_files
from engine.turn.turns import collect_nothing
from tools import cluster_settings
from tools.allocator import give_large_blocks_back
from tools.asking import MOVED, Refused, listens, question, run, too_full, wait_for
from tools.config import KEYS, Key, load, toml_line
from tools.importing import whole_module
from tools.parser import program
from tools.terminal import Ended, ExitCode, emit, exit_code_of, finite, plain, show, to_json
from wal import DirectoryDisk, DiskError, LogError

_log = logging.getLogger("foreshore")
FILES_LEAST = 64
SAME_SECONDS = 0.5
"""Who signals a process and its group, as `timeout` does, or a script that hands on what the terminal told both, says it
twice at once, and means it once."""

app = program("node", "Start, stop and look at a node.")
AsJson = Annotated[bool, typer.Option("--json", help="For a program: JSON.")]
Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of the node.")]


# Start.


def start(config: Path | None, ready_file: Path | None, **flags: str | bool | None) -> None:
    """Start a node, and run until it is told to stop.

    Settings come from flags, then from FORESHORE_* variables, then from the file of --config, then from the defaults.

    SIGTERM, SIGINT (Ctrl-C), or SIGHUP as a terminal sends it that is closed: the node hands its primaries over, writes a
    last checkpoint and ends. It stays a voter and in the baseline, and catches up when it is back; if those left are no
    majority, it just ends.
    At a second signal, from half a second later on, it ends at once: the next start recovers, and nothing else is lost.
    """
    settings = load(flags, file=config)
    with _told_on_stderr(settings.node):
        give_large_blocks_back()
        take_all_files()
        if files_max() < FILES_LEAST:
            raise UsageError(
                f"this process may have {files_max()} files and connections open: expected {FILES_LEAST} at least "
                "(`ulimit -Hn`), for the node's own, its peers and a few clients"
            )
        uvloop.run(serve(settings, ready_file))


@contextmanager
def _told_on_stderr(node: str) -> Iterator[None]:
    """What anything logs goes to stderr, in lines that begin with day, time, level and the node's name if it was given."""
    root, handler = logging.getLogger(), logging.StreamHandler()
    who = " " + node.replace("%", "%%") if node else ""
    line = f"%(asctime)s.%(msecs)03d %(levelname)s{who} %(message)s"
    handler.setFormatter(logging.Formatter(line, datefmt="%Y-%m-%d %H:%M:%S"))
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def _parameter(key: Key) -> inspect.Parameter:
    """A key as an option; everything but a flag is text until `tools.config` has checked it."""
    default = "" if key.default in (None, "", []) else f" [default: {plain({'': key.default})[1:] or 'no'}]"
    bounds = f" ({key.expected})" if key.choices or key.least is not None else ""
    option = typer.Option(help=f"{key.meaning}{bounds}{default}", show_default=False, metavar=key.kind.upper())
    kind = bool if key.kind == "flag" else str
    return inspect.Parameter(
        key.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _file_parameter(name: str, meaning: str) -> inspect.Parameter:
    annotation = Annotated[Path | None, typer.Option(help=meaning, show_default=False, metavar="FILE")]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


start.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what typer reads the options from
    [
        _file_parameter("config", "a TOML file of keys, as `foreshore node config` prints it"),
        *map(_parameter, KEYS.values()),
        _file_parameter("ready_file", "write the address there, once the node listens"),
    ]
)
app.command()(start)


async def serve(config: ServerConfig, ready_file: Path | None = None, *, disk: MakeDisk = DirectoryDisk) -> None:
    """Run one node until it stops, or is told to by a signal. `disk` holds its log.

    What ends it while it runs is told in its log, with the time, and nowhere else: then it raises Ended.
    """
    server = await Server.start(config, disk=disk)
    loop = asyncio.get_running_loop()
    told_at: list[float] = []

    def told(name: str) -> None:
        if told_at and loop.time() - told_at[0] < SAME_SECONDS:
            return
        if told_at:
            _log.info("%s again: ends at once; the next start recovers from the log", name)
            sys.stderr.flush()
            os._exit(ExitCode.INTERRUPTED)
        _log.info("%s: hands its primaries over and stops; once more to end at once", name)
        told_at.append(loop.time())
        server.leave()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # who says `nohup` means it
            loop.add_signal_handler(number, told, number.name)
    try:
        if ready_file is not None:
            _tell_ready(ready_file, server.address)
        collect_nothing()
        _log.info("ends: %s; lets go of %s when its last checkpoint is written", await server.run(), config.data)
    except (Error, LogError, DiskError) as error:
        _log.critical("ends: %s", error)
        raise Ended(exit_code_of(error)) from error
    except Exception as error:
        _log.critical(
            "ends because of a fault of its own; what it promised is in its log, so it may be started again; please report "
            "what follows",
            exc_info=error,
        )
        raise Ended(ExitCode.WRONG) from error
    finally:
        await server.close()
        _log.info("has ended: %s may be used by another process", config.data)


def _tell_ready(file: Path, address: str) -> None:
    new = file.with_name(f"{file.name}.new")
    try:
        new.write_text(address, encoding="utf-8")
        new.rename(file)
    except OSError as error:
        raise UsageError(f"cannot write --ready-file {file}: {error.strerror}") from error


@app.command("config")
def config_command(as_json: AsJson = False) -> None:
    """Every key of a node's configuration, with its default, bounds and meaning.

    In a pipe the lines are a configuration file: foreshore node config > node.toml
    """
    if as_json:
        emit(to_json({"key": key.name, "flag": key.flag, "variable": key.variable} | _told(key)) for key in KEYS.values())
    elif sys.stdout.isatty():
        show(
            ({"key": k.name, "default": k.default, "expected": k.expected, "meaning": k.meaning} for k in KEYS.values()),
            as_json=False,
        )
    else:
        emit(map(toml_line, KEYS.values()))


def _told(key: Key) -> dict[str, Any]:
    names = ("kind", "unit", "default", "least", "most", "choices", "meaning")
    return {name: getattr(key, name) for name in names}


# Stop and look.


@app.command()
def stop(
    address: Address,
    timeout: Annotated[float, typer.Option(min=0, callback=finite, help="Seconds to wait until it is gone.")] = 60.0,
) -> None:
    """Stop a node in good order: it hands its primaries over, and ends. Wait until it is gone.

    It stays a voter and in the baseline: `foreshore cluster remove` is what takes a node out of the cluster.
    """
    run(_stop(address, timeout))


async def _stop(address: str, seconds: float) -> None:
    name = (await question(address, "status"))["node"]
    await question(address, "stop")

    async def gone() -> bool | None:
        return None if await listens(address) else True

    if not await wait_for(gone, seconds):
        raise Refused(
            f"{name} was told to stop and still runs after {seconds:g} s: `foreshore node status {address}` says what "
            "holds it up"
        )
    emit([f"{name} is gone"])


@app.command()
def status(address: Address, as_json: AsJson = False) -> None:
    """What a node says of itself. Exit code 1 if its cluster is formed and it does not serve."""
    found = run(question(address, "status"))
    if as_json:
        emit([to_json(found)])
    else:
        emit(status_lines(found))
    if found["formed"] and not (found["serving"] and found["quorum"]):
        raise typer.Exit(ExitCode.WRONG)


@app.command()
def metrics(
    addresses: Annotated[list[str], typer.Argument(metavar="ADDRESS...", help="host:port of each node.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT: serve them at /metrics; port 0: any.")] = "",
) -> None:
    """What nodes say of themselves, as metrics that Prometheus reads: once, or at --listen until interrupted.

    Exit code 3 if one of the nodes does not answer; its `foreshore_up` is 0 then, as it is at --listen.
    """
    whole_module("tools.node_metrics").tell(addresses, listen)  # with an HTTP server, which the other commands do without


def status_lines(found: dict[str, Any]) -> list[str]:
    """What a node says of itself, for a person."""
    formed = found["formed"]
    state = "not formed" if not formed else "serving" if found["serving"] and found["quorum"] else "NOT SERVING"
    why = "" if state != "NOT SERVING" else " (no majority)" if not found["quorum"] else " (waits for an exchange)"
    lines = [
        f"{found['node']} at {found['address']}: {state}{why}",
        plain(
            {"cluster": found["cluster_name"], "id": found.get("cluster"), "version": found["version"] if formed else None}
        ),
        plain({"coordinator": found.get("coordinator"), "seen": found["seen"]}),
        plain(found.get("habits", {})),
        *cluster_settings.apart(found),
        *cluster_settings.ignored(found),
        plain({name: found.get(name) for name in ("durable_lsn", "checkpointing", "in_no_checkpoint_bytes", "backlogged")}),
        *_room(found.get("disk")),
        *([f"NOT ARCHIVED: {found['not_archived']}; it is tried again"] if found.get("not_archived") else []),
        *([f"ITS DATA DIRECTORY WAS MOVED: {MOVED}"] if found.get("moved") else []),
        plain(dict(sorted(found["partitions"].items())) | {"behind": found["behind"]}),
        plain({"locks": found["locks"], "in_doubt": found["in_doubt"], "frozen": found["frozen"]}),
        plain({f"maps_{name}": number for name, number in found["maps"].items()}),
        plain({"held_up_by": found["held_up_by"] or None}),
        *(plain({"not_sent_to": lost.pop("node")} | lost) for lost in map(dict, found.get("not_sent", ()))),
        *_stopping(found.get("stopping")),
        *_proofs(found["anti_entropy"]),
        *(plain({"split": other["node"], "version": other["version"], "map": other["map"]}) for other in found["split"]),
        _turns(found["turns"]),
    ]
    return [line for line in lines if line]


def _room(disk: dict[str, Any] | None) -> list[str]:
    """What its disk has left, if the node can tell."""
    told = {} if disk is None else {f"disk_{name}": value for name, value in disk.items() if name != "low"}
    return [
        plain(told),
        *([f"THE DISK IS NEARLY FULL: {too_full(disk)}"] if disk and (disk["low"] or disk.get("full")) else []),
    ]


def _stopping(found: dict[str, Any] | None) -> list[str]:
    """For how long it has been told to stop, and for whom it waits."""
    if found is None:
        return []
    loading = ", ".join(f"{node} loads {partitions}" for node, partitions in found["loading"].items())
    waits = {"loading": loading} if loading else {"coordinator": found["coordinator"]}
    return [plain({"stopping_ms": found["since_ms"], **{f"waits_for_{name}": value for name, value in waits.items()}})]


def _proofs(found: dict[str, Any]) -> list[str]:
    """What anti-entropy has looked at, what of it is wrong, and who was told to take a copy anew."""
    ordered = ", ".join(f"{times} on {node}" for node, times in found["ordered"].items())
    return [
        plain({"copies_compared": found["compared"], "rows_read": found["rows_read"], "taken_anew": ordered or None}),
        *(plain({"wrong": wrong["fragment"], "found": wrong["found"]}) for wrong in found["wrong_here"]),
        *(plain({"undecided": wrong["fragment"], "found": wrong["found"]}) for wrong in found["undecided"]),
    ]


def _turns(found: dict[str, Any]) -> str:
    """While a turn goes on a node is not heard, so each that is longer than the bound is a defect worth telling."""
    told = f"longest turn {found['longest_ms']} ms: {found['longest_took']}"
    if found["above"]:
        told += f"; {found['above']} of {found['taken']} WERE LONGER THAN {found['bound_ms']} ms"
    return told
