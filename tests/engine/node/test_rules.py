"""A node is a list of rules: each is switched, woken and told what it takes, and stands where it does for a reason."""

from __future__ import annotations

import ast
import inspect
import textwrap

from engine.messages import KINDS
from rebalance.rule import NEVER, Alarm, Rule
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
