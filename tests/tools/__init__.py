"""Tests of the programs around the engine, mirroring `tools`."""
