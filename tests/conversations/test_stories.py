"""Every story in `tests/testdata/<machine>/*.txt` goes as it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conversations.affinity import AffinityStory
from tests.conversations.assignment import AssignmentStory
from tests.conversations.choice import ChoiceStory
from tests.conversations.cli import CliStory
from tests.conversations.counter import CounterStory
from tests.conversations.fragment import FragmentStory
from tests.conversations.locks import LockStory
from tests.conversations.log import LogStory
from tests.conversations.nodes import NodesStory
from tests.conversations.store import StoreStory
from tests.conversations.story import TESTDATA, Command, Interpreter, StoryError, difference, tell

MACHINES: dict[str, type[Interpreter]] = {
    "affinity": AffinityStory,
    "assignment": AssignmentStory,
    "choice": ChoiceStory,
    "cli": CliStory,
    "counter": CounterStory,
    "exchange": NodesStory,
    "fragment": FragmentStory,
    "locks": LockStory,
    "store": StoreStory,
    "supply": NodesStory,
    "transactions": NodesStory,
    "wal": LogStory,
}
STORIES = [path for machine in MACHINES for path in sorted((TESTDATA / machine).glob("*.txt"))]


@pytest.mark.parametrize("path", STORIES, ids=[f"{path.parent.name}/{path.stem}" for path in STORIES])
def test_a_story_goes_as_it_is_told(path: Path, rewrite: bool) -> None:
    told, retold = tell(path, MACHINES[path.parent.name]())
    if rewrite:
        if told != retold:
            path.write_text(retold)
        return
    if told != retold:
        pytest.fail(difference(path, told, retold), pytrace=False)


class Echo(Interpreter):
    """Answers with what it was asked, and refuses to be asked nothing."""

    refusals = (ValueError,)

    def on_say(self, command: Command) -> list[str]:
        words = command.rest()
        if not words:
            raise ValueError("nothing to say")
        return [" ".join(words), *command.body]


@pytest.fixture
def story(tmp_path: Path) -> Path:
    """A file to tell a story in."""
    return tmp_path / "a_story.txt"


def test_answers_are_written_and_the_rest_of_the_file_is_left_alone(story: Path) -> None:
    story.write_text("# why\nsay a\n----\nsomething else\nentirely\n\n\n# why not\nsay b\n  body\n\nsay\n----\n")
    told, retold = tell(story, Echo())
    expected = (
        "# why\nsay a\n----\na\n\n\n# why not\nsay b\n  body\n----\nb\n  body\n\nsay\n----\nValueError: nothing to say\n"
    )
    assert retold == expected
    assert "-something else" in difference(story, told, retold)


def test_an_unknown_command_names_the_line_and_what_is_known(story: Path) -> None:
    story.write_text("say a\n----\na\n\nshout b\n----\nb\n")
    with pytest.raises(StoryError, match=r"a_story\.txt:5: shout b\n  no such command: shout; known: say"):
        tell(story, Echo())
