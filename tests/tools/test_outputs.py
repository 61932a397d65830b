"""New directories of commands are whole, or not there."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from engine.errors import UsageError
from tests.support.patience import PATIENCE_SECONDS
from tools.outputs import folder_of_its_own, new_directory, new_file, put_file, put_files
from tools.terminal import Unreadable


def test_a_directory_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "some" / "out"
    with new_directory(out) as aside:
        (aside / "file").write_text("all of it")
        assert not out.exists()
        assert aside.name.startswith("."), "readers of tables pass over such names"
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert (out / "file").read_text() == "all of it"


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), ValueError("a fault"), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))]
)
def test_who_is_interrupted_leaves_nothing_and_begins_again(tmp_path: Path, error: BaseException) -> None:
    out = tmp_path / "out"
    said = Unreadable if isinstance(error, OSError) else type(error)
    with pytest.raises(said) as told:
        _half(out, error)
    assert list(tmp_path.iterdir()) == []
    if isinstance(error, OSError):
        assert str(told.value) == f"cannot write to {out}: No space left on device: free some space, or name another --out"
    with new_directory(out) as aside:
        (aside / "file").write_text("all of it")
    assert (out / "file").read_text() == "all of it"


def _half(out: Path, error: BaseException) -> None:
    with new_directory(out) as aside:
        (aside / "file").write_text("half of it")
        raise error


def _late(out: Path) -> None:
    with new_directory(out):
        out.mkdir()
        (out / "file").write_text("another's")


def test_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    for out in (tmp_path / "file", tmp_path / "link", tmp_path / "directory"):
        if out.name == "file":
            out.write_text("mine")
        elif out.name == "link":
            out.symlink_to(tmp_path / "nowhere")
        else:
            out.mkdir()
        with pytest.raises(UsageError, match="is there already: name a new directory"), new_directory(out):
            pytest.fail("it began")
    with pytest.raises(UsageError, match="came to be there meanwhile"):
        _late(tmp_path / "late")
    assert (tmp_path / "late" / "file").read_text() == "another's"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "file", "late", "link"]


KILLED = """
import os, pathlib, sys
from tools.outputs import new_directory
with new_directory(pathlib.Path(sys.argv[1])) as aside:
    (aside / "file").write_text("half of it")
    os.kill(os.getpid(), 9)
"""


def test_what_one_who_was_killed_has_left_goes_when_somebody_begins_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    subprocess.run([sys.executable, "-c", KILLED, str(out)], check=False, timeout=PATIENCE_SECONDS)
    (left,) = tmp_path.iterdir()
    mine = [tmp_path / name for name in (".out.notes", ".output.0123abcd", ".out.0123abcd.txt")]
    for path in mine:
        path.mkdir()
    with new_directory(tmp_path / "other"):
        assert left.exists(), "it is of another one"
    with new_directory(out) as aside:
        assert not left.exists()
        with pytest.raises(ValueError, match="a fault"):
            _half(out, ValueError("a fault"))
        assert aside.exists(), "who is at work is let be"
    assert out.is_dir()
    assert all(path.exists() for path in mine)


def test_the_new_name_is_on_disk_when_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", fsync)
    with new_directory(tmp_path / "out") as aside:
        (aside / "file").write_text("all of it")
        assert synced == []
    assert synced == [str(aside), str(tmp_path)]


def test_a_new_file_is_there_whole_and_replaces_nothing_but_the_same(tmp_path: Path) -> None:
    out = tmp_path / "out"
    new_file(out, [b"all ", b"of it"])
    new_file(out, [b"all of it"])
    for other in ([b"all of"], [b"all of it, and more"], [b"all of us"]):
        with pytest.raises(UsageError, match="is there already, and has something else in it"):
            new_file(out, other)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is there already"):
        new_file(link, [b"all of it"])
    assert out.read_bytes() == b"all of it"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out"]


def test_a_file_that_could_not_be_written_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"cannot write .*/out: No space left on device"):
        new_file(tmp_path / "out", full())
    with pytest.raises(UsageError, match=r"cannot write .*/none/out: No such file or directory"):
        new_file(tmp_path / "none" / "out", [b""])
    assert list(tmp_path.iterdir()) == []


def full() -> Iterator[bytes]:
    """What is written, to a disk that is full after the half of it."""
    yield b"half of it"
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_is_put_in_the_place_of_another_is_whole_or_leaves_that(tmp_path: Path) -> None:
    out = tmp_path / "out"
    put_file(out, [b"all ", b"of it"])
    with pytest.raises(Unreadable, match=r"cannot write .*/out: No space left on device"):
        put_file(out, full())
    assert out.read_bytes() == b"all of it"
    put_file(out, [b"another"])
    link = tmp_path / "link"
    link.symlink_to(out)
    put_file(link, [b"a third one"])
    assert (out.read_bytes(), link.is_symlink()) == (b"a third one", True), "such as /dev/stdout, which is one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out"]


def test_files_that_belong_together_are_of_one_writer_or_stay_those_of_another(tmp_path: Path) -> None:
    out = tmp_path / "out"
    put_files(out, {"first": [b"mine"], "last": [b"mine"]})
    with pytest.raises(OSError, match="No space left"):
        put_files(out, {"first": [b"another's"], "last": full()})
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {"first": b"mine", "last": b"mine"}

    def meanwhile() -> Iterator[bytes]:
        yield b"half of it, "
        put_files(out, {"first": [b"another's"], "last": [b"another's"]})
        yield b"and the rest"

    put_files(out, {"first": [b"mine again"], "last": meanwhile()})
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        "first": b"mine again",
        "last": b"half of it, and the rest",
    }


HALF_WRITTEN = """
import os, pathlib, sys
from tools import outputs
def chunks():
    yield b"half of it"
    os.kill(os.getpid(), 9)
getattr(outputs, sys.argv[1])(pathlib.Path(sys.argv[2]), chunks())
"""


@pytest.mark.parametrize("put", [new_file, put_file])
def test_a_file_whose_writer_was_killed_goes_when_somebody_begins_again(
    tmp_path: Path, put: Callable[[Path, Iterable[bytes]], None]
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", HALF_WRITTEN, put.__name__, str(out)]
    subprocess.run(command, check=False, timeout=PATIENCE_SECONDS)
    (left,) = tmp_path.iterdir()

    def chunks() -> Iterator[bytes]:
        assert not left.exists()
        put_file(out.with_name("other"), [b"another's"])
        with pytest.raises(ValueError, match="a fault"):
            _half_a_file(out)
        yield b"all of it"

    put(out, chunks())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"out": b"all of it", "other": b"another's"}


def _half_a_file(out: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half of it"
        raise ValueError("a fault")

    put_file(out, chunks())


@pytest.mark.parametrize("put", [new_file, put_file])
def test_what_is_no_file_is_written_to(tmp_path: Path, put: Callable[[Path, Iterable[bytes]], None]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        put(pipe, [b"all ", b"of it"])
        assert os.read(reader, 100) == b"all of it"
    finally:
        os.close(reader)


def test_a_folder_of_its_own_goes_with_its_process_or_when_another_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("mine-", "mine-of-ann", "another-12345678"):
        (tmp_path / name).mkdir()
    theirs, others = sorted(path.name for path in tmp_path.iterdir()), multiprocessing.get_context("fork")
    came, go = others.Event(), others.Event()

    def killed() -> None:
        with folder_of_its_own("mine-") as folder:
            (folder / "log").write_text("much")
            came.set()
            go.wait(timeout=PATIENCE_SECONDS)
            os.kill(os.getpid(), signal.SIGKILL)

    process = others.Process(target=killed)
    process.start()
    assert came.wait(PATIENCE_SECONDS)
    with folder_of_its_own("mine-") as folder:
        assert folder.parent == tmp_path
        assert len(list(tmp_path.glob("mine-*/log"))) == 1, "another one is at work there"
        (folder / "log").write_text("much")
        go.set()
        process.join(timeout=PATIENCE_SECONDS)
        with folder_of_its_own("mine-"):
            assert [path.parent for path in tmp_path.glob("mine-*/log")] == [folder], "who was killed has no use for his"
    assert sorted(path.name for path in tmp_path.iterdir()) == theirs
