"""`foreshore demo`: the whole story with real data, and its evidence.

`cli` is the command, `story` the acts against real processes, `flights` the data, `load` who writes it, `evidence` what is
compared in the end, `screen` and `summary` what a person sees of it.
"""
