"""A node is a list of rules: each is switched, woken and told what it takes, and stands where it does for a reason."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from engine.messages import KINDS
from rebalance.rule import NEVER, Alarm, NewMap, Rule
from tests.engine.transactions.test_participant import lone_node


def test_a_new_map_takes_effect_on_each_rule_once_and_every_place_has_its_reason() -> None:
    node = lone_node()
    switched = [step.__self__ for step, _ in node.order if step.__name__ == "switch"]  # type: ignore[attr-defined]
    waits = {node.exchange, node.formation, node.rescue, node.stability}
    assert all(type(rule).switch is Rule.switch for rule in waits), "these live through any map"
    assert {type(rule).__name__ for rule in switched} == {type(rule).__name__ for rule in node.rules if rule not in waits}
    assert len(switched) == len(set(switched))
    reasons = [why for _, why in node.order]
    assert all(len(why.split()) > 5 for why in reasons)
    assert len(set(reasons)) == len(reasons)


def test_what_a_new_map_is_to_a_rule_a_handover_is_to_it_too_in_the_same_order() -> None:
    node = lone_node()

    def names(order: list[tuple[Callable[[NewMap], None], str]]) -> list[str]:
        return [type(takes_effect.__self__).__name__ for takes_effect, _ in order]  # type: ignore[attr-defined]

    apart = {node._begin_again, node._prepare_affinity}  # no partition was lost, and the same nodes hold data
    assert names(node.order_of_handovers) == names([step for step in node.order if step[0] not in apart])
    told = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/handover.md").read_text(), re.MULTILINE)
    assert sorted(told) == sorted(type(rule).__name__ for rule in node.rules), "docs/handover.md says it of each rule"


def test_every_message_is_taken_by_one_rule_whose_handler_has_a_case_for_each() -> None:
    node = lone_node()
    taken = [kind for rule in node.rules for kind in rule.takes]
    assert sorted(kind.__name__ for kind in taken) == sorted(kind.__name__ for kind in KINDS)
    for rule in node.rules:
        if rule.takes:
            tree = ast.parse(textwrap.dedent(inspect.getsource(type(rule).on)))
            calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
            assert "assert_never" in calls, f"{type(rule).__name__}.on lets a new message pass"


def test_an_alarm_rings_for_the_first_of_those_who_asked_and_for_what_is_not_due_yet() -> None:
    alarm = Alarm()
    alarm.by(300)
    alarm.by(500)
    assert alarm.at == 300
    assert alarm.is_due(200, now=250)
    assert alarm.at == 300
    assert not alarm.is_due(280, now=250)
    assert alarm.at == 280
    alarm.off()
    assert alarm.at == NEVER


# One alarm, one resend rule.

ROOT = Path(__file__).parents[3]
FILES = [
    file
    for package in ("rebalance", "engine/cluster", "engine/data", "engine/transactions")
    for file in sorted((ROOT / package).glob("*.py"))
]

LOOKS_ELSEWHERE = {
    "Stability": "it wakes where there is a tail, and tails are the replica's",
    "Deadlocks": "it wakes where somebody waits, and who does is in the lock table",
    "Locking": "the lock table has a heap of deadlines, because there may be a hundred thousand",
}
"""The rules that are woken by what others have, and not by their alarm."""

BY_THE_CLOCK = {
    "Deadlocks.tick": "who has waited for a moment, in the order in which they have begun to",
    "Demander.tick": "how long a supplier was silent, which ends a session and asks nothing again",
    "Formation.tick": "an order of an operator is given up",
    "Membership.tick": "a heart beats, whether or not anybody answers",
    "Sessions.tick": "answers grow old",
}
"""What a rule that is woken asks of the clock itself instead of its alarm, and why."""

SAID_AGAIN_OTHERWISE = {
    "Batch.is_on_its_way": "a patience of its own: large batches said again too soon leave no room for anything else",
    "Answers.note": "says nothing by itself: who asks again is not told again what may be on its way",
    "Patience.is_over": "says nothing by itself: for how long a supplier may be silent grows each time",
    "Settling.go_on": "a heap, half as often each time: thousands of partitions may wait for the next map",
    "Vouching._compare": "nobody waits for it by time: it is asked anew when the copy says again that it has settled",
    "Demander._end": "a primary that has nothing to give yet is left alone for so long",
    "Demander._put_off_or_again": "what differs again and again is asked for less and less often",
}
"""Who says something again after a multiple of `retransmit_ms` without an alarm's asking for it, and why."""


def classes(text: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The methods of a module, each with its full name."""
    for kind in ast.parse(text).body:
        if isinstance(kind, ast.ClassDef):
            for part in kind.body:
                if isinstance(part, ast.FunctionDef):
                    yield f"{kind.name}.{part.name}", part


def asks_the_clock(function: ast.FunctionDef) -> bool:
    """Whether it compares the time with another one."""
    return any(
        isinstance(node, ast.Compare)
        and any(isinstance(part, ast.Attribute) and part.attr == "now" for part in ast.walk(node))
        for node in ast.walk(function)
    )


def says_again_by_itself(text: str) -> list[str]:
    """The methods of a module which reckon with `retransmit_ms`, and of whose result no alarm hears.

    One hears of it in the method itself, or of what the method sets, in another one.
    """
    asked = {
        part.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "is_due"
        for part in ast.walk(node.args[0])
        if isinstance(part, ast.Attribute)
    }
    found: list[str] = []
    for name, function in classes(text):
        nodes = list(ast.walk(function))
        if any(isinstance(node, ast.Attribute) and node.attr == "retransmit_ms" for node in nodes):
            rings = any(isinstance(node, ast.Attribute) and node.attr == "alarm" for node in nodes)
            sets = {
                target.attr
                for n in nodes
                if isinstance(n, ast.Assign)
                for target in n.targets
                if isinstance(target, ast.Attribute)
            }
            if not rings and not sets & asked:
                found.append(name)
    return found


def test_a_rule_has_one_alarm_and_nobody_sets_anothers() -> None:
    rules = lone_node().rules
    assert {type(r).__name__ for r in rules if type(r).wake_at is not Rule.wake_at} == set(LOOKS_ELSEWHERE)
    assert len({id(rule.alarm) for rule in rules}) == len(rules)
    made = [file.name for file in FILES if "Alarm(" in file.read_text(encoding="utf-8")]
    assert made == ["rule.py"]
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr == "alarm":
                assert ast.unparse(node) == "self.alarm", f"{file.name}:{node.lineno}: {ast.unparse(node)}"


def test_whether_a_time_has_come_is_asked_of_the_alarm() -> None:
    second = "class A(Rule):\n    def tick(self):\n        if self.core.now >= self._resend_at:\n            self._say()\n"
    assert [name for name, function in classes(second) if asks_the_clock(function)] == ["A.tick"]
    first = second.replace("self.core.now >= self._resend_at", "self.alarm.is_due(self._resend_at, self.core.now)")
    assert [name for name, function in classes(first) if asks_the_clock(function)] == []
    found = {
        name
        for file in FILES
        for name, function in classes(file.read_text(encoding="utf-8"))
        if name.endswith(".tick") and asks_the_clock(function)
    }
    assert found == set(BY_THE_CLOCK)


def test_what_is_not_answered_is_said_again_by_one_rule() -> None:
    again = "class A(Rule):\n    def say(self):\n        self._at = self.core.now + self.core.settings.retransmit_ms * MS\n"
    assert says_again_by_itself(again) == ["A.say"]
    asked = "    def tick(self):\n        if self.alarm.is_due(self._at, self.core.now):\n            self.say()\n"
    assert says_again_by_itself(again + asked) == []
    found = [name for file in FILES for name in says_again_by_itself(file.read_text(encoding="utf-8"))]
    assert sorted(found) == sorted(SAID_AGAIN_OTHERWISE)
