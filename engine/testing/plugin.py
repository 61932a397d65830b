"""The pytest plugin: the fixture `foreshore_cluster`, which makes clusters that end with their test.

```python
def test_it(foreshore_cluster):
    nodes = foreshore_cluster(3)
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from engine.testing import Cluster


@pytest.fixture
def foreshore_cluster() -> Iterator[Callable[..., Cluster]]:
    """A function with the parameters of `engine.testing.cluster`; what it makes ends with the test."""
    from engine.testing import cluster  # noqa: PLC0415  # a test run without clusters imports nothing

    with ExitStack() as stack:
        yield lambda *args, **settings: stack.enter_context(cluster(*args, **settings))
