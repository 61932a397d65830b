"""The packages that belong together: where another of the same name comes first on the path, it is named.

Their names are short, and an application may have a package of the same name; then an import deep inside would fail
with an AttributeError that says nothing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from os.path import dirname, join, realpath


def check_siblings(names: Iterable[str]) -> None:
    """Raise ImportError if one of these packages would not be imported from where this one is."""
    ours = dirname(dirname(realpath(__file__)))
    for name in names:
        found = importlib.util.find_spec(name)
        places = list(found.submodule_search_locations or [found.origin or ""]) if found is not None else []
        if not any(realpath(place) == join(ours, name) for place in places):
            there = f"{places[0]} comes before it on sys.path" if places else "there is none on sys.path"
            raise ImportError(
                f"foreshore needs its own package {name!r}, in {ours}, and {there}: rename the other one, or take the "
                "directory that it is in off the path (PYTHONPATH, or where the program was started)"
            )
