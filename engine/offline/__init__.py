"""A data directory, read beside the live node or after it, by the same fold; only `repair` writes, into a stopped one."""
