"""Reconciliation on Spark says what it says in one process, to the byte; in a session, and under `spark-submit`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from engine.errors import UsageError
from engine.testing import cluster
from engine.turn.settings import Settings
from pyspark_foreshore import fetch
from tests.support.damages import DAMAGES, ONE_OF_EACH
from tests.support.directories import SEGMENT_BYTES, append, archive, build, copies, lead_astray, unmourned
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reconciled import NOW_MS, PARTITIONS, story
from tools.reconcile import Report, Values, check
from tools.reconcile import spark_job as job
from tools.reconcile.cli import app
from tools.reconcile.copies import Rules
from tools.reconcile.export import export_by_spark, export_here
from tools.reconcile.exported import check_tables
from tools.reconcile.on_hosts import check_hosts
from tools.reconcile.on_spark import OnSpark
from tools.reconcile.report import read_report
from tools.reconcile.session import find_java, session
from tools.reconcile.spark_errors import JobFailed
from tools.reconcile.tables import SCHEMAS, Table, batches, pieces
from wal import records as r

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_JOB = Path(job.__file__)
EVERY = 5
"""Spark runs a function over a list, which knows of no damage: it is shown every fifth kind."""


@pytest.fixture(autouse=True, scope="module")
def _a_runtime_that_lives_for_a_minute() -> Iterator[None]:
    """Java compiles no more than pays within it, and collects with one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The directories of three nodes that were stopped."""
    settings = Settings(partitions=PARTITIONS, wal_segment_bytes=SEGMENT_BYTES)
    return build(tmp_path_factory.mktemp("stopped"), story, settings=settings, stop=True)


def damaged(name: str, stopped: list[Path], to: Path) -> list[str]:
    """Copies of the directories, after something was done to them."""
    directories = copies(stopped, to)
    DAMAGES[name].do(to)
    return [str(path) for path in directories if path.exists()]


def in_bytes(report: Report) -> tuple[bytes, bytes]:
    return report.findings_bytes(), report.summary_bytes()


def fails_on_two(number: int) -> int:
    """A task with a mistake."""
    return 1 // (2 - number)


@pytest.mark.spark
@pytest.mark.slow
def test_spark_says_what_one_process_says(stopped: list[Path], tmp_path: Path) -> None:
    """One test, because there is one session: what is said of damages, the engine by itself, and the command."""
    spark = session("local[2]", name="tests")
    try:
        on_spark = OnSpark(spark)
        for name, damage in list(ONE_OF_EACH.items())[::EVERY]:
            directories = damaged(name, stopped, tmp_path / name)
            here = check(directories, values=Values.FULL)
            there = check(directories, values=Values.FULL, engine=on_spark, shares=3)
            assert in_bytes(there) == in_bytes(here), name
            assert there.exit_code == damage.exit_code, name
        astray = damaged("a forged value", stopped, tmp_path / "astray")
        lead_astray(Path(astray[1]))
        with unmourned():
            here = check(astray)
        assert in_bytes(check(astray, engine=on_spark, shares=3)) == in_bytes(here), "SIGBUS ended a worker"

        several = damaged("several rows", stopped, tmp_path / "limited")
        assert in_bytes(check(several, engine=on_spark, shares=4, limit=2)) == in_bytes(check(several, limit=2))

        assert on_spark.processors == 2
        assert list(on_spark(abs, [])) == []
        assert list(on_spark(abs, [-3, 2, -1])) == [3, 2, 1]
        with pytest.raises(JobFailed, match=r"Spark gave up: .*ZeroDivisionError"):
            list(on_spark(fails_on_two, [1, 2, 3]))

        _the_tables_of_the_data_source(spark, several, tmp_path / "exported")

        _archives_are_read_as_segments(spark, on_spark, tmp_path)

        _a_stream_of_the_log(spark, damaged("nothing", stopped, tmp_path / "followed"), tmp_path / "stream")

        _a_table_is_written(spark, several, tmp_path / "written")

        local = CliRunner().invoke(app, ["check", *several, "--json"])
        remote = CliRunner().invoke(app, ["check", *several, "--json", "--engine", "spark"])
        assert (remote.exit_code, remote.stdout) == (1, local.stdout), remote.stderr
        assert list(on_spark(abs, [-4])) == [4], "a session that somebody else began goes on"
    finally:
        spark.stop()


def _archives_are_read_as_segments(spark: SparkSession, on_spark: OnSpark, to: Path) -> None:
    """Directories whose old segments are archives: the same rows of the log, and the same findings."""
    small = Settings(partitions=PARTITIONS, wal_segment_bytes=8 << 10)
    plain = build(to / "segments", story, settings=small, stop=True)
    archived = copies(plain, to / "archives")
    for directory in archived:
        archive(directory)
        assert list((directory / "wal").glob("*.walz"))
    said = []
    for directories in ([str(path) for path in plain], [str(path) for path in archived]):
        rows = spark.read.format("foreshore").option("kind", "wal").load(",".join(directories))
        places = rows.select("node", "lsn", "partition", "counter").collect()
        said.append((sorted(map(tuple, places)), check(directories, engine=on_spark).findings_bytes()))
    assert said[0] == said[1]
    assert len(said[0][0]) > 500


def _a_stream_of_the_log(spark: SparkSession, directories: list[str], to: Path) -> None:
    """Every update once, also where the stream ended in between and the log went on."""

    def follow() -> None:
        stream = spark.readStream.format("foreshore").option("kind", "wal").load(directories[0])
        writer = stream.select("lsn", "counter").writeStream.option("checkpointLocation", str(to / "place"))
        query = writer.format("parquet").start(str(to / "updates"))
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    follow()
    append(Path(directories[0]), [r.Update([r.Write("acc", 1, 1, 900, [b"new"], [b"1"])])], now_ms=NOW_MS)
    follow()
    told = [(row["lsn"], row["counter"]) for row in spark.read.parquet(str(to / "updates")).collect()]
    found = pieces(Table.WAL, directories[:1], Values.NONE)
    here = [row for piece in found for b in batches(piece) for row in b.to_pylist()]
    assert sorted(told) == sorted((row["lsn"], row["counter"]) for row in here)
    assert max(told)[1] == 901


def _a_table_is_written(spark: SparkSession, directories: list[str], to: Path) -> None:
    """The rows of a copy into a cluster that has none; and again, now that it has them."""
    state = spark.read.format("foreshore").option("values", "full").load(directories[1])
    rows = state.where("namespace = 'acc' AND NOT tombstone").select("namespace", "key", "value")
    with cluster(1, directory=to, partitions=PARTITIONS) as nodes:
        at = nodes.addresses
        for mode, found in (("dry-run", 0), ("apply", rows.count()), ("apply", rows.count())):
            writer = rows.write.format("foreshore").mode("append").option("at", at).option("mode", mode)
            writer.option("audit", f"{to}.audit").save()
            with nodes.connect() as database:
                assert len(database.namespace("acc")) == found
        assert f'"already":{rows.count()}' in Path(f"{to}.audit").read_text()


def _the_tables_of_the_data_source(spark: SparkSession, directories: list[str], to: Path) -> None:
    """The data source says what the tables say in one process, and its findings are those of the report."""
    reader = spark.read.format("foreshore").option("values", "full")
    for table in Table:
        found = reader.option("kind", table).load(",".join(directories))
        here = [row for piece in pieces(table, directories, Values.FULL) for b in batches(piece) for row in b.to_pylist()]
        assert found.columns == SCHEMAS[table].names
        columns = [name for name in found.columns if name != "time"]  # Spark gives it in the session's time zone
        assert sorted(([row[c] for c in columns] for row in found.collect()), key=repr) == sorted(
            ([row[c] for c in columns] for row in here), key=repr
        )
    spark.conf.set("fs.viewfs.mounttable.tables.link./by", f"file://{to.parent}")
    url = f"viewfs://tables/by/{to.name}"
    export_by_spark(spark, directories, url, "state", Values.FULL)
    again = CliRunner().invoke(app, ["export", *directories, "-o", url])
    assert (again.exit_code, again.stderr) == (2, f"foreshore: {url} is there already: name a new directory\n")
    _what_spark_cannot_write_is_not_there(directories, to.parent / "begun")
    exported = spark.read.parquet(url)
    assert exported.count() == reader.option("kind", "state").load(",".join(directories)).count()
    assert {row["node"] for row in exported.select("node").distinct().collect()} == {"n1", "n2", "n3"}
    _tables_that_spark_wrote_are_compared(url, directories, to)
    _what_was_fetched_is_read(spark, directories, to)
    report = check(directories, values=Values.FULL)
    diff = reader.option("kind", "diff").load(",".join(directories))
    assert sorted(row["finding"] for row in diff.collect()) == sorted(line.decode() for line in report.findings)
    diff.createOrReplaceTempView("diff")
    ((count,),) = spark.sql("SELECT count(*) FROM diff WHERE array_contains(on, 'n2') AND proof = 'log'").collect()
    assert count == sum("n2" in f.on and f.proof == "log" for f in report.decoded())


def _what_was_fetched_is_read(spark: SparkSession, directories: list[str], to: Path) -> None:
    """Directories, and the tables that were exported, which only Hadoop's file systems find: the tables say the same."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.tables.link./by", f"file://{to.parent}")
    urls = [f"viewfs://tables/by/{Path(path).relative_to(to.parent)}" for path in directories]
    with pytest.raises(Exception, match=r"pyspark_foreshore\.fetch\(spark, 'viewfs://tables/by/limited/n1'"):
        spark.read.format("foreshore").load(",".join(urls)).collect()
    named = fetch(spark, *urls)
    assert named == ",".join(urls)
    for table in Table:
        reader = spark.read.format("foreshore").option("kind", table)
        far, near = (sorted(map(repr, reader.load(paths).collect())) for paths in (named, ",".join(directories)))
        assert far == near
        assert far
    reader = spark.read.format("foreshore").option("kind", "diff")
    exported = reader.load(fetch(spark, f"viewfs://tables/by/{to.name}"))
    told = sorted(row["finding"].encode() for row in exported.collect())
    assert told == sorted(check_tables([str(to)], rules=Rules(grace_ms=-1)).findings)


def _what_spark_cannot_write_is_not_there(directories: list[str], to: Path) -> None:
    """A directory of this machine: whole, or as it was before."""
    to.mkdir()
    for kind in ("state", "wal", "diff"):
        failed = CliRunner().invoke(app, ["export", *directories, f"{to}-none", "-o", f"file://{to}/out", "--kind", kind])
        assert failed.exit_code in (2, 3), failed.stderr
        assert f"{to}-none" in failed.stderr
        assert list(to.iterdir()) == []
        whole = CliRunner().invoke(app, ["export", *directories, "-o", f"file://{to}/{kind}", "--kind", kind])
        assert (whole.exit_code, whole.stdout) == (0, f"written to file://{to}/{kind}\n"), whole.stderr
        assert [path.name for path in to.iterdir()] == [kind]
        shutil.rmtree(to / kind)
    nowhere = CliRunner().invoke(app, ["export", *directories, "-o", "file:///proc/x"])
    assert (nowhere.exit_code, nowhere.stderr) == (
        2,
        "foreshore: cannot write to /proc/x: No such file or directory; name another --out\n",
    )


def _tables_that_spark_wrote_are_compared(url: str, directories: list[str], at: Path) -> None:
    """By Spark, where only Hadoop's file systems find them, and at a path without it: as a table that was written here."""
    export_here(directories, Path(f"{at}-here"), "state", Values.FULL)
    here = check_tables([f"{at}-here"], rules=Rules(grace_ms=-1))
    assert here.exit_code == 1
    assert in_bytes(check_tables([str(at)], rules=Rules(grace_ms=-1))) == in_bytes(here)
    told = CliRunner().invoke(app, ["check", "--sketches", url, "--engine", "spark", "--json"])
    assert told.stdout_bytes == here.findings_bytes() + msgspec.json.encode(here.summary) + b"\n", told.stderr


_INTERRUPTED = """
import os, signal, sys, threading, time
from pathlib import Path
from tools.reconcile.session import borrowed

begun = Path(sys.argv[1])

def interrupt():
    while not begun.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

def work(_number):
    begun.touch()
    time.sleep(600)

try:
    with borrowed("local[1]") as spark:
        threading.Thread(target=interrupt, daemon=True).start()
        spark.sparkContext.parallelize([1], 1).foreach(work)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.spark
@pytest.mark.slow
def test_who_interrupts_it_is_told_so_and_nothing_else(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, str(tmp_path / "begun")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (run.stdout, run.stderr, run.returncode) == ("interrupted\n", "", 0)


@pytest.mark.spark
@pytest.mark.slow
def test_executors_that_see_one_directory_each_compare_them_where_they_lie(stopped: list[Path], tmp_path: Path) -> None:
    """Two workers with processes and working directories of their own; in each of these there is one node's directory."""
    directories = damaged("several rows", stopped, tmp_path / "apart")[:2]
    urls = [f"foreshore://{node}/proc/self/cwd/data" for node in ("n1", "n2")]
    rules = Rules(grace_ms=-1, values=Values.FULL)
    spark = session("local-cluster[2,1,1024]", name="tests")
    places: list[str] = []
    try:
        context = spark.sparkContext
        with pytest.raises(UsageError, match="no executor sees foreshore://n1/proc/self/cwd/data, foreshore://n2"):
            check_hosts(context, urls, rules=rules, limit=0, waits=1)
        places = context.parallelize(directories, 2).barrier().mapPartitions(link_here).collect()
        assert len(set(places)) == 2, "two executors"
        report = check_hosts(context, urls, rules=rules, limit=0)
    finally:
        spark.stop()
        for place in places:
            shutil.rmtree(Path(place).parent, ignore_errors=True)
    whole = check(directories, values=Values.FULL)
    assert report.findings_bytes() == whole.findings_bytes()
    assert [one.path for one in report.summary.directories] == urls
    assert (report.exit_code, report.summary.keys) == (whole.exit_code, whole.summary.keys)


def link_here(paths: Iterable[str]) -> Iterator[str]:
    """A task that lets its executor see a directory."""
    for path in paths:
        Path("data").symlink_to(path)
    yield os.getcwd()


@pytest.mark.spark
@pytest.mark.slow
def test_spark_submit_runs_the_job(stopped: list[Path], tmp_path: Path) -> None:
    """Two of the directories lie where only Hadoop's file systems find them."""
    directories = damaged("a forged value", stopped, tmp_path / "submitted")
    stored = f"spark.hadoop.fs.viewfs.mounttable.store.link./backup=file://{tmp_path}/submitted"
    named = ["viewfs://store/backup/n1", directories[1], "viewfs://store/backup/n3/"]
    submit = Path(sys.executable).with_name("spark-submit")
    result = subprocess.run(
        [submit, "--master", "local[1]", "--conf", stored, SPARK_JOB, *named, "--json", "--out", tmp_path / "report"],
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        check=False,
        env=os.environ | {"JAVA_HOME": str(find_java(os.environ)), "PYSPARK_PYTHON": sys.executable},
    )
    local = CliRunner().invoke(app, ["check", *directories, "--json"])
    said = result.stdout.replace("viewfs://store/backup", f"{tmp_path}/submitted")
    assert (result.returncode, said) == (1, local.stdout), result.stderr
    assert (tmp_path / "report" / "findings.jsonl").read_bytes() == check(directories).findings_bytes()
    summary = read_report(tmp_path / "report").summary
    assert [one.path for one in summary.directories] == [named[0], named[1], named[2].rstrip("/")]
