"""What nodes say to each other: a closed union of small values.

A message is the thing said (`Announce`, `Replicate`, `Demand`), not a call. Every message that touches data carries
the topology version it was sent in (light steps aside: `Topology.fence`); a copy rejects anything from an older one,
and asks for the map when it meets a newer one. That is the fence which keeps a deposed primary harmless. All messages
may be lost, doubled or reordered: whoever needs an answer asks again, and whoever answers twice says the same.

What is said about copies is `rebalance.messages`; what the engine adds is here, in four modules, and the union of all.
"""

from __future__ import annotations

from typing import TypeAlias, get_args

from engine.messages.cluster import (
    Accept,
    AcceptStep,
    Announce,
    AskMap,
    CaughtUp,
    Commit,
    CommitStep,
    Drained,
    Follows,
    Halt,
    HandOver,
    Heartbeat,
    Join,
    LeadSteps,
    Leave,
    Promise,
    Propose,
    ProposeStep,
    Refuse,
    ResetLost,
    SetBaseline,
    SetMigrations,
    SetNamespace,
    Survey,
    Surveyed,
)
from engine.messages.cuts import Entered, EnterEra, SealCut, Sealed
from engine.messages.data import Confirm, Confirmed, Replicate, Replicated
from engine.messages.transactions import (
    Finish,
    Finished,
    GiveWay,
    Inquire,
    Inquired,
    Part,
    PrepareParts,
    Resolve,
    Vote,
    Waits,
)
from rebalance.lives import Life
from rebalance.messages import (
    AllSettled,
    AskCopies,
    AskProofs,
    AskTail,
    Contents,
    Copies,
    CopyProof,
    CopyReport,
    CopyTail,
    Credit,
    Demand,
    Have,
    Heal,
    Proofs,
    Settle,
    Settled,
    SingleMap,
    Stands,
    Supply,
    Tail,
    TailReport,
    Transfer,
)

Message: TypeAlias = (
    Heartbeat
    | Join
    | Leave
    | SetBaseline
    | SetNamespace
    | SetMigrations
    | ResetLost
    | Halt
    | Survey
    | Surveyed
    | Announce
    | Promise
    | SingleMap
    | AskCopies
    | Copies
    | Propose
    | Accept
    | Refuse
    | Commit
    | AskMap
    | CaughtUp
    | LeadSteps
    | Follows
    | ProposeStep
    | AcceptStep
    | CommitStep
    | HandOver
    | Drained
    | Replicate
    | Replicated
    | Confirm
    | Confirmed
    | EnterEra
    | Entered
    | SealCut
    | Sealed
    | AskTail
    | Tail
    | PrepareParts
    | Vote
    | Finish
    | Finished
    | Resolve
    | Inquire
    | Inquired
    | Waits
    | GiveWay
    | Demand
    | Credit
    | Supply
    | Settled
    | AllSettled
    | Settle
    | AskProofs
    | Proofs
    | Heal
    | Stands
)

KINDS: tuple[type[Message], ...] = get_args(Message)


def kind_of(message: Message) -> str:
    """The message's name, as it stands in a trace, a scenario and a log line: `announce`, `replicate`, ..."""
    return str(message.__struct_config__.tag)


__all__ = [
    "KINDS",
    "Accept",
    "AcceptStep",
    "AllSettled",
    "Announce",
    "AskCopies",
    "AskMap",
    "AskProofs",
    "AskTail",
    "CaughtUp",
    "Commit",
    "CommitStep",
    "Confirm",
    "Confirmed",
    "Contents",
    "Copies",
    "CopyProof",
    "CopyReport",
    "CopyTail",
    "Credit",
    "Demand",
    "Drained",
    "EnterEra",
    "Entered",
    "Finish",
    "Finished",
    "Follows",
    "GiveWay",
    "Halt",
    "HandOver",
    "Have",
    "Heal",
    "Heartbeat",
    "Inquire",
    "Inquired",
    "Join",
    "LeadSteps",
    "Leave",
    "Life",
    "Message",
    "Part",
    "PrepareParts",
    "Promise",
    "Proofs",
    "Propose",
    "ProposeStep",
    "Refuse",
    "Replicate",
    "Replicated",
    "ResetLost",
    "Resolve",
    "SealCut",
    "Sealed",
    "SetBaseline",
    "SetMigrations",
    "SetNamespace",
    "Settle",
    "Settled",
    "SingleMap",
    "Stands",
    "Supply",
    "Survey",
    "Surveyed",
    "Tail",
    "TailReport",
    "Transfer",
    "Vote",
    "Waits",
    "kind_of",
]
