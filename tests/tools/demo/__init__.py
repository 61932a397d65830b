"""Tests of `tools.demo`."""
