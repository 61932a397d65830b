"""The programs of docs/cookbook.md, run as they are printed there against three nodes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_SECONDS

PAGE = (Path(__file__).parents[2] / "docs" / "cookbook.md").read_text()
PROGRAMS = dict(re.findall(r"^## (.+?)$.*?^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
SAY = {
    "A job queue": "60 done, 0 waiting, 0 claimed\n",
    "An audited bank": "total 300, as audited: True\n",
    "Each message once": "[True, True, False, True, False] {'{ann}': 12, '{bob}': 1}\n",
    "A leader, and what it may still write": (
        "term 1 is over: n2 leads term 2\n{'february': 'paid by n2', 'january': 'paid by n1'}\n"
    ),
    "A web service": "True 12\n",
    "Tickets, and a page that two people edit": "40 tickets, the last is 40\nTrue\nFalse\ngreen tea and cake\n",
}


@pytest.mark.parametrize("title", SAY)
def test_a_program_does_what_the_page_says(title: str, addresses: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAMS[title], addresses],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == (SAY[title], "", 0)


def test_every_program_of_the_page_is_run() -> None:
    assert set(PROGRAMS) == set(SAY)
