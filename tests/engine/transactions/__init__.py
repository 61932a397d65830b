"""Tests of `engine.transactions`."""
