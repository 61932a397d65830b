"""The heart: where copies belong, what each of them has, and how one becomes whole.

A partition has a primary, which hands out counters, and other copies. The committed map (`table`) says which of them are
in sync: those an acknowledgement waits for. `affinity` says where copies should be, and `plan` is the next map as a pure
function of this one, of who is here and of what they say they have. A copy that is not in sync is MOVING, and becomes
whole in one conversation:

```
 MOVING copy: demander                      its primary: supplier
 Demand(what I have)   ------------------>  chooses a transfer for every fragment (`choice`)
                       <------------------  Supply: epochs and transfers, then batches
 undo, clear, log, apply; Credit(batch) -->
                       <------------------  Supply ... last
 Settled(lwm, digests, contents) -------->  from now on its answers are waited for
                       <------------------  Settle(marks), unless it is at these
 Settled again, at the marks ------------>  compares what both contain (`comparing`), and vouches: in sync by the next map
```

Five kinds: **nothing** is missing; what is missing is in the primary's log, **historical**; it remembers which keys were
changed meanwhile, **mutations**; the rows that differ go, **differential** (`docs/differential.md` draws these two); or all
rows do, **full**.

A primary that the map names anew owes a `promotion` first: it fetches what the in-sync survivors have beyond it, closes
the gaps that are left, and issues again in its own epoch what may not be everywhere.

What never stops being true:

* Equal epoch table and LWM: equal digest and equal contents (`fragment`). What was undone was never promised.
* Nothing is remembered of a transfer that is not in the log: one that breaks off is followed by a demand for the rest.
* A copy is in sync only on the word of a primary which found in it, at one place between the writes, what it has itself.
* A transfer waits for a checkpoint sooner than it fills memory: what came and is in none is bounded, however much comes.
* Disks that forget are known: by their name, and by what their `lives` had claimed.

Nothing here knows a client, a socket or a clock. `ports` is all that a rule sees of its node; `messages` is all it says.
"""
