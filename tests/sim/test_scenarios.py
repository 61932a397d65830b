"""Every story runs, every word of the language is in its document, and whoever misspells one is told so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.turn.settings import Settings
from tests.sim.__main__ import main
from tests.sim.scenario.expects import EXPECTS
from tests.sim.scenario.interpreter import tell
from tests.sim.scenario.knobs import SHAPE
from tests.sim.scenario.language import ScenarioError
from tests.sim.scenario.matching import KINDS
from tests.sim.scenario.reading import understand
from tests.sim.scenario.registry import VERBS

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests" / "testdata" / "cluster").glob("*.txt"))
DOCUMENT = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```scenario\n(.*?)```", DOCUMENT, re.DOTALL)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_story_goes_as_it_says(file: Path) -> None:
    ending = tell(file.read_text(encoding="utf-8"), file.name)
    assert not ending.problem, "\n".join([ending.problem, *ending.story])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_story_says_what_it_shows_and_expects_something(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    first, second = text.splitlines()[:2]
    assert first.startswith("# "), "the first line says what is shown"
    assert second.startswith("# "), "the next ones say why it matters"
    assert "Why it matters: " in text
    statements = understand(text, file.name)
    assert sum(s.verb == "expect" for s in statements) >= 2


def test_the_stories_are_all_there() -> None:
    assert len(FILES) >= 45


# The document.


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_document_runs(number: int) -> None:
    ending = tell(EXAMPLES[number], f"example {number + 1}")
    assert not ending.problem, "\n".join([ending.problem, *ending.story])
    assert ending.expectations


def _sections() -> dict[str, str]:
    parts = re.split(r"^### `([a-z-]+)`$", DOCUMENT, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_verb_has_its_section_and_every_section_its_verb() -> None:
    assert set(_sections()) == {"cluster", "expect", *VERBS}


def test_every_option_is_in_the_section_of_its_verb() -> None:
    sections = _sections()
    for verb in VERBS.values():
        for option in verb.options:
            written = "`async`" if option == "async" else rf"(?<![\w-]){option}="
            assert re.search(written, sections[verb.name]), f"{option} of {verb.name}"


def test_no_section_promises_an_option_that_its_verb_does_not_take() -> None:
    examples = re.compile(r"```.*?```", re.DOTALL)
    for name, section in _sections().items():
        if name in VERBS:
            text = examples.sub("", section.split("\n## ")[0])
            told = set(re.findall(r"(?<![\w-])([a-z-]+)=", text))
            assert told <= set(VERBS[name].options), name


def test_every_expectation_is_in_the_table_as_it_is_written() -> None:
    rows = re.findall(r"^\| `(.+?)` \| .+ \|$", _sections()["expect"], re.MULTILINE)
    told = {row.replace("\\|", "|") for row in rows} - {"expect"}
    values = {"counters": " = equal", "digests": " = equal"}  # the words for an error need no value
    assert told == {f"{e.name}{e.words}{values.get(e.name, '')}" for e in EXPECTS.values()}


def test_every_kind_of_message_is_in_the_table() -> None:
    table = _sections()["release"]
    told = [kind for row in re.findall(r"^\| (`.+?`) \|", table, re.MULTILINE) for kind in re.findall(r"`([a-z-]+)`", row)]
    assert sorted(told) == sorted(KINDS)


def test_every_knob_of_the_cluster_is_in_its_section() -> None:
    section = _sections()["cluster"]
    told = set(re.findall(r"`([a-z_]+)=?`", section.replace("=`, `", "=` `")))
    settings = {name for name in Settings.__struct_fields__ if name not in ("cluster", "domain")}
    assert {*SHAPE, *settings} <= told


# What goes wrong.


def _write(directory: Path, *lines: str) -> str:
    file = directory / "story.txt"
    file.write_text("\n".join(lines), encoding="utf-8")
    return str(file)


def test_an_unmet_expectation_tells_what_was_found_and_the_story(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _write(tmp_path, "cluster nodes=3", "load ns=acc n=4 partition=0", "expect lwm n2 acc/0 = 5")
    assert main(["scenario", file]) == 1
    said = capsys.readouterr().out
    assert f"{file}:3: expected lwm n2 acc/0 = 5\n    found 4\n" in said
    assert "the story of acc/0:" in said
    assert "deliver n1 -> n2 replicate" in said


def test_an_unmet_expectation_of_a_transaction_tells_its_story(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["cluster", "begin t1", "put t1 ns=acc partition=0 n=1", "commit t1", "expect outcome t1 = aborted"]
    assert main(["scenario", _write(tmp_path, *lines)]) == 1
    said = capsys.readouterr().out
    assert ":5: expected outcome t1 = aborted\n    found committed" in said
    assert "commit-tx tx=t1" in said


def test_a_write_that_nobody_named_must_succeed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["cluster nodes=3", "crash n2 n3", "run 3s", "put ns=acc partition=0 n=1 timeout=1s"]
    assert main(["scenario", _write(tmp_path, *lines)]) == 1
    assert ":4: expected put to be done" in capsys.readouterr().out


def test_a_story_that_is_met_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _write(tmp_path, "cluster nodes=1", "load ns=acc n=1 partition=0", "expect rows acc = 1")
    assert main(["scenario", "-v", file]) == 0
    said = capsys.readouterr().out
    assert "ask     client -> n1" in said
    assert f"ok {file}: 1 expectations" in said


def test_the_same_story_is_told_twice_the_same_way() -> None:
    text = FILES[0].read_text(encoding="utf-8")
    assert tell(text, "once", trace=True).trace == tell(text, "once", trace=True).trace


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("crush n1", "unknown verb 'crush': did you mean 'crash'?"),
        ("crash n7", "unknown node 'n7': did you mean 'n3'?"),
        ("crash", "crash is written `crash NODE...`"),
        ("expect lvm n1 acc/0 = 1", "unknown expectation 'lvm': did you mean 'lwm'?"),
        ("expect lwm n1", "this is written `expect lwm NODE FRAGMENT = COUNTER`"),
        ("expect lwm n1 acc/99 = 1", "'99' is no partition: expected 0 to 31"),
        ("expect lwm n1 acd/0 = 1", "unknown namespace 'acd': did you mean 'acc'?"),
        ("expect lwm n1 acc/0 = many", "lwm is a number: expected one, not 'many'"),
        ("expect primary 0 < n2", "primary is compared with = or !=, not with <: it is 'n1'"),
        ("expect consistent = yes", "consistent is or is not"),
        ("expect members", "compare members with something, such as `= n1 n2 n3`"),
        ("hold preparation", "unknown kind of message 'preparation': did you mean 'replication'?"),
        ("hold prepare t1", "unknown transaction or operation 't1'"),
        ("commit t1", "unknown transaction or operation 't1'"),
        ("load ns=acc n=five", "n=five is not a number"),
        ("load ns=acc m=5", "unknown option of load 'm'"),
        ("load ns=acc byte=5", "unknown option of load 'byte': did you mean 'bytes'?"),
        ("crash n1 now=yes", "crash takes no options, and not now="),
        ("run fast", "run: 'fast' is not a time"),
        ("pause n1 ; restart n1", "n1 runs: crash, kill or stop it first"),
        ("cluster nodes=3", "there is one cluster"),
        ("expect reached promotion.opened_gaps", "did you mean 'promotion.closed_gaps'?"),
        ('put ns=acc key="a', "a quotation mark is not closed"),
    ],
)
def test_what_cannot_be_understood_is_a_usage_error_with_its_line(
    line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _write(tmp_path, "cluster nodes=3", "load ns=acc n=1 partition=0", line)
    assert main(["scenario", file]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert f"{file}:3" in told


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("expect answer t1 != comitted", "unknown value of answer 'comitted': did you mean 'committed'?"),
        ("expect state n1 acc/0 != OWNIG", "unknown value of state 'OWNIG': did you mean 'OWNING'?"),
        ("expect error t1 != Konflict", "unknown value of error 'Konflict': did you mean 'Conflict'?"),
        ("expect outcome t1 = one of commited aborted", "unknown value of outcome 'commited': did you mean 'committed'?"),
        ("expect counters acc/0 != eqal", "unknown value of counters 'eqal'"),
        ("expect took t1 < soon", "'soon' is not a time"),
        ("crash n3 ; restart n4", "unknown node 'n4'"),
        ("disk n9 full", "unknown node 'n9'"),
        ("for each order of crash n1", "this is written `for each order of STATEMENT | STATEMENT ...`"),
        ("for each order of crash n1 | crush n2", "unknown verb 'crush': did you mean 'crash'?"),
        ("when announce is delivered then settle", "settle cannot stand behind `then`"),
        ("when announce then crash n1", "this is written `when KIND [TX]"),
    ],
)
def test_a_value_or_a_node_that_cannot_be_is_found_before_anything_happens(line: str, said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        understand(f"cluster nodes=3\nbegin t1 ; put t1 ns=acc partition=0 key=a ; commit t1\n{line}", "story")
    assert str(refused.value).startswith("story:3: ")
    assert said in str(refused.value)


def test_what_was_read_may_be_any_value() -> None:
    understand("cluster\nget ns=acc key=a as=r1\nexpect answer r1 != comitted", "story")


def test_every_file_is_read_before_any_story_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = _write(tmp_path, "cluster nodes=1", "load ns=acc n=1 partition=0", "expect rows acc = 1")
    bad = tmp_path / "bad.txt"
    bad.write_text("cluster nodes=1\nsetle", encoding="utf-8")
    assert main(["scenario", good, str(bad)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "bad.txt:2: unknown verb 'setle'" in said.err


def test_a_story_is_told_in_each_order_and_fails_in_the_first_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        "cluster nodes=3",
        "for each order of put ns=acc partition=0 key=a value=1 | put ns=acc partition=0 key=a value=2",
    ]
    assert main(["scenario", _write(tmp_path, *lines, "expect value acc/0 a = one of 1 2")]) == 0
    assert " 2 expectations in 2 orders, " in capsys.readouterr().out
    assert main(["scenario", _write(tmp_path, *lines, "expect value acc/0 a = 2")]) == 1
    assert "found 1" in capsys.readouterr().out


def test_times_and_suppliers_can_be_asked_for() -> None:
    story = """
cluster nodes=3
stream s1 ns=acc partition=0 n=4 every=5ms
run 500ms
expect blocked s1 < 100ms
crash n1
run 5s
stop s1
expect blocked s1 > 200ms ; expect not blocked s1 > 5s ; expect took s1 >= 5s
load ns=acc n=3 partition=0
restart n1 ; settle
expect supplier n1 acc/0 = one of n2 n3 ; expect supplier n2 acc/0 = none
disk n3 slow 300ms
crash n3 ; run 4s
restart n3 ; settle
put ns=acc partition=0 key=a as=w1
expect answer w1 = committed ; expect took w1 < 100ms
"""
    ending = tell(story, "times")
    assert not ending.problem, ending.problem
    assert tell(story.replace("took w1 < 100ms", "took w1 > 100ms"), "times").problem.startswith(
        "times:17: expected took w1"
    )


def test_a_deed_comes_when_its_message_is_delivered_and_once() -> None:
    story = """
cluster nodes=3
when update to=n1 is delivered then crash n3
expect up n3
put ns=acc partition=1 key=a as=w1
expect not up n3
restart n3 ; settle
put ns=acc partition=1 key=b
expect up n3 ; expect consistent
"""
    ending = tell(story, "when")
    assert not ending.problem, "\n".join([ending.problem, *ending.story])


def test_a_rotten_sector_is_never_taken_for_data() -> None:
    story = """
cluster nodes=3 wal_segment_bytes=4k wal_total_bytes=64k
load ns=acc n=60 partition=0 bytes=100
crash n2 ; disk n2 rot ; run 3s
load ns=acc n=5 partition=0
disk n3 fail read
"""
    ending = tell(story + "expect rows acc = 65", "rot")
    assert not ending.problem, "\n".join([ending.problem, *ending.story])


def test_a_misspelt_word_is_found_before_anything_happens() -> None:
    with pytest.raises(ScenarioError, match="story:3: unknown verb 'setle': did you mean 'settle'"):
        understand("cluster nodes=3\nexpect lost = 1\nsetle", "story")


@pytest.mark.parametrize("text", ["", "crash n1", "cluster nodes=0", "cluster partitions=33", "cluster nodez=3"])
def test_a_story_begins_with_a_cluster_that_can_be(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenario", _write(tmp_path, text)]) == 2
    said = capsys.readouterr().err
    assert "story.txt" in said
    assert "nodez" not in text or "did you mean 'nodes'?" in said


def test_a_file_that_is_not_there_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenario", "nowhere.txt"]) == 2
    assert "nowhere.txt: cannot be read" in capsys.readouterr().err
