"""Tests of `engine.state`."""
