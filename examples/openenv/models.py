"""What goes over the wire, for clients that have OpenEnv and not Sextant."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class SearchAction(Action):
    tool: str  # search, read, select, note or submit
    arguments: dict = Field(default_factory=dict)


class SearchObservation(Observation):
    text: str = ""  # JSON
    refused: bool = False  # whether the action did nothing
