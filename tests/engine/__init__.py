"""Tests of the node, mirroring `engine`."""
