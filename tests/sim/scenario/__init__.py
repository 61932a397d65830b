"""Scenarios: stories on simulated nodes, in a small language that `docs/scenarios.md` describes."""
