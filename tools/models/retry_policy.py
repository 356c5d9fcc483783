"""How often, and for how long, requests without an answer are sent again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and for how long, a request without an answer is sent again; then its query stays pending."""

    attempts: int = 6
    # Seconds before the second attempt, unless the provider says how many; doubled each time
    first: float = 0.5
    before: float = (
        5.0  # seconds from the first failure on, for a model that has not answered anything yet
    )
    after: float = 30.0  # the same, once it has, and for one that is overloaded
    call: float = 600.0  # seconds until a request is cut off
    # Whether that grows for a server that was measured to need longer
    follows_speed: bool = False
