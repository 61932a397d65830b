"""What all tests share: draws that are the same in each run.

The gate must not depend on a draw: hypothesis derives its examples from the test itself (the profile `gate`).
`--hypothesis-profile random` draws others each time, to look for what the gate's do not find; what it finds is printed
as a line to paste (`@reproduce_failure`), and becomes an `@example` or a test of its own.
"""

from __future__ import annotations

import signal

from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background so, and every process below would be deaf to what tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("gate", derandomize=True, deadline=None, database=None)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("gate")
