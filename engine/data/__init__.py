"""Reads and writes on one partition: what may be served now, how it reaches the copies, and when it counts."""
