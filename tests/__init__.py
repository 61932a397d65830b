"""Tests mirror the source; `testdata/` holds conversations and scenarios, `sim/` the simulator."""
