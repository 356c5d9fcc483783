"""What the model calls of a run are doing at one moment, for who watches it."""

from dataclasses import dataclass, field

from tools.records import Usage


@dataclass(frozen=True, slots=True)
class Status:
    """A snapshot; cheap to make, from any thread."""

    in_flight: int = 0  # requests sent and not answered yet
    limit: int = 0  # how many may be so at present, between 1 and --max-concurrent
    waiting: int = 0  # calls that wait to be sent
    reason: str = ""  # why they wait, in words
    seconds: float = 0.0  # until they go on, as far as that is known
    sent: int = 0  # requests sent so far, those of earlier sittings included
    failed: int = 0  # those of them that were left without an answer
    usage: Usage = field(default_factory=Usage)  # of the run so far
