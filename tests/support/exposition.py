"""The text format of Prometheus, read strictly: what a collector would refuse, or take for something else, fails."""

from __future__ import annotations

import re

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_VALUE = r'(?:[^"\\\n]|\\["\\n])*'
_LABELS = rf'(?:\{{(?P<labels>[a-zA-Z_]\w*="{_VALUE}"(?:,[a-zA-Z_]\w*="{_VALUE}")*)\}})?'
_SAMPLE = re.compile(rf"(?P<name>{_NAME}){_LABELS} (?P<value>[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?|[+-]Inf|NaN)")
_HEAD = re.compile(rf"# (?P<what>HELP|TYPE) (?P<name>{_NAME}) (?P<rest>[^\n]+)")


def exposed(text: str) -> dict[str, dict[str, float]]:
    """The text format of Prometheus, version 0.0.4, strictly: metrics, each with its HELP, its TYPE, and its samples."""
    assert text.endswith("\n")
    found: dict[str, dict[str, float]] = {}
    heads: list[tuple[str, str]] = []
    for line in text[:-1].split("\n"):
        head, sample = _HEAD.fullmatch(line), _SAMPLE.fullmatch(line)
        if head is not None:
            heads.append((head["what"], head["name"]))
            assert head["what"] == "HELP" or head["rest"] in {"counter", "gauge"}, line
            if head["what"] == "TYPE":
                assert heads[-2:] == [("HELP", head["name"]), ("TYPE", head["name"])], line
                assert head["name"] not in found, f"{head['name']} is said twice"
                assert head["name"].endswith("_total") == (head["rest"] == "counter"), line
                assert not head["name"].endswith(("_sum", "_count", "_bucket")), f"a name of summaries alone: {line}"
                found[head["name"]] = {}
        else:
            assert sample is not None, f"no line of the format: {line}"
            assert not re.search(r'(?:^|,)(?:quantile|le)="', sample["labels"] or ""), f"a label of summaries alone: {line}"
            assert heads[-1] == ("TYPE", sample["name"]), f"a sample among those of another metric: {line}"
            assert (sample["labels"] or "") not in found[sample["name"]], f"said twice: {line}"
            found[sample["name"]][sample["labels"] or ""] = float(sample["value"])
    return found
