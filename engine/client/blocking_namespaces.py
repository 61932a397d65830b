"""The namespaces of a database for blocking code: `engine.client.namespaces` over a loop in a thread."""

from __future__ import annotations

from engine.client.loop import Loop
from engine.client.namespaces import NamespaceInfo, Policy, WithNamespaces


class BlockingNamespaces:
    """The namespaces of a database, for a program that blocks."""

    _loop: Loop
    _native: WithNamespaces

    def namespaces(self, *, timeout: float | None = None) -> list[NamespaceInfo]:
        """All namespaces that anybody has written to or created, by name; not a snapshot."""
        return self._loop.run(self._native.namespaces(timeout=timeout))

    def create_namespace(
        self,
        name: str,
        *,
        ttl: float | None = None,
        backups: int | None = None,
        async_backups: int | None = None,
        loss_policy: Policy | None = None,
        timeout: float | None = None,
    ) -> None:
        """Give a namespace settings of its own.

        `ttl`, seconds for which a value lasts that is written without one of its own (None: for good), holds for what is
        written from then on. `backups` is how many copies there are to be of what is in it, beside the first one, and
        `async_backups` how many beside these that nobody waits for; 6 of both together at most. Where only one of the two
        is given, the other one is the cluster's; where neither is, both are as they are, which is the cluster's numbers at
        first. Of what was written they cannot be changed. `loss_policy`: READ_WRITE_SAFE, which is so at first, refuses
        what is in a LOST partition; READ_ONLY_SAFE every write of the namespace while there is one.

        Raises UsageError where somebody else changes it at the same time.
        """
        asked = self._native.create_namespace(
            name, ttl=ttl, backups=backups, async_backups=async_backups, loss_policy=loss_policy, timeout=timeout
        )
        self._loop.run(asked)

    def drop_namespace(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a namespace with all that is in it; it is gone on every copy when this returns, and may be begun anew.

        Meanwhile nobody reads or writes it: that is refused as a UsageError. A transaction that holds something of it is
        waited for. Raises UsageError if there is none of that name.
        """
        self._loop.run(self._native.drop_namespace(name, timeout=timeout))
