"""What a connection between two nodes is for. There are three to each peer; `engine.host.links` says what goes by which."""

from __future__ import annotations

from typing import TypeAlias

Role: TypeAlias = str
PEER: Role = "peer"
BEAT: Role = "beat"  # a peer of which heartbeats come this way
BULK: Role = "bulk"  # and what is large, and no write
BESIDE = (BEAT, BULK)
PEERS = (PEER, *BESIDE)
