"""Tests of `engine.data`."""
