"""`foreshore bench`: every figure that this project claims, measured with real processes, LMDB and fsync.

`cli` is the command, and `figures` what a figure is; each other module measures one thing: `cluster`, `embedded`, `log`,
`memory`, `store`, `sustained`, `turns`.
"""
