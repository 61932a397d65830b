"""Does it bite? Deliberate faults, each of which an oracle must find, or whose harmlessness must be understood.

A fault is planted into the live machines of each simulated node as it starts: one method of one instance is replaced or
wrapped, and nothing else in the world is touched. Production code knows nothing of it. `fault` says what a fault is and
how it is planted; the modules beside it hold the faults, by what they break; `catches` knows what finds each of them;
`search` is the program that looks for it. `docs/planted-faults.md` is the table of all this, made from here.
"""
