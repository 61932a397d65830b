"""Tests of `tools.bench`."""
