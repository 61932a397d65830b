"""Records as stories write them, one a line:

```
update acc/0 0 e1 a=1 b=2 c=     counters 1 to 3 of acc/0, issued in epoch 1: two puts and a delete
  [stable=2] [tx=t1] [origin=1]  the primary's LWM when it was reserved; whose it is; the epoch that first issued it
history acc/0 0 e1 a=1           the same, come from another copy
prepare t1 acc/0 3 e1 d=4        a vote that holds counter 4
outcome t1 commit acc/0 3 1 e1   ... becomes an update; with `rollback` it is closed
close acc/0 4 1 e1               a no-op: counter 5 is a closed gap
epoch acc/0 6 e2                 counters of acc/0 from 6 on belong to epoch 2
undo acc/0 5 a b                 what lies above 5 was not continued; it touched a and b
clear acc/0 [gone]               emptied, to be taken in full (or moved away)
preload acc/0 a=1@1.3 b=@1.4     rows of a full transfer, each with its (epoch, counter)
ready acc/0 4 [full]             the transfer is complete, up to counter 4
origin t1 acc/0 e1 by=n1         where a transaction comes from
  [label=] [client=] [address=]  what it is called, and whose it is
```
"""

from __future__ import annotations

from tests.conversations.names import Names
from tests.conversations.story import Command, StoryError
from wal import records as r
from wal.ids import Fragment


def record(command: Command, names: Names) -> r.Record:
    """The record that a line says."""
    kind = command.verb
    match kind:
        case "update":
            return r.Update([write(command, fragment(command), names)])
        case "history":
            return r.History([write(command, fragment(command), names)])
        case "prepare":
            tx = names.tx(command.word("a transaction"))
            held = write(command, fragment(command), names, tx)
            return r.Prepare(tx, held.partition, held.epoch, [held], [], [held.partition], held.partition)
        case "outcome":
            tx, commit = names.tx(command.word("a transaction")), _outcome(command)
            namespace, partition = fragment(command)
            start, delta = command.number("start"), command.number("delta")
            return r.Outcome(tx, partition, epoch(command), commit, [(namespace, start, delta)])
        case "close":
            namespace, partition = fragment(command)
            start, delta = command.number("start"), command.number("delta")
            return r.NoOp(partition, epoch(command), [(namespace, start, delta)])
        case "epoch":
            namespace, partition = fragment(command)
            first = command.number("the first counter")
            return r.EpochStart(partition, epoch(command), [(namespace, first)])
        case "undo":
            namespace, partition = fragment(command)
            above = command.number("above")
            return r.Undo(namespace, partition, above, [word.encode() for word in command.rest()])
        case "clear":
            namespace, partition = fragment(command)
            return r.FragmentClear(namespace, partition, "the story says so", command.flag("gone"), command.flag("kept"))
        case "ready":
            namespace, partition = fragment(command)
            return r.FragmentReady(namespace, partition, command.number("lwm"), 0, [], command.flag("full"))
        case "origin":
            tx, (_, partition) = names.tx(command.word("a transaction")), fragment(command)
            by, label, client, address = (command.option(name) or "" for name in ("by", "label", "client", "address"))
            return r.Origin(partition, epoch(command), tx, by, label, client=client, address=address)
        case "preload":
            return _preload(command, fragment(command))
    raise StoryError(f"no such record: {kind}")


def write(command: Command, name: Fragment, names: Names, tx: bytes = b"") -> r.Write:
    """`0 e1 a=1 b=`: start, epoch, and what is written from there on."""
    start, number = command.number("start"), epoch(command)
    stable, origin = int(command.option("stable") or 0), int(command.option("origin") or 0)
    named = command.option("tx")
    keys, values = entries(command.rest())
    return r.Write(*name, number, start, keys, values, stable, names.tx(named) if named else tx, 0, origin)


def entries(words: list[str]) -> tuple[list[bytes], list[bytes | None]]:
    """`a=1 b= c`: a put, a delete, and a put of something."""
    pairs = [word.partition("=") for word in words]
    keys = [key.encode() for key, _, _ in pairs]
    return keys, [(value.encode() or None) if equals else b"value of " + key.encode() for key, equals, value in pairs]


def fragment(command: Command) -> Fragment:
    """The next word, as `acc/7`."""
    word = command.word("a fragment, as acc/7")
    namespace, _, partition = word.partition("/")
    if not partition.isdigit():
        raise StoryError(f"not a fragment: {word!r}; expected acc/7")
    return (namespace, int(partition))


def epoch(command: Command) -> int:
    """The next word, as `e1`."""
    word = command.word("an epoch, as e1")
    if not word.startswith("e") or not word[1:].isdigit():
        raise StoryError(f"not an epoch: {word!r}; expected e1")
    return int(word[1:])


def _outcome(command: Command) -> bool:
    word = command.word("commit or rollback")
    if word not in {"commit", "rollback"}:
        raise StoryError(f"expected commit or rollback: {word!r}")
    return word == "commit"


def _preload(command: Command, name: Fragment) -> r.Preload:
    preload = r.Preload(*name, [], [], [], [])
    for word in command.rest():
        said, _, version = word.partition("@")
        key, _, value = said.partition("=")
        at, _, counter = version.partition(".")
        preload.epochs.append(int(at))
        preload.counters.append(int(counter))
        preload.keys.append(key.encode())
        preload.values.append(value.encode() or None)
    return preload
