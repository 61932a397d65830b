"""What an operator may ask of a node, and the answers, as plain data that becomes JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from engine.cluster.orders import Cost
from engine.messages import SetMigrations, SetNamespace
from engine.node.inquiry import Inquiry
from engine.node.machines import Machines
from engine.node.map_counts import MapCounts
from engine.node.standings import counters, taken
from engine.protocol.requests import Admin, Code, Report
from engine.turn.events import SessionId
from engine.turn.turns import TURN_MS_MAX
from rebalance import migrations
from rebalance.namespaces import NOT_SAID, NamespaceSettings, Stands
from rebalance.partition import Role
from rebalance.ports import MS, all_of
from rebalance.salvage import as_object
from rebalance.table import Topology
from wal.ids import NAME, Fragment, Namespace, NodeId, Version, fragment_name, fragment_named

ROLES_OF_WORK = 64
"""So many roles are as much work to count as one thing that is decided."""


class Administration:
    """The operator's commands on one node."""

    def __init__(self, node: Machines) -> None:
        self.node = node
        self._inquiry = Inquiry(node)
        self._counts: MapCounts | None = None

    def on_admin(self, session: SessionId, request: Admin) -> None:
        """Do a command, or say why not."""
        arguments, problem, body = request.arguments, "", dict[str, Any]()
        nodes, sure = tuple(arguments.get("nodes", [])), "yes" in arguments
        match request.command:
            case "status":
                self.node.core.in_pieces(self._tell_status(session, request))
                return  # it answers when it is known what the map comes to
            case "counters":
                self.node.core.little_by_little(self._tell_counters(session, request))
                return  # it answers when all of them are put together; nobody else waits for that
            case "progress":
                self.node.core.in_pieces(self._tell_progress(session, request))
                return  # and here when all are counted
            case "init":
                cluster = arguments.get("cluster", [""])[0]
                problem = self.node.formation.form(session, request.id, cluster, arguments.get("nodes", []))
                if not problem:
                    return  # it answers when everyone has agreed
            case "baseline" | "remove":
                problem = self._changed_since(arguments.get("planned", []))
                if not problem:
                    self.node.core.in_pieces(self._order_baseline(session, request, nodes, sure=sure))
                    return  # it answers when it is known what that costs
            case "halt":
                problem = self.node.membership.leaving.halt(sure=sure)
            case "recover":
                joining = self.node.membership.joining
                problem = self.node.rescue.begin(session, request.id, nodes, joining.near(), seen=joining.seen, force=sure)
                if not problem:
                    return  # the answer follows
            case "reset-lost":
                lost = self.node.membership.orders.reset_lost(sure=sure)
                problem, body = (lost, {}) if isinstance(lost, str) else ("", {"lost": lost})
            case "refetch":
                problem, names = _fragments(arguments.get("fragments", []))
                problem = problem or self.node.anew.order(names)
                body = self.node.anew.as_object()
            case "namespaces" | "migrations":
                problem, body = self._ordered(request.command, arguments)
            case "locks" | "transactions" | "give-up":
                problem = self._inquiry.ask(session, request.id, request.command, arguments)
                if not problem:
                    return  # the answer follows
            case "checkpoint":
                self.node.checkpoint_wanted = True
            case "stop":
                self.node.membership.leaving.begin()
            case _:
                problem = f"command {request.command!r} is not known"
        self._answer(session, request, problem, body)

    def _answer(self, session: SessionId, request: Admin, problem: str, body: Mapping[str, Any]) -> None:
        if problem:
            self.node.desk.refuse(session, request.id, Code.USAGE, problem)
        else:
            self.node.desk.reply(session, Report(request.id, msgspec.json.encode(body)))

    def _tell_status(self, session: SessionId, request: Admin) -> Iterator[int]:
        """Answer with the status, when all of the newest map is counted."""
        core = self.node.core
        while (topology := core.topology) is not None and not self._counted(topology):
            self._counts = yield from MapCounts(topology).count()
        self._answer(session, request, "", self.status())

    def _tell_counters(self, session: SessionId, request: Admin) -> Iterator[int]:
        """Answer with where each copy of each fragment stands."""
        first, end = map(int, request.arguments.get("partitions", (0, 0)))
        body = yield from counters(
            self.node.core, request.arguments.get("namespace", ()), range(first, end) if end else None
        )
        self.node.desk.reply(session, Report(request.id, body))

    def _tell_progress(self, session: SessionId, request: Admin) -> Iterator[int]:
        """Answer with how this node's copies caught up, since it started."""
        demander = self.node.demander
        body = yield from taken(demander.progress)
        body |= {
            "behind": demander.behind,
            "updates": demander.progress.updates,
            "rows": demander.progress.rows,
            "put_off": len(demander.put_off),
            "held": len(demander.held),
            "supplied": self.node.supply.supplied,
            "remembered": {"partitions": len(self.node.mutations), "bytes": self.node.mutations.bytes},
            "fetched": self.node.promotion.fetched,
            "differed": {fragment_name(n): often for n, often in demander.settling.answers.differed.items()},
        }
        self._answer(session, request, "", body)

    def _counted(self, topology: Topology) -> bool:
        return self._counts is not None and self._counts.topology is topology

    def _order_baseline(
        self, session: SessionId, request: Admin, nodes: tuple[NodeId, ...], *, sure: bool
    ) -> Iterator[int]:
        """Order which nodes hold the data, or which do not any more, and answer with what it costs."""
        orders = self.node.membership.orders
        order = orders.set_baseline if request.command == "baseline" else orders.remove
        problem, body = _cost((yield from order(nodes, sure=sure)))
        self._answer(session, request, problem, body)

    def _changed_since(self, planned: list[str]) -> str:
        """Why what was planned for this map is not to be done, or nothing. Copies that came to count change no plan."""
        fence = str(self.node.core.fence)
        if not planned or planned == [fence]:
            return ""
        return f"this was planned for map {planned[0][:80]}, and it is {fence} now: look at `foreshore cluster plan` again"

    def status(self) -> dict[str, Any]:
        """The node, its view of the members, its partitions, and what holds things up."""
        node, core = self.node, self.node.core
        topology = core.topology
        each = [local.role for local in core.local]
        core.work += len(each) // ROLES_OF_WORK
        roles = {role.value: count for role in Role if role is not Role.DRAINING and (count := each.count(role))}
        if draining := each.count(Role.DRAINING):  # it serves
            roles[Role.PRIMARY.value] = roles.get(Role.PRIMARY.value, 0) + draining
        status: dict[str, Any] = {
            "node": core.node,
            "allocation": core.allocation,
            "incarnation": core.incarnation,
            "address": core.address,
            "cluster_name": core.settings.cluster,
            "formed": topology is not None,
            "serving": core.serving,
            "quorum": core.quorum,
            "version": str(core.version),
            "frozen": core.frozen,
            "durable_lsn": core.durable_lsn,
            "disk": core.room and {**core.room._asdict(), "low": core.room.low, "full": core.is_cramped},
            "moved": core.moved,
            "seen": sorted(node.membership.joining.seen),
            "partitions": roles,
            "behind": node.demander.behind,
            "locks": len(node.locks),
            "in_doubt": [tx.hex() for tx in node.participant.in_doubt()],
            "overdue": [tx.hex() for tx in node.participant.in_doubt(core.settings.in_doubt_ms)],
            "other_contents": [
                {"fragment": fragment_name(name), "node": other, "times": often}
                for (name, other), often in node.supply.vouching.differed.items()
            ],
            "anti_entropy": node.entropy.as_object(),
            "asynchronous": node.entropy.following.as_object(each.count(Role.ASYNC)),
            **node.names.alike.as_object(),
            **self._waits(),
            "split": [
                {"node": n, "version": str(version), "map": f"{map_hash:016x}"}
                for n, (version, map_hash) in node.exchange.splits.found.items()
            ],
            **self._memory(),
            "maps": core.maps.as_object(),
            "turns": {
                "taken": node.turns.taken,
                "above": node.turns.above,
                "bound_ms": TURN_MS_MAX,
                "longest_ms": round(node.turns.longest / MS, 1),
                "longest_took": node.turns.longest_took,
            },
        }
        return status | self._map_status(topology) if topology is not None else status

    def _waits(self) -> dict[str, Any]:
        """What the next map waits for; and what this node does, if it is told to stop."""
        membership = self.node.membership
        return {"held_up_by": self.node.exchange.held_up, "stopping": membership.leaving.as_object()}

    def _memory(self) -> dict[str, Any]:
        """What waits for the store, whose store does not keep up, and whose disk has no room, for an archive alone, too."""
        core = self.node.core
        return {
            "checkpointing": self.node.checkpointing,
            "in_no_checkpoint_bytes": core.replica.store.active_bytes,
            "backlogged": core.backlogged,
            "cramped": core.cramped,
            "not_archived": core.not_archived,
        }

    def _map_status(self, topology: Topology) -> dict[str, Any]:
        """What the map says, and how its members are."""
        node, core = self.node, self.node.core
        lags = node.replication.lags_ms()
        counts = self._counts
        if counts is None or counts.topology is not topology:
            counts = self._counts = all_of(MapCounts(topology).count())
        return {
            "cluster": topology.cluster,
            "stamp": f"{counts.stamp:016x}",
            "map": f"{core.map_hash:016x}",
            "partition_count": topology.partitions,
            "backups": topology.backups,
            "async_backups": topology.all_groups[0].async_backups,
            "epoch": counts.epoch,
            "coordinator": node.detector.coordinator(),
            "members": [
                {
                    "node": m.node,
                    "address": m.address,
                    "incarnation": m.incarnation,
                    "suspected": node.detector.suspected(m.node),
                    "sync_ms": node.membership.pace.sync_ms.get(m.node, 0),
                    "lag_ms": lags.get(m.node, 0),
                    "aside": max(0, topology.aside.get(m.node, 0)),
                    **counts.of(m.node),
                }
                for m in topology.members
            ],
            "baseline": list(topology.baseline),
            "baselined": str(topology.baselined),
            "copies": min(topology.backups + 1, len(topology.baseline)),
            "groups": [
                {
                    "backups": group.backups,
                    "async_backups": group.async_backups,
                    "copies": min(group.copies, len(topology.baseline)),
                    "first_partition": number * topology.partitions,
                    "namespaces": sum(said.group == number for said in topology.namespaces.values()),
                }
                for number, group in enumerate(topology.all_groups)
            ],
            "interventions": [as_object(i) for i in topology.interventions],
            "migrations": migrations.as_object(topology.migrations),
            "under_replicated": counts.under_replicated,
            "lost": counts.lost,
        }

    def namespaces(self) -> dict[str, Any]:
        """Those that this node has anything of, or its map: what the map says of them."""
        core = self.node.core
        known = [name for name in core.replica.namespaces if NAME.fullmatch(name)]
        told = dict.fromkeys(known, NOT_SAID) | core.namespaces
        return {
            "node": core.node,
            "namespaces": {name: self._namespace(name, said) for name, said in sorted(told.items())},
        }

    def _namespace(self, name: Namespace, said: NamespaceSettings) -> dict[str, Any]:
        """What the map says of one namespace, and whether this node has had anything of it."""
        top = self.node.core.topology
        assert top is not None
        group = top.all_groups[said.group]
        return {
            "since": str(said.since),
            "ttl_ms": said.ttl_ms,
            "stands": said.stands,
            "backups": group.backups,
            "async_backups": group.async_backups,
            "loss": said.loss,
            "written": said.stands is not Stands.DROPPED and name in self.node.core.replica.namespaces,
        }

    def _ordered(self, command: str, arguments: dict[str, list[str]]) -> tuple[str, dict[str, Any]]:
        """What is in the way of an order that changes what the map says, and what a node says to it."""
        if command == "migrations":
            return self._order_migrations(arguments), {}
        return self._order_namespace(arguments) if arguments else "", self.namespaces()

    def _order_namespace(self, arguments: dict[str, list[str]]) -> str:
        """Order what a namespace is to be like, or that it is dropped; why not, or nothing."""
        return self.node.membership.orders.namespaces.give(
            SetNamespace(
                arguments["name"][0],
                _version(arguments["seen"][0]),
                ttl_ms=int(arguments["ttl_ms"][0]),
                drop="drop" in arguments,
                backups=int(arguments["backups"][0]) if "backups" in arguments else -1,
                async_backups=int(arguments["async_backups"][0]) if "async_backups" in arguments else 0,
                loss=arguments["loss"][0] if "loss" in arguments else "",
            )
        )

    def _order_migrations(self, arguments: dict[str, list[str]]) -> str:
        """Order that they are paused, resumed or limited; why not, or nothing."""
        seen, paused, most = (arguments[name][0] for name in ("seen", "paused", "bytes_per_second"))
        return self.node.membership.orders.set_migrations(
            SetMigrations(_version(seen), migrations.Paused(paused), int(most))
        )


def _version(text: str) -> Version:
    major, _, minor = text.partition(".")
    return Version(int(major), int(minor))


def _fragments(words: list[str]) -> tuple[str, list[Fragment]]:
    """What is wrong with these words, and the fragments that they name."""
    try:
        return "", [fragment_named(word) for word in words]
    except ValueError as error:
        return str(error), []


def _cost(cost: Cost | str) -> tuple[str, dict[str, Any]]:
    """What is in the way, or what it costs."""
    return (cost, {}) if isinstance(cost, str) else ("", msgspec.to_builtins(cost) | {"cost": cost.told()})
