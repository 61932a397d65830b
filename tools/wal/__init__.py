"""`foreshore wal`: what the log of a node says, and whether it can be true.

`cli` is the command; `places` finds a log, `trouble` tells what is wrong with it. `dump` shows records: which ones
(`filters`, `times`), to a person (`records`) and to a program (`objects`, of the types in `schema`). `key` (of `story`,
out of few blocks, `key_blocks`, with what is `copy_at_rest`) and `tx` (of `tx_story`) tell the story of one thing over many
logs; `diff` lays two logs side by side, `history` says what could be supplied from one. `counters` puts the copies of nodes
side by side. `verify` gives the verdict, which rests on more than bytes: `logic` (the log against itself),
`rows` and `audit` (the log against its store), `against` (the log against what its peers know). Nothing is written.
"""
