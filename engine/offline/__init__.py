"""A data directory, read beside the live node or after it, by the same fold; nothing is written."""
