"""How long a test waits for what must come: until it is surely a hang, also on a machine that is twenty times slower."""

from __future__ import annotations

PATIENCE_SECONDS = 600.0
