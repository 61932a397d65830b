"""Tests of the write-ahead log, from single counters to power cuts."""
