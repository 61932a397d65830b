"""`--rewrite`: write the answers anew instead of comparing them."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the answers of the conversations anew")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether the answers are to be written."""
    return bool(request.config.getoption("--rewrite", False))
