"""Tests of `tools.wal`."""
