"""Tests of the heart, mirroring `rebalance`."""
