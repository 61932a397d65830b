"""Tests of `engine.turn`."""
