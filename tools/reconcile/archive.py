"""`python -m tools.reconcile.archive OUT`: this project and what it needs, as an archive for Spark's `--archives`.

Executors import from it what they have not: the packages of this project, and the distributions that a node needs, as
they are installed here, compiled parts included. So executors need the same processor, system and minor version of Python
as this environment, and nothing of ours. Spark itself is there where it runs.
"""

from __future__ import annotations

import gzip
import re
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("wal", "rebalance", "engine", "tools")
MODULES = ("foreshore.py", "pyspark_foreshore.py")
EXTRA = "node"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


def distributions(name: str, extra: str = "") -> dict[str, metadata.Distribution]:
    """What a distribution needs, and what that needs, by canonical name; as installed here.

    What is not installed is for another system or Python: the environment was made from these very requirements.
    """
    found: dict[str, metadata.Distribution] = {}
    todo = [*_needs(metadata.distribution(name), extra)]
    while todo:
        canonical = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        with suppress(metadata.PackageNotFoundError):
            if canonical not in found:
                found[canonical] = metadata.distribution(canonical)
                todo += _needs(found[canonical], "")
    return dict(sorted(found.items()))


def _needs(distribution: metadata.Distribution, extra: str) -> Iterator[str]:
    """The names in its requirements, and in those of one of its extras."""
    for requirement in distribution.requires or []:
        name, asked = _NAME.match(requirement), _EXTRA.search(requirement)
        if name is not None and (asked is None or asked[1] == extra):
            yield name[0]


def files() -> Iterator[tuple[str, Path]]:
    """Names in the archive, and the files; in a fixed order."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                yield str(path.relative_to(ROOT)), path
    for module in MODULES:
        yield module, ROOT / module
    for distribution in distributions("foreshore", EXTRA).values():
        for file in sorted(distribution.files or [], key=str):
            path = Path(str(distribution.locate_file(file)))
            if ".." not in file.parts and path.is_file() and path.suffix != ".pyc":
                yield str(file), path


def archive() -> bytes:
    """The archive: the same bytes for the same files."""
    packed = BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=2, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for name, path in files():
            info = tarfile.TarInfo(name)
            data = path.read_bytes()
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, BytesIO(data))
    return packed.getvalue()


def main() -> None:
    """Write it."""
    out = Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    data = archive()
    out.write_bytes(data)
    print(f"{out}: {len(data)} bytes, for Python {sys.version_info.major}.{sys.version_info.minor}")


if __name__ == "__main__":
    main()
