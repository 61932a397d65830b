"""What a person may turn about seeds: everything else is the seed's."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.shapes import SHAPES

NODES = range(1, 10)
BACKUPS = range(7)


@dataclass(frozen=True)
class Knobs:
    """None, 1.0, or no name: as the seed draws it."""

    nodes: int | None = None
    backups: int | None = None
    density: float = 1.0  # so many times as many faults in a second
    shape: str = ""  # one of `SHAPES`, in every seed
    storm_s: float | None = None  # how long a storm lasts, in simulated seconds

    def check(self) -> str:
        """What is wrong, or nothing."""
        if self.nodes is not None and self.nodes not in NODES:
            return f"--nodes {self.nodes}: expected {NODES[0]} to {NODES[-1]}"
        if self.backups is not None and self.backups not in BACKUPS:
            return f"--backups {self.backups}: expected {BACKUPS[0]} to {BACKUPS[-1]}"
        if not 0.01 <= self.density <= 100:
            return f"--density {self.density:g}: expected 0.01 to 100"
        if self.shape and self.shape not in SHAPES:
            return f"--shape {self.shape}: expected one of {', '.join(SHAPES)}"
        if self.storm_s is not None and not 0.1 <= self.storm_s <= 86_400:
            return f"--storm {self.storm_s:g}: expected 0.1 to 86400 seconds"
        return ""

    def options(self) -> str:
        """As they are written on the command line."""
        said = [("nodes", self.nodes), ("backups", self.backups), ("storm", self.storm_s)]
        if self.density != 1.0:
            said.append(("density", self.density))
        options = "".join(f" --{name} {value:g}" for name, value in said if value is not None)
        return options + (f" --shape {self.shape}" if self.shape else "")


AS_DRAWN = Knobs()
