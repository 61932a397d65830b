"""The simulator: a cruel, repeatable world for whole clusters, and the oracles that judge what happened in it."""
