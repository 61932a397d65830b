"""No test waits without a bound: a hang is a failure that names what was waited for, and not a run that never ends."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_SECONDS, joined, next_line, waiting

ROOT = Path(__file__).parent.parent
BOUNDED = {"communicate", "join", "run", "check_call", "check_output", "wait"}
"""What takes a bound, and waits for ever without; the others are read through `tests.support.patience`."""
BOUND = re.compile(r"(waiting|asyncio\.timeout)\(")
OF_MODELS = (
    "tests/rebalance/copies.py",
    "tests/rebalance/test_differential.py",
    "tests/rebalance/test_histories.py",
    "tests/rebalance/test_mutations.py",
    "tests/sim/background.py",
    "tests/sim/machine.py",
)
"""Where `wait` lets a world go on that has its own clock."""


def endless(text: str) -> Iterator[tuple[int, str]]:
    """Each place of a module that may wait for ever."""
    tree = ast.parse(text)
    watched = {
        id(inner)
        for block in ast.walk(tree)
        if isinstance(block, ast.With | ast.AsyncWith) and any(BOUND.match(ast.unparse(item)) for item in block.items)
        for inner in ast.walk(block)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=of, attr=name)):
                told = any(word.arg == "timeout" for word in node.keywords)
                mine = name not in {"run", "check_call", "check_output"} or ast.unparse(of) == "subprocess"
                bare = not node.args or ast.unparse(of) == "subprocess"
                if name in BOUNDED and mine and bare and not told and id(node) not in watched:
                    yield node.lineno, ast.unparse(node)
                if name == "readline" and id(node) not in watched and "stdout" in ast.unparse(of):
                    yield node.lineno, ast.unparse(node)
            case ast.For(iter=source) | ast.comprehension(iter=source):
                if ast.unparse(source).endswith(".stdout") and id(node) not in watched:
                    yield source.lineno, f"for ... in {ast.unparse(source)}"
            case ast.With(items=items):  # its end waits for that of the process
                if "subprocess.Popen(" in ast.unparse(items[0]) and not any(BOUND.match(ast.unparse(i)) for i in items):
                    yield node.lineno, ast.unparse(items[0])


def test_no_test_waits_without_a_bound() -> None:
    for file in sorted((ROOT / "tests").rglob("*.py")):
        name = str(file.relative_to(ROOT))
        if name not in OF_MODELS:
            assert list(endless(file.read_text(encoding="utf-8"))) == [], f"{name}: give it PATIENCE_SECONDS"


@pytest.mark.parametrize(
    "line",
    [
        "process.communicate()",
        "process.wait()",
        "thread.join()",
        "subprocess.run(['true'], check=True)",
        "process.stdout.readline()",
        "for line in process.stdout: print(line)",
        "next(line for line in process.stdout if line)",
        "with other(process): process.stdout.readline()",
        "with subprocess.Popen(command) as process: process.kill()",
    ],
)
def test_a_wait_without_a_bound_is_noticed(line: str) -> None:
    assert len(list(endless(line))) == 1
    whole = line.replace(" as process:", " as process, waiting(process, 'end'):")
    assert list(endless(f"with waiting(process, 'line'):\n    {whole}\nx.join(', ')")) == []


def test_a_line_that_never_comes_is_a_failure_that_says_so() -> None:
    endless_one = [sys.executable, "-c", "input()"]
    with subprocess.Popen(endless_one, stdin=-1, stdout=-1, text=True) as process, waiting(process, "end"):
        with pytest.raises(AssertionError, match=r"hangs: after 0\.05 s there was no sign of life"):
            next_line(process, "sign of life", 0.05)
        assert process.wait(PATIENCE_SECONDS) == -9


def test_what_is_run_in_the_background_hears_an_interrupt() -> None:
    """A shell has its background jobs ignore SIGINT, and so would all that they start."""
    heard = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    run = f"subprocess.run([sys.executable, '-c', {heard!r}], timeout={PATIENCE_SECONDS})"
    code = f"import subprocess, sys, tests.conftest; {run}"
    told = subprocess.run(
        ["bash", "-c", 'trap "" INT; "$@"', "-", sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    assert told.stdout == "True\n"


def test_a_thread_that_never_ends_is_a_failure_that_says_so() -> None:
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait, args=(60,), name="reader", daemon=True)
    thread.start()
    with pytest.raises(AssertionError, match=r"reader hangs: after 0\.01 s it has not ended"):
        joined(thread, seconds=0.01)
    ends.set()
    joined(thread)
