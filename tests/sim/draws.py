"""Where chance comes from: one seed, and a generator of its own for every component.

A component that draws once more must not change what another one draws, or a repaired fault would hide every seed that
had found it. So nobody shares a generator, and none is made from another: each is derived from the seed and a name.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random


class Draws:
    """All generators of one run. The same seed and name give the same numbers in every process."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self._generators: dict[str, Random] = {}

    def of(self, name: str) -> Random:
        """The generator of this name; the same one each time."""
        generator = self._generators.get(name)
        if generator is None:
            generator = self._generators[name] = self.fresh(name)
        return generator

    def fresh(self, name: str) -> Random:
        """A generator of this name at its beginning."""
        digest = blake2b(f"{self.seed}/{name}".encode(), digest_size=16).digest()
        return Random(int.from_bytes(digest, "big"))
