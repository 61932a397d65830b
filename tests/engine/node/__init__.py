"""Tests of `engine.node`."""
