"""Conversations with single machines of the engine: stories in `tests/testdata/<machine>/`, told to an interpreter each.

The form is that of etcd-raft's and Pebble's data-driven tests. `pytest tests/conversations --rewrite` (`make rewrite`)
writes the answers anew; the diff is the review.
"""
