"""The archive for executors: a Python that has nothing of ours, and nothing installed, compares directories with it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.damages import DAMAGES
from tests.support.directories import copies
from tests.support.patience import PATIENCE_SECONDS
from tools.reconcile import check
from tools.reconcile.archive import archive, distributions, files

ELSEWHERE = """
import sys
sys.path.insert(0, sys.argv[1])
from tools.reconcile import check
sys.stdout.buffer.write(check(sys.argv[2:]).findings_bytes())
assert all(sys.argv[1] in (module.__file__ or sys.argv[1]) for name, module in sys.modules.items()
           if name.partition(".")[0] in {"engine", "wal", "tools", "lmdb", "msgspec", "rich"}), "imported from elsewhere"
"""


@pytest.mark.slow
def test_a_python_without_anything_checks_directories_with_the_archive(stopped: list[Path], tmp_path: Path) -> None:
    directories = [str(path) for path in copies(stopped, tmp_path)]
    DAMAGES["several rows"].do(tmp_path)
    packed = tmp_path / "foreshore.tar.gz"
    packed.write_bytes(archive())
    with tarfile.open(packed) as tar:
        for member in tar.getmembers():  # the first releases of Python 3.11 know no filter, and it is our own
            tar.extract(member, tmp_path / "foreshore")
    told = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ELSEWHERE, tmp_path / "foreshore", *directories],
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        cwd=tmp_path,
    )
    assert (told.returncode, told.stdout) == (0, check(directories).findings_bytes()), told.stderr.decode()


def test_the_archive_has_what_a_node_needs_and_no_more() -> None:
    found = set(distributions("foreshore", "node"))
    assert {"lmdb", "msgspec", "typer", "rich", "xxhash", "zstandard"} <= found
    assert not {"pyspark", "pytest", "mypy", "foreshore"} & found
    names = [name for name, _ in files()]
    assert len(names) == len(set(names))
    assert {"tools/reconcile/spark_job.py", "pyspark_foreshore.py"} <= set(names)
    assert not [name for name in names if name.startswith("tests") or name.endswith(".pyc")]
