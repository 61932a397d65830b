"""What a deliberate fault is, and the few ways of planting one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.sim.machine import Machine
from tests.sim.world import Plant


@dataclass(frozen=True)
class Fault:
    """One deliberate fault. `breaks` says what, `endangers` which invariants of ARCHITECTURE.md.

    `rates` are the faults of the world under which it shows soonest (None: what a seed draws). `harmless` is the second
    line of defence that holds without the first: such a fault is found by nothing, as it should be. `both` is the fault
    that takes away the two of them, if there is one.
    """

    name: str
    plant: Plant
    breaks: str
    endangers: str
    rates: Mapping[str, float] | None = None
    harmless: str = ""
    both: str = ""


@dataclass
class Faults:
    """The faults of one module, in the order in which they are written."""

    all: list[Fault] = field(default_factory=list)

    def fault(
        self, endangers: str, *, rates: Mapping[str, float] | None = None, harmless: str = "", both: str = ""
    ) -> Callable[[Plant], Plant]:
        """Note the decorated plant as a fault; its docstring is the sentence that says what it breaks."""

        def note(plant: Plant) -> Plant:
            assert plant.__doc__, "a fault says what it breaks"
            name = plant.__name__.replace("_", "-")
            breaks, reason = " ".join(plant.__doc__.split()), " ".join(harmless.split())
            self.all.append(Fault(name, plant, breaks, endangers, rates, reason, both))
            return plant

        return note


def replace(owner: object, name: str, put: Callable[..., Any]) -> None:
    """Put a method in place of one that an object has, on this object alone."""
    assert callable(getattr(owner, name)), f"{owner!r} has no method {name}: the fault must follow the code"
    setattr(owner, name, put)


def around(owner: object, name: str, wrapper: Callable[..., Any]) -> None:
    """Wrap a method of an object: `wrapper` gets the original first, then what the method gets."""
    original = getattr(owner, name)
    replace(owner, name, lambda *args, **kwargs: wrapper(original, *args, **kwargs))


@contextmanager
def swapped(owner: object, name: str, put: object) -> Iterator[None]:
    """While this lasts, a module or a class has another function: for rules that are no methods.

    It lasts for one call of a wrapped method; the world runs one node at a time, so no other node sees it.
    """
    kept = getattr(owner, name)
    setattr(owner, name, put)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def during(machine: Machine, owner: object, name: str, where: object, what: str, put: object) -> None:
    """While `owner`'s method `name` runs on this machine, `where`'s `what` is `put`."""

    def wrapper(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with swapped(where, what, put):
            return original(*args, **kwargs)

    around(owner, name, wrapper)
