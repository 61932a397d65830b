"""What every command has in common at the terminal: how results are shown, and what its exit code means.

Results go to stdout and everything else to stderr. A person at a terminal gets a table, a pipe plain `name=value`
lines, a program with `--json` one object a line. Keys, values and names may hold any bytes; nothing reaches the terminal
but printable characters.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import IO

import msgspec

from engine.errors import CorruptionError, DiskFull, Error, Unavailable, UsageError
from engine.offline.refusals import DoesNotFold, LogLost
from engine.state.store_errors import StoreDamaged, StoreError, StoreForeign
from wal import DiskError, Finding, LogClosed, LogError
from wal.errors import Kind as FindingKind

Cell = str | int | float | bool | None | list[int] | list[str] | list[list[int]]
Row = Mapping[str, Cell]
"""One line of an answer. A value of None, "" or [] says nothing and is left out of plain lines."""

_WORD = bytes(byte for byte in range(0x21, 0x7F) if byte != ord("\\"))
_json = msgspec.json.Encoder(enc_hook=str)
Paint = Callable[[str], str]
LINES_AT_ONCE = 500
_COPY_BYTES = 1 << 20
_ESCAPE = r"\\(\\|x[0-9A-Fa-f]{2})"


class ExitCode(IntEnum):
    """What a command's end means."""

    OK = 0
    WRONG = 1  # something wrong was found, the cluster refused, or nothing is known of what was named
    USAGE = 2  # the command or the configuration cannot be meant so
    UNREADABLE = 3  # a directory could not be read, or a node not reached, or a newer version wrote it
    SHORT = 4  # the end of a log is gone, and it may have been promised
    DAMAGED = 5  # bytes are not what was written
    MISSING = 6  # segments of a log are missing, or are another's
    LOGIC = 7  # what a log says cannot be, or its store says otherwise
    INTERRUPTED = 130
    HUNG_UP = 141  # whoever read the answer went away


def finite(value: float | None) -> float | None:
    """A number of an option that is one: `nan` is neither below nor above any bound, and nobody waits `inf` seconds."""
    if value == math.inf:
        import typer  # noqa: PLC0415  # as above

        raise typer.BadParameter("inf is no number of anything.")
    return number(value)


def number(value: float | None) -> float | None:
    """The same, where `inf` has a meaning of its own."""
    if value is not None and math.isnan(value):
        import typer  # noqa: PLC0415  # as above

        raise typer.BadParameter("nan is no number.")
    return value


_CODES: dict[FindingKind, ExitCode] = {
    "index": ExitCode.WRONG,
    "stray": ExitCode.WRONG,
    "newer": ExitCode.UNREADABLE,
    "torn": ExitCode.SHORT,
    "unfollowed": ExitCode.SHORT,
    "damaged": ExitCode.DAMAGED,
    "replaced": ExitCode.MISSING,
    "missing": ExitCode.MISSING,
    "foreign": ExitCode.MISSING,
}


class Ended(Exception):
    """A command has said what it has to say, and ends with this code."""

    def __init__(self, code: ExitCode) -> None:
        super().__init__(code)
        self.code = code


class Unreadable(Error):
    """A directory or a node from which nothing could be learned."""


def exit_code_of(error: Exception) -> ExitCode:
    """What an error is at the end of a command."""
    match error:
        case LogError():
            return code_of(error.finding)
        case DoesNotFold():
            return ExitCode.LOGIC
        case LogLost():
            return ExitCode.MISSING
        case StoreDamaged() | StoreForeign():
            return ExitCode.DAMAGED
        case UsageError() if not isinstance(error.__cause__, LogError):
            return ExitCode.USAGE
        case Error() if isinstance(error.__cause__, LogError | CorruptionError | StoreError | DiskError):
            return exit_code_of(error.__cause__)
        case CorruptionError() if isinstance(error.__cause__, OSError):
            return ExitCode.UNREADABLE
        case CorruptionError():
            return ExitCode.DAMAGED
        case Unavailable() | Unreadable() | DiskFull() | DiskError() | StoreError() | OSError():
            return ExitCode.UNREADABLE
        case _:
            return ExitCode.WRONG


def end_of(command: Callable[[], object]) -> int:
    """Run a command; its exit code. What it raises becomes a line on stderr, unless it is a bug."""
    try:
        code = command()
    except Ended as end:
        return end.code
    except (Error, LogError, LogClosed, DiskError) as error:
        complain(error)
        return exit_code_of(error)
    return code if isinstance(code, int) else ExitCode.OK


@contextmanager
def put_away() -> Iterator[None]:
    """A command that is told to end, by SIGTERM or as its terminal is closed, ends as if it were interrupted, so that its
    files and processes go with it; and then of that signal, as whoever sent it expects. To be told once more, as by a shell
    after the kernel, changes nothing: who does not want to wait for that has Ctrl-C."""
    told: list[int] = []

    def end(number: int, _: object) -> None:
        told.append(number)
        if len(told) == 1:
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    mine = [number for number, handler in before.items() if handler == signal.SIG_DFL]  # who says `nohup` means it
    if threading.current_thread() is not threading.main_thread():
        mine = []
    for number in mine:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)
        if told:
            with suppress(OSError):
                sys.stdout.flush()
            os.kill(os.getpid(), told[0])


def code_of(finding: Finding) -> ExitCode:
    """What is wrong with a log, as an exit code; of several the largest counts."""
    return _CODES[finding.kind]


def complain(text: object) -> None:
    """Say something on stderr, in one line that begins with `foreshore: `."""
    print(f"foreshore: {clean(str(text))}", file=sys.stderr, flush=True)


def emit(lines: Iterable[str], paint: Paint | None = None) -> None:
    """Print an answer, line by line. If nobody reads it any more, the command ends here and quietly.

    `paint` may colour a line, once nothing is in it that would.
    """
    with while_it_is_read():
        for some in _batches(lines, paint):
            sys.stdout.write(some)


def line_bytes(lines: Iterable[str], paint: Paint | None = None) -> Iterator[bytes]:
    """The same as bytes, to be kept for later."""
    return (some.encode(errors="surrogateescape") for some in _batches(lines, paint))


def _batches(lines: Iterable[str], paint: Paint | None) -> Iterator[str]:
    """So many lines at once that writing them costs little, and none of them waits for long."""
    left = iter(lines)
    while some := list(itertools.islice(left, LINES_AT_ONCE)):
        if not "".join(some).isprintable():
            some = list(map(clean, some))
        yield "\n".join(some if paint is None else map(paint, some)) + "\n"


def emit_objects(batches: Iterable[Sequence[object]]) -> None:
    """Print an answer as JSON, an object a line."""
    with while_it_is_read():
        sys.stdout.flush()
        for data in object_bytes(batches):
            sys.stdout.buffer.write(data)


def object_bytes(batches: Iterable[Sequence[object]]) -> Iterator[bytes]:
    """The same, to be kept for later: each batch is encoded at once."""
    for objects in batches:
        data = _json.encode_lines(objects)
        if not data.isascii() or b"\x7f" in data:  # JSON escapes all else that would reach a terminal
            data = "".join(f"{clean(line)}\n" for line in data.decode().split("\n")[:-1]).encode()
        yield data


def emit_file(file: IO[bytes]) -> None:
    """Print an answer that was kept."""
    import shutil  # noqa: PLC0415  # only here

    with while_it_is_read():
        sys.stdout.flush()
        shutil.copyfileobj(file, sys.stdout.buffer, _COPY_BYTES)


def emit_bytes(chunks: Iterable[bytes]) -> None:
    """Print an answer that is bytes already, in pieces, in the same way."""
    with while_it_is_read():
        sys.stdout.flush()
        sys.stdout.buffer.writelines(chunks)


@contextmanager
def while_it_is_read() -> Iterator[None]:
    """Print an answer: if nobody reads it any more, or it cannot be written, the command ends here, by `Ended`."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise  # of a file that was read for it, and not of the answer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more is written, not even at the exit
        if isinstance(error, BrokenPipeError):
            raise Ended(ExitCode.HUNG_UP) from None
        complain(f"the answer could not be written: {error.strerror}; what was printed is not all of it")
        raise Ended(ExitCode.UNREADABLE) from None


def show(rows: Iterable[Row], *, as_json: bool) -> None:
    """Print rows, in the form that their reader can use best. Rows of a table have the same names."""
    if as_json:
        emit(to_json(row) for row in rows)
    elif sys.stdout.isatty():
        _show_table(list(rows))
    else:
        emit(plain(row) for row in rows)


def plain(row: Row) -> str:
    """A row as `name=value name=value`; what is true is its name."""
    return " ".join(
        name if cell is True else f"{name}={_text(cell)}"
        for name, cell in row.items()
        if cell is not None and cell is not False and cell not in ("", [])
    )


def to_json(value: object) -> str:
    """A value as JSON in one line."""
    return _json.encode(value).decode()


def word(data: bytes) -> str:
    r"""Bytes as one printable word of a line; `bytes_of` is the inverse.

    >>> print(word(b"a key"), word(b"\x1b[2J"))
    a\x20key \x1b[2J
    """
    if not data.translate(None, _WORD):
        return data.decode()
    from tools.shown import printable  # noqa: PLC0415  # most words are

    return printable(data).replace(" ", r"\x20")


def bytes_of(text: str) -> bytes:
    r"""The bytes that `word` printed so; any other text is its UTF-8.

    >>> bytes_of(r"a\x20key")
    b'a key'
    """
    parts: list[bytes] = []
    at = 0
    for found in re.finditer(_ESCAPE, text):
        parts.append(text[at : found.start()].encode("utf-8", "surrogateescape"))
        parts.append(b"\\" if found[1] == "\\" else bytes([int(found[1][1:], 16)]))
        at = found.end()
    return b"".join([*parts, text[at:].encode("utf-8", "surrogateescape")])


def clean(line: str) -> str:
    r"""The line with everything that is not printable escaped.

    >>> print(clean("caf\u00e9 \x1b[2J \u202e"))
    café \u001b[2J \u202e
    """
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else _escaped(c) for c in line)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def width_of(rows: Sequence[Row]) -> int:
    """How many columns a table of these rows takes if nothing in it is cut or wrapped."""
    from rich.cells import cell_len  # noqa: PLC0415  # no pipe waits for it

    shown = [list(rows[0]), *([clean("" if cell is None else _text(cell)) for cell in row.values()] for row in rows)]
    return sum(max(map(cell_len, column)) + 3 for column in zip(*shown, strict=True)) + 1


def _text(cell: Cell) -> str:
    match cell:
        case float():
            return f"{cell:.3f}"
        case list():
            return ",".join(f"({','.join(map(str, item))})" if isinstance(item, list) else str(item) for item in cell)
        case _:
            return str(cell)


def _show_table(rows: Sequence[Row]) -> None:
    """Rows with the same names as tables; a change of names begins another one. One that does not fit is plain lines."""
    from rich.console import Console  # noqa: PLC0415  # no pipe waits for it
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console = Console(highlight=False)
    for _, group in itertools.groupby(rows, key=list):
        alike = list(group)
        table = Table(*alike[0])
        for row in alike:
            table.add_row(*(escape(clean("" if cell is None else _text(cell))) for cell in row.values()))
        if width_of(alike) > console.width:
            emit(plain(row) for row in alike)
        else:
            console.print(table)
