"""What a checker says of a history."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Verdict:
    """Only `valid` is a success: a history that could not be judged within the work limit proves nothing."""

    state: Literal["valid", "invalid", "undecided"]
    explanation: str = ""
    """What could not be fitted in, for people; empty if valid."""
    work: int = 0
    """States looked at."""

    @property
    def ok(self) -> bool:
        return self.state == "valid"
