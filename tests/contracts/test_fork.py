"""A process that forks (a server with workers, `multiprocessing`): only the forking thread lives on in the child."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import engine
from engine import aio
from tests.support.patience import PATIENCE_SECONDS

STORY = """
import os, sys, threading
import engine

def told(call):
    try:
        return repr(call())
    except engine.Error as error:
        return f"{type(error).__name__}: {error}"

def in_child(story):
    pid = os.fork()
    if not pid:
        story()
        sys.exit(0)  # not os._exit: what Python lets go of at its end must not hurt the parent
    assert os.waitpid(pid, 0)[1] == 0

"""
CONNECTED = """
db = engine.connect(sys.argv[1])
ns = db.namespace("forks", codec="json")
ns["k"] = "parent"
tx = db.transaction()
tx.namespace(ns).put("t", 1)
later = db.transaction(concurrency="OPTIMISTIC")
later.namespace(ns).put("l", 1)

def child():
    ns["k"]
    print("child", told(lambda: later.id))
    threads = [threading.Thread(target=ns.put, args=(f"c{n}", n)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("child reads", ns["k"], dict(ns.scan(prefix="c")))
    for one in (later, tx):
        print("child", told(lambda: one.namespace(ns).put("l", 2)))
        print("child", told(lambda: one.namespace(ns).get("t")))
    print("child", told(tx.commit))
    in_child(lambda: print("grandchild reads", ns["k"]))
    db.close()
    print("child", told(lambda: ns["k"]))

in_child(child)
tx.commit()
later.commit()
print("parent reads", ns["k"], ns["t"], ns["l"], ns["c3"])
in_child(db.close)
print("parent reads", ns["k"])
db.close()
"""
EMBEDDED = """
db = engine.open(sys.argv[1], partitions=1)
ns = db.namespace("forks", codec="json")
ns["k"] = "parent"

def child():
    for _ in range(2):
        print("child", told(lambda: ns["k"]))
    db.close()

in_child(child)
print("parent reads", ns["k"])
db.close()
"""
CLOSED = """
db = engine.open(sys.argv[1], partitions=1)
db.namespace("forks", codec="json")["k"] = "parent"
hears, tells = os.pipe()
lasts = os.fork()
if not lasts:
    os.read(hears, 1)
    sys.exit(0)
db.close()

def read():
    with engine.open(sys.argv[1]) as db:
        print("reads", db.namespace("forks", codec="json")["k"])

in_child(read)
read()
os.write(tells, b".")
assert os.waitpid(lasts, 0)[1] == 0
"""


def run(story: str, argument: str) -> list[str]:
    """What a program prints; it has to end by itself."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-u", "-c", STORY + story, argument],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def test_a_client_connects_anew_in_the_child_of_a_fork(addresses: str) -> None:
    assert run(CONNECTED, addresses) == [
        "child UsageError: this was begun before os.fork(): it belongs to the parent process",
        "child reads parent {'c0': 0, 'c1': 1, 'c2': 2, 'c3': 3}",
        *["child UsageError: this was begun before os.fork(): it belongs to the parent process"] * 5,
        "grandchild reads parent",
        "child UsageError: the database was closed",
        "parent reads parent 1 1 3",
        "parent reads parent",
    ]


def test_an_embedded_node_is_the_parents_and_says_so_at_once(tmp_path: Path) -> None:
    *refused, last = run(EMBEDDED, str(tmp_path / "node"))
    assert len(refused) == 2
    for line in refused:
        assert line.startswith("child UsageError: embedded "), line
        assert "was opened before os.fork(), and the node lives in the parent: open it in a process that is" in line
    assert last == "parent reads parent"


def test_what_is_closed_is_open_to_all_though_a_child_lives_that_was_forked_before(tmp_path: Path) -> None:
    """It has what the parent had open, the locks of the directory among it: for `multiprocessing`, as long as it works."""
    assert run(CLOSED, str(tmp_path / "node")) == ["reads parent", "reads parent"]


def test_a_database_is_of_the_event_loop_in_which_it_was_made(tmp_path: Path) -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        db = first.run_until_complete(aio.open(tmp_path / "node", partitions=1))
        with pytest.raises(engine.UsageError, match="belongs to another event loop: connect to it in the one that uses it"):
            second.run_until_complete(db.namespace("a").get(b"k"))
        first.run_until_complete(db.close())
    finally:
        first.close()
        second.close()
