"""`foreshore`: the operator's command.

Each sub-command is a program of its own, imported when it is called, so that looking at a log does not wait for Spark.
What they share is here: what an error looks like (one line on stderr that begins with `foreshore: `) and what the exit
code says:

    0  done, and nothing is wrong
    1  something wrong was found, the cluster refused, or nothing is known of what was named
    2  the command or the configuration cannot be meant so
    3  a directory could not be read, or a node not reached, or a newer version wrote it
    4  the end of a log is gone, and it may have been promised
    5  damage: bytes are not what was written
    6  segments of a log are missing, or another node's
    7  what a log says cannot be, or the store says otherwise
  130  interrupted
  141  whoever read the answer went away
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Annotated

import typer

from engine.errors import UsageError
from tools.importing import whole_module
from tools.parser import program
from tools.terminal import Ended, ExitCode, Unreadable, complain, emit, end_of, put_away

PROGRAMS = {
    "node": ("tools.node_commands", "Start, stop and look at a node."),
    "cluster": ("tools.cluster_commands", "Form a cluster, and look at it."),
    "wal": ("tools.wal.cli", "Look at a node's log, and copy what of it is whole."),
    "reconcile": ("tools.reconcile.cli", "Compare the copies of a cluster."),
    "doctor": ("tools.doctor", "Say whether this machine is fit for a node."),
    "demo": ("tools.demo.cli", "The whole story, with real data."),
    "bench": ("tools.bench.cli", "Measure every figure of this project."),
}

app = program(
    "foreshore",
    "Foreshore: a transactional, partitioned, persistent key-value engine that counts its updates.",
    epilog=(
        "Exit codes: 0 done, nothing wrong; 1 something wrong found, refused by the cluster, or nothing known of what was "
        "named; 2 usage; "
        "3 a directory cannot be read or a node not reached; 4 the end of a log is gone and may have been promised; "
        "5 damage; 6 segments missing or foreign; 7 a log contradicts itself or its store; 130 interrupted; 141 the "
        "reader of the output went away."
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415  # it takes a while, and nothing else asks for it

        emit([f"foreshore {version('foreshore')}"])
        raise typer.Exit


@app.callback()
def foreshore(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say the version, and stop.")
    ] = False,
) -> None:
    """What is common to all commands."""


def _attach(name: str) -> None:
    module, meaning = PROGRAMS[name]

    def command(context: typer.Context) -> None:
        raise typer.Exit(run(module, name, context.args))

    app.command(
        name,
        help=meaning,
        add_help_option=False,  # the program's own
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
    )(command)


for _name in PROGRAMS:
    _attach(_name)


@app.command("version", help="Say the version, as --version does.")
def version_command() -> None:
    """The version."""
    _print_version(wanted=True)


@app.command("help", help="The help of a command, as its --help does.")
def help_command(words: Annotated[list[str] | None, typer.Argument(metavar="[COMMAND]...")] = None) -> None:
    """The help of a command."""
    app(args=[*(words or []), "--help"], prog_name="foreshore")


@app.command("man", help="The manual page of all commands: `foreshore man | man -l -`.")
def man_command() -> None:
    """All help texts, as one page."""
    manual = importlib.import_module("tools.man").manual
    emit(manual("foreshore", "a transactional, partitioned, persistent key-value engine that counts its updates", PROGRAMS))


@app.command("completion", help="What a shell completes: put it where the shell begins, or source it.")
def completion_command(shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")] = "bash") -> None:
    """A script for the shell."""
    if shell not in {"bash", "zsh", "fish"}:
        raise UsageError(f"completion for {shell!r} is not there: expected bash, zsh or fish")
    emit(fish_completion() if shell == "fish" else completion(shell))


def fish_completion() -> Iterator[str]:
    """The same for fish, with what each program is for."""
    for name, (_, meaning) in PROGRAMS.items():
        said = meaning.replace("'", r"\'")
        yield f"complete -c foreshore -n __fish_use_subcommand -a {name} -d '{said}'"
        if verbs := verbs_of(name):
            yield f"complete -c foreshore -n '__fish_seen_subcommand_from {name}' -a '{' '.join(verbs)}'"
    yield "complete -c foreshore -n __fish_use_subcommand -a 'help version completion man'"
    yield f"complete -c foreshore -n '__fish_seen_subcommand_from help' -a '{' '.join(PROGRAMS)}'"


def completion(shell: str) -> Iterator[str]:
    """The script: the commands of all programs, as they are now; files are completed behind them."""
    if shell == "zsh":
        yield "autoload -U +X bashcompinit && bashcompinit"
    yield "_foreshore() {"
    yield "  local words"
    yield '  case "$COMP_CWORD:${COMP_WORDS[1]}" in'
    yield f'    1:*) words="{" ".join([*PROGRAMS, "help", "version", "completion", "man"])}" ;;'
    for name in PROGRAMS:
        if verbs := verbs_of(name):
            yield f'    2:{name}) words="{" ".join(verbs)}" ;;'
    yield f'    2:help) words="{" ".join(PROGRAMS)}" ;;'
    yield '    *) words="" ;;'
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))'
    yield "}"
    yield "complete -o default -F _foreshore foreshore"


def verbs_of(name: str) -> list[str]:
    """The commands of a program; none if it is one itself."""
    module, _ = PROGRAMS[name]
    if importlib.util.find_spec(module) is None:
        return []
    started = importlib.import_module(module).app
    verbs = [verb.name or verb.callback.__name__ for verb in started.registered_commands]
    return verbs if started.registered_callback or len(verbs) > 1 else []


def elsewhere(word: str) -> list[str]:
    """The programs that have a command of this name: who types `foreshore status` means one of them."""
    found: list[str] = []
    for name in PROGRAMS:
        found += [f"foreshore {name} {word}" for verb in verbs_of(name) if word == verb]
    return found


def run(module: str, name: str, arguments: Sequence[str]) -> int:
    """Run one program; the exit code. What it raises becomes a line on stderr, unless it is a bug."""

    def command() -> object:
        if importlib.util.find_spec(module) is None:
            raise Unreadable(f"this installation has no {name!r}: {module} is missing; install the project again")
        started = whole_module(module).app
        gc.freeze()
        gc.enable()  # see `foreshore`
        code: object = started(args=list(arguments), prog_name=f"foreshore {name}", standalone_mode=False)
        return code

    with nullcontext() if name == "node" else put_away():  # a node has an order of its own to end in
        return end_of(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command, and exit with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if (
            words
            and words[0].isalpha()
            and words[0] not in {*PROGRAMS, "help", "version", "completion", "man"}
            and (meant := elsewhere(words[0]))
        ):
            complain(f"{words[0]!r} is no command by itself: did you mean `{'`, or `'.join(meant)}`?")
            sys.exit(ExitCode.USAGE)
        app(args=words, prog_name="foreshore")
    except Ended as end:
        sys.exit(end.code)
    except UsageError as error:
        complain(error)
        sys.exit(ExitCode.USAGE)
    except KeyboardInterrupt:
        complain("interrupted")
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()
