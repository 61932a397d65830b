"""A checkpoint written by a process of its own, so that the node's interpreter is left to the node.

LMDB is made for several processes, and a checkpoint is one transaction: the node's process feeds the image through a
pipe in small parts, this one puts them in order, seals and writes them, and says how it ended. It lives for one
checkpoint, and gives way to everybody. Where a transfer waits for it, or clients soon will, it does neither: a copy takes
nothing more before what came is on its way to the store, so the process keeps its share of the processors, and the next
checkpoint finds it there, for to begin takes it as long as what a transfer leaves in memory. And where that comes to be so
while it writes (`Writer.hurry`) it takes its share again: whoever is waited for must not wait for everybody. If it may not,
as without a privilege who was made nicer may not, it is ended, and another one begins anew.

It is told where the store is, and writes only to that which its parent has open: a directory may be moved, and another one
be put in its place.

If its parent dies, the pipe ends, and it ends too, having written nothing, unless it was committing already: until it is
gone it keeps the store locked, and whoever opens the store next waits for that.

`Writer` is the parent's half; `python -m engine.state.store_writer PATH MAP_BYTES LOCK` is the other. An error of the disk
is the store's, as if this process had met it. Where no such process can be had (an application frozen into one file, no
process table entry left, the process was killed) the image is written where it is: slower for everybody, and as safe.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from pathlib import Path

import msgspec

from engine.state import store_errors
from engine.state.store import CheckpointImage
from engine.state.store_lmdb import LmdbStore
from engine.state.store_parts import Answer, End, Part, frame, next_answer, next_part, parts_of
from wal.probe import probe

SMALL_WORK = 16_000
"""What is less work is written before such a process has started: it would cost the node more to hand it over. A row
is one, a state is, and so much of what rows weigh:"""
WEIGHED_OF_WORK = 4 << 10
"""Large rows cost the node little, because LMDB copies and writes them while the interpreter goes on. So what a transfer
of them leaves in memory is written in place: else it would wait for a process more often than for the disk (a test)."""
NICENESS = 10
"""Clients wait for the node, and nobody for a checkpoint but a transfer, and who writes more than the store takes."""
KEPT_SECONDS = 5.0
"""So long a process that was kept waits for the next checkpoint."""
ENDS_SECONDS = 60.0

_ERRORS: dict[str, type[store_errors.StoreError]] = {
    kind.__name__: kind
    for kind in (
        store_errors.StoreFull,
        store_errors.StoreFailed,
        store_errors.StoreNoMemory,
        store_errors.StoreDamaged,
        store_errors.StoreInUse,
        store_errors.StoreForeign,
        store_errors.StoreTooNew,
    )
}


class _Unavailable(Exception):
    """There is no such process, or it is gone without a word; nothing was written."""


class Writer:
    """Who writes the checkpoints of one store. In any thread, one at a time. Invariant: who is kept writes nothing."""

    def __init__(self, store: LmdbStore, *, small_work: int = SMALL_WORK, program: Sequence[str] | None = None) -> None:
        self._store = store
        self._small_work = small_work
        self._program = program
        self._kept: subprocess.Popen[bytes] | None = None
        self._gives_way = False  # who writes now
        self._late = False  # it is to give way no more

    def write(self, image: CheckpointImage) -> None:
        """Apply a checkpoint: all of it durably, or nothing. Raises what `LmdbStore.write` does."""
        self._late = False
        if not self._is_small(image):
            try:
                self._store.written_elsewhere(lambda lock: self._elsewhere(image, lock))
            except _Unavailable:
                probe("store.writer_unavailable")
            else:
                return
        self.close()  # or it would have to learn how large the map is now
        self._store.write(image)

    def hurry(self) -> None:
        """Somebody waits by now for what is being written, if anything is. In the thread of the turns, and as often as is
        liked: a process that has just begun may hear of it the next time."""
        process = self._kept
        if process is not None and self._gives_way:
            self._late, self._gives_way = True, False
            if not give_way_no_more(process.pid):
                probe("store.writer_begins_anew")
                process.kill()

    def close(self) -> None:
        """Nobody is kept any more."""
        self._gives_way = False
        if self._kept is not None:
            _end(self._kept)
            self._kept = None

    def _is_small(self, image: CheckpointImage) -> bool:
        rows = accumulate(map(len, image.rows.values()), initial=0)  # no more of them are looked at than it takes to know
        least = self._small_work - (image.weight + _in_pieces(image)) // WEIGHED_OF_WORK
        least -= len(image.fragments) + len(image.partitions)
        return not any(count >= least for count in rows)

    def _elsewhere(self, image: CheckpointImage, lock: int) -> None:
        if self._store.moved:
            raise _Unavailable  # a path is all that another process could be told
        keep = False
        try:
            while not self._kept_writes(image) and not self._another_writes(image, lock):
                self.close()
            keep = image.hurried
        finally:
            if not keep:
                self.close()

    def _another_writes(self, image: CheckpointImage, lock: int) -> bool:
        """Whether it did; False: it was ended, so that one begins that does not give way."""
        gives_way = not (image.hurried or self._late)
        self._kept = _start([*self._command(), str(lock)], lock, gives_way=gives_way)
        self._gives_way = gives_way
        try:
            if _answer(self._kept).word != "ready":
                raise _Unavailable
            _hand_over(self._kept, image)
        except _Unavailable:
            if gives_way and self._late:
                return False
            raise
        return True

    def _kept_writes(self, image: CheckpointImage) -> bool:
        """Whether somebody was kept, is there still, and has written it."""
        if self._kept is None:
            return False
        if not image.hurried:
            give_way(self._kept.pid)
            self._gives_way = True
        try:
            _hand_over(self._kept, image)
        except _Unavailable:
            probe("store.writer_had_gone")  # nothing came for a while
            self.close()
            return False
        return True

    def _command(self) -> Sequence[str]:
        program = self._program if self._program is not None else _program()
        if not program:
            raise _Unavailable
        return [*program, str(self._store.path.absolute()), str(self._store.map_bytes)]


def _in_pieces(image: CheckpointImage) -> int:
    """What states weigh that are so large that they were made in pieces."""
    states = chain(image.node.values(), image.fragments.values(), image.partitions.values())
    return sum(len(piece) for state in states if isinstance(state, list) for piece in state)


def _program() -> Sequence[str]:
    """How this interpreter runs a module of ours, if it is one that can."""
    if getattr(sys, "frozen", False) or "python" not in Path(sys.executable or "").name:
        return ()
    return (sys.executable, "-P", "-m", "engine.state.store_writer")


def _hand_over(process: subprocess.Popen[bytes], image: CheckpointImage) -> None:
    assert process.stdin is not None
    out, word = process.stdin.fileno(), "again"
    while word == "again":
        with suppress(BrokenPipeError):  # it says why, or not
            for part in parts_of(image):
                _send(out, frame(part))
        found = _answer(process)
        word = found.word
    if word != "done":
        raise _ERRORS.get(word, store_errors.StoreFailed)(found.text)


def _start(command: Sequence[str], lock: int, *, gives_way: bool) -> subprocess.Popen[bytes]:
    try:
        process = subprocess.Popen(  # noqa: S603  # our own interpreter, our own module
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(lock,),
            start_new_session=True,  # what the terminal says to the node is not for this process
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    except OSError as error:
        raise _Unavailable from error
    if gives_way:
        give_way(process.pid)
    return process


def give_way(process: int) -> None:
    """Have a process let all others go first, from before it has imported anything.

    Of a session of its own, which it has, Linux weighs all processes together against other sessions, where it makes groups
    of them: then their niceness counts among themselves, and their group has one of its own.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
        autogroup(process).write_text(str(NICENESS), encoding="ascii")


def give_way_no_more(process: int) -> bool:
    """Have a process that gave way do so no more; False if that may not be."""
    try:
        os.setpriority(os.PRIO_PROCESS, process, os.getpriority(os.PRIO_PROCESS, 0))
        if (group := autogroup(process)).exists():
            group.write_text("0", encoding="ascii")
    except OSError:
        return False
    return True


def autogroup(process: int) -> Path:
    """Where Linux says how nice the session of a process is, if it makes groups of them."""
    return Path(f"/proc/{process}/autogroup")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let it go: the end of its pipe tells it."""
    with process:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(ENDS_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # it hangs in a disk that hangs


def _send(pipe: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def _answer(process: subprocess.Popen[bytes]) -> Answer:
    assert process.stdout is not None
    said = process.stdout.fileno()
    try:
        found = next_answer(lambda size: _read(said, size))
    except msgspec.MsgspecError as error:
        raise _Unavailable from error
    if found is None:
        raise _Unavailable
    return found


def _read(pipe: int, size: int) -> bytes:
    """`size` bytes, fewer only at the end of the pipe."""
    parts: list[bytes] = []
    while size:
        data = os.read(pipe, size)
        if not data:
            break
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


# The other half.


class _Orphan(Exception):
    """The pipe ended before the checkpoint did."""


def main(path: Path, map_bytes: int, lock: int) -> None:
    """Write the checkpoints that come through the pipe, one after the other."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the node is told, and closes the pipe
    pipe = sys.stdin.buffer
    out = sys.stdout.fileno()

    def parts() -> Iterator[Part]:
        while True:
            part = next_part(pipe.read)
            if part is None:
                raise _Orphan
            yield part
            if isinstance(part, End):
                return

    try:
        store = LmdbStore(path, map_bytes=map_bytes, lock=lock)
        _send(out, frame(Answer("ready")))
        while select.select([pipe], [], [], KEPT_SECONDS)[0]:  # nothing is on its way before this is answered
            while not store.write_parts(given := parts()):
                for _ in given:
                    pass  # what is on its way still
                _send(out, frame(Answer("again")))
            _send(out, frame(Answer("done")))
            store.renew()  # no page of before is needed, and none of what was written
    except store_errors.StoreError as error:
        _send(out, frame(Answer(type(error).__name__, str(error))))
    os._exit(0)  # nothing is left to do, and the interpreter takes its time to see that


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    except (_Orphan, BrokenPipeError):
        os._exit(1)
