"""What is shipped: a wheel with everything that runs, and a source distribution from which `make` works."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
NOT_OURS = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "build", "*.egg-info")
WHEEL = "import sys; from setuptools import build_meta as b; to = sys.argv[1]; b.build_wheel(to)"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, built from a copy of the tree."""
    folder = tmp_path_factory.mktemp("shipped")
    shutil.copytree(ROOT, folder / "tree", ignore=NOT_OURS)
    subprocess.run(
        [sys.executable, "-c", f"{WHEEL}; b.build_sdist(to)", str(folder)],
        cwd=folder / "tree",
        check=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
    )
    return folder


def _files(*patterns: str) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for pattern in patterns
        for path in ROOT.glob(pattern)
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".hypothesis")
    }


def test_the_wheel_has_all_that_runs(shipped: Path) -> None:
    (wheel,) = shipped.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == _files(
        "foreshore.py", "pyspark_foreshore.py", "engine/**/*", "wal/**/*", "rebalance/**/*", "tools/**/*"
    )


def test_the_source_distribution_has_all_that_make_needs(shipped: Path) -> None:
    (sdist,) = shipped.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = _files("*.md", "*.toml", "*.lock", "LICENSE", "Makefile", ".ci/*", "docs/**/*", "tests/**/*", "tools/*.sh")
    assert needed - names == set()


def test_a_wheel_works_alone(shipped: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere, without the checkout on the path."""
    (wheel,) = shipped.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import engine, sys; engine.open(sys.argv[1]).namespace('a')[b'k'] = b'v'; print(engine.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")],
        cwd=tmp_path / "site",
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert Path(ran.stdout.strip()) == tmp_path / "site" / "engine" / "__init__.py"
    assert ran.stderr == ""
