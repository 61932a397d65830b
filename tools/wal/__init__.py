"""`foreshore wal`: what the log of a node says, and whether it can be true.

`cli` is the command; `places` finds a log, `records` shows what is in it, `counters` puts the copies of nodes side by side.
`verify` gives the verdict, which rests on more than bytes: `logic` (the log against itself), `rows` and `audit` (the log
against its store), `against` (the log against what its peers know). Nothing is written.
"""
