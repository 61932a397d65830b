"""Judges of recorded histories: given what clients asked and were told, name what the engine must not have done.

A checker is a pure function from a history to a list of anomalies; an empty list means that nothing in the history
contradicts the promise. The simulator and the harness of real processes record the same `Operation`s, so that one set
of judges serves both. Nothing here knows the engine: a judge that shares code with the accused repeats its mistakes.

| checker | actions | promise |
| --- | --- | --- |
| `list_append` | `Transaction` of `Append` and `Read` | (strict) serializability, exactly and in linear time |
| `register` | `Get`, `Put`, `CompareAndSet` | linearizability, key by key |
| `sets` | `Add`, `ReadSet` | a set that only grows is linearizable |
| `bank` | `Transfer`, `ReadBalances` | every read adds up |
| `ring` | `Rotate`, `ReadRing` | every read is one cycle through all keys |
| `monotonic` | `Update`, `Observe` | versions never go back; one version is one value |
| `idempotent` | `Apply`, `ReadApplied` | a transaction that is retried n times is applied once |
| `scan` | `Scan`, `Get`, `Put` | a scan and point reads of the same moment agree |

`history` says what is recorded, `notation` writes it as text that a test can be made of.
"""
