"""The namespaces of a database for blocking code: `engine.client.namespaces` over a loop in a thread."""

from __future__ import annotations

from engine.client.loop import Loop
from engine.client.namespaces import NamespaceInfo, WithNamespaces


class BlockingNamespaces:
    """The namespaces of a database, for a program that blocks."""

    _loop: Loop
    _native: WithNamespaces

    def namespaces(self, *, timeout: float | None = None) -> list[NamespaceInfo]:
        """All namespaces that anybody has written to or created, by name; not a snapshot."""
        return self._loop.run(self._native.namespaces(timeout=timeout))

    def create_namespace(self, name: str, *, ttl: float | None = None, timeout: float | None = None) -> None:
        """Give a namespace settings of its own, whether or not it was written to before: they hold for what is written
        from then on. `ttl`: seconds for which a value lasts that is written without one of its own; None: for good.

        Raises UsageError where somebody else changes it at the same time.
        """
        self._loop.run(self._native.create_namespace(name, ttl=ttl, timeout=timeout))

    def drop_namespace(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a namespace with all that is in it; it is gone on every copy when this returns, and may be begun anew.

        Meanwhile nobody reads or writes it: that is refused as a UsageError. A transaction that holds something of it is
        waited for. Raises UsageError if there is none of that name.
        """
        self._loop.run(self._native.drop_namespace(name, timeout=timeout))
