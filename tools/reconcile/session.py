"""A quiet Spark session, and the Java that it needs.

Spark 4 runs on Java 17, 21 and 25. They are looked for where a person would say that they are: FORESHORE_JAVA_HOME,
JAVA_HOME, `java` on the PATH, and last in this virtual environment, where the package of `foreshore[spark-jre]` is (`make
setup` installs it if it finds no other). Under spark-submit there is a Java virtual machine already, and nothing is looked
for.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UsageError
from tools.reconcile import jre

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSIONS = (17, 21, 25)
_THEIRS = (None, "py4j.clientserver", "py4j.java_gateway")
"""The loggers by which what lies between Spark and Python tells of an interruption: the root is one of them."""
MASTER = "local[2]"
_LOGGING = Path(__file__).with_name("log4j2.properties")
_FIX = "run `make setup` or `pip install 'foreshore[spark-jre]'`, or `sudo apt-get install openjdk-17-jre-headless`"


def find_java(environment: Mapping[str, str], *, prefix: Path = Path(sys.prefix)) -> Path:
    """The home of a Java that Spark runs on. Raises UsageError with the command that fixes it."""
    named = environment.get("FORESHORE_JAVA_HOME")
    if named:
        found = java_version(Path(named))
        if found not in JAVA_VERSIONS:
            what = f"Java {found}" if found else "no Java that runs"
            raise UsageError(f"FORESHORE_JAVA_HOME={named}: expected Java 17, 21 or 25, found {what}; {_FIX}")
        return Path(named)
    places = [Path(home) for home in (environment.get("JAVA_HOME"),) if home]
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        places.append(Path(on_path).resolve().parent.parent)
    places.append(prefix / "jre")
    if jre.is_installed():
        with suppress(OSError):  # an environment that may not be written to
            jre.make_home(prefix / "jre")
    seen: list[str] = []
    for home in places:
        found = java_version(home)
        if found in JAVA_VERSIONS:
            return home
        if found:
            seen.append(f"Java {found} in {home}")
    raise UsageError(f"Spark needs Java 17, 21 or 25, and found {', '.join(seen) or 'none'}: {_FIX}")


def java_version(home: Path) -> int:
    """The major version of the Java in `home`, 0 if there is none that runs."""
    try:
        told = subprocess.run(  # noqa: S603  # the user's own Java
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(\d+)(?:\.(\d+))?', told)
    if match is None:
        return 0
    return int(match[2] or 0) if match[1] == "1" else int(match[1])  # Java 8 calls itself 1.8


def logging_option(file: Path) -> str:
    """What tells Java how to log. Spark cuts its options at spaces, which a path may have, and a URI has not."""
    return f"-Dlog4j2.configurationFile={file.absolute().as_uri()}"


def stays_here(master: str | None) -> bool:
    """Whether a new session would be of this machine alone, so that all it reads can be looked at here."""
    return (master or MASTER).startswith("local") and "PYSPARK_GATEWAY_PORT" not in os.environ


def session(master: str | None = None, *, name: str = "foreshore reconcile") -> SparkSession:
    """A session: the one that runs, or a new one on `master`. Raises UsageError if Spark or Java is missing.

    Without `master` it is that of spark-submit, or `local[2]`.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415  # half a second, and not every user has it
    except ImportError:
        raise UsageError("pyspark is not installed: run `pip install 'foreshore[spark]'`, or use --engine local") from None
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ["JAVA_HOME"] = str(find_java(os.environ))
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    if master or not submitted:
        builder = builder.master(master or MASTER)
    if stays_here(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # nothing of it is for another machine
        builder = (
            builder.config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.extraJavaOptions", logging_option(_LOGGING))
        )
    if submitted:
        spark = builder.getOrCreate()
    else:
        with _hushed() as said:
            try:
                spark = builder.getOrCreate()
            except Exception as error:
                raise UsageError(f"Spark does not start on {os.environ['JAVA_HOME']}: {said() or error}") from error
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def borrowed(master: str | None = None, *, name: str = "foreshore reconcile") -> Iterator[SparkSession]:
    """A session for as long as it takes: one that ran before goes on, one that began for this ends with it.

    Who interrupts it is told by KeyboardInterrupt alone. Spark's own handler of the signal asks Java for something in the
    midst of another question, and what is between them writes the traces of both: it is put back to what was there.
    """
    ran = _runs()
    before = signal.getsignal(signal.SIGINT)
    spark = session(master, name=name)
    try:
        if not ran and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
        for logger in _THEIRS:
            logging.getLogger(logger).addFilter(_is_no_interrupt)
        yield spark
    except Exception as error:
        if _began_with_an_interrupt(error):
            raise KeyboardInterrupt from None
        raise
    finally:
        if not ran:
            with suppress(Exception):  # who was interrupted may not be answered any more
                spark.stop()
        for logger in _THEIRS:
            logging.getLogger(logger).removeFilter(_is_no_interrupt)


def _began_with_an_interrupt(error: BaseException | None) -> bool:
    """Whether it came of what was done about KeyboardInterrupt: Java is told that a call has ended, and does not answer."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not (record.exc_info and _began_with_an_interrupt(record.exc_info[1]))


def _runs() -> bool:
    """Whether this process has a Spark context; the active session is told to the thread that began it only."""
    try:
        from pyspark import SparkContext  # noqa: PLC0415  # as above
    except ImportError:
        return False
    return SparkContext._active_spark_context is not None


@contextmanager
def _hushed() -> Iterator[Callable[[], str]]:
    """Keep what a Java virtual machine says on its start, and later, to itself; what it said, if it is asked for.

    It greets every user with four lines of warnings, and no option of it or of Spark stops them all.
    """
    with tempfile.TemporaryFile() as aside:
        stderr = os.dup(2)
        os.dup2(aside.fileno(), 2)

        def said() -> str:
            aside.seek(0)
            return " ".join(aside.read().decode(errors="replace").split())[-500:]

        try:
            yield said
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
