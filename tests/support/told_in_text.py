"""The line of a dump, made from the object of the same record: possible only if the object says all that the line does."""

from __future__ import annotations

from typing import Any


def line_of(told: dict[str, Any]) -> str:
    """What `foreshore wal dump` prints for the record that `--json` told so."""
    return f"lsn={told['lsn']} time={told['time']} {told['type']} {_about(told)}".rstrip()


def _about(told: dict[str, Any]) -> str:
    place = f"p{told['partition']} e{told['epoch']}" if "epoch" in told and "partition" in told else ""
    match told["type"]:
        case "update" | "history":
            words = [_write(write) for write in told["writes"]]
        case "prepare":
            parts = ",".join(map(str, told["participants"]))
            head = f"tx={told['tx']} {place} decided-in=p{told['decided_in']} participants={parts}{_issued(told)}"
            locks = [f"locks={lock['namespace']}/{told['partition']}:{lock['key']}" for lock in told["locks"]]
            words = [head, *(_write({**write, "tx": ""}) for write in told["writes"]), *locks]
        case "outcome":
            words = [f"tx={told['tx']} {place} {told['outcome']}", *_ranges(told["counters"])]
        case "noop":
            words = [place, *_ranges(told["counters"])]
        case "epoch":
            firsts = [f"{_fragment(point)} from {point['counter']}" for point in told["firsts"]]
            words = [place, *firsts, *(f"without tx={tx}" for tx in told["ended"])]
        case "preload":
            rows = [_row(entry) for entry in told["entries"]]
            words = [f"{_fragment(told)} rows={len(rows)}", *rows]
        case "results":
            ended = [f"{result['tx']}={result['outcome']}{_answer(result)}" for result in told["results"]]
            words = [f"p{told['partition']} results={len(ended)}", *ended]
        case "forget":
            answered = [f"{one['session']}<={one['up_to']}" for one in told["sessions"]]
            words = [f"{place} sessions={len(answered)}", *answered]
        case "clear":
            how = "gone" if told["gone"] else "loading, rows kept" if told["kept"] else "loading"
            words = [f"{_fragment(told)} {how}:", told["reason"].replace(" ", r"\x20")]
        case "ready":
            table = ",".join(f"{reign['epoch']}:{reign['first']}" for reign in told["epochs"]) or "-"
            way = "full" if told["full"] else "historical"
            words = [f"{_fragment(told)} lwm={told['lwm']} digest={told['digest']} epochs={table} {way}"]
        case "undo":
            words = [f"{_fragment(told)} above={told['above']}", *told["keys"]]
        case "promised":
            words = [f"after={told['after']} ballot={told['ballot']}"]
        case "accepted":
            words = [f"after={told['after']} ballot={told['ballot']} version={told['version']}"]
        case "committed":
            words = [f"version={told['version']}{' step' if told.get('step') else ''} bytes={told['bytes']}"]
        case "boot":
            words = [f"start={told['start']} incarnation={told['incarnation']} at={told['at']}"]
        case "claimed":
            claims = [f"{claim['node']}:{claim['incarnation']}<={claim['durable_lsn']}" for claim in told["claims"]]
            words = [f"under={told['version']}", *claims]
        case "checkpoint":
            words = [f"up-to={told['up_to']}"]
        case "trimmed":
            words = [f"below={told['first_lsn']}", *(f"{_fragment(p)}<={p['counter']}" for p in told["dropped"])]
        case "stable":
            words = [place, *(f"{_fragment(point)}<={point['counter']}" for point in told["counters"])]
        case "compare":
            words = [f"{place} with={told['copy_on']} round={told['round']}"]
        case "origin":
            known = [f"{name}={told[name]}" for name in ("by", "label", "client", "address") if told.get(name)]
            words = [f"tx={told['tx']} {place}", *known, *(["labels=all-of-its-session"] if told.get("labels_all") else [])]
            words += [f"session-opened={told['session_opened']}"] if told.get("session_opened") else []
        case other:
            raise AssertionError(f"no line is known for a {other}")
    return " ".join(words)


def _fragment(told: dict[str, Any]) -> str:
    return f"{told['namespace']}/{told['partition']}"


def _ranges(counters: list[dict[str, Any]]) -> list[str]:
    return [f"{_fragment(one)}({one['first'] - 1},{one['last'] - one['first'] + 1})" for one in counters]


def _issued(told: dict[str, Any]) -> str:
    return f" issued-in=e{told['issued_in']}" if told.get("issued_in") else ""


def _write(told: dict[str, Any]) -> str:
    words = [f"{_ranges([told])[0]}e{told['epoch']}{_issued(told)}"]
    if told.get("tx"):
        words.append(f"tx={told['tx']}")
    if told.get("closed"):
        words.append("closed")
    return " ".join([*words, *map(_entry, told["entries"])]) + _answer(told)


def _answer(told: dict[str, Any]) -> str:
    return f" answer={_shown(told['answer'])}" if "answer" in told else ""


def _shown(told: dict[str, Any]) -> str:
    shown = f":{told['value']}" if "value" in told else f"#{told['hash']}" if "hash" in told else ""
    return f"{told['size']}B{shown}"


def _row(told: dict[str, Any]) -> str:
    if told["op"] == "absent":
        return f"{told['key']}=deleted@{told['epoch']}.0"
    return f"{_entry(told)}@{told['epoch']}.{told['counter']}"


def _entry(told: dict[str, Any]) -> str:
    match told["op"]:
        case "decide":
            return f"{told['key']}={told['decision']}"
        case "forget":
            return f"{told['key']}=forgotten"
        case "delete":
            return f"{told['key']}=deleted"
        case "put":
            return f"{told['key']}={_shown(told)}"
        case other:
            raise AssertionError(f"no words are known for {other}")
