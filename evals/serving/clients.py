"""Where a door is, and what to paste into an agent for it to find it: `python -m evals.serve ... --print-config`."""

from dataclasses import dataclass
from typing import Any

from tools.console import put_out


@dataclass(frozen=True, slots=True)
class Place:
    """Where a door is, and what it asks of who comes in."""

    address: str
    port: int
    token: str  # "" lets everybody in
    transport: str = ""  # of MCP: stdio or http
    rewards: bool = False  # whether a reward is told

    @property
    def url(self) -> str:
        """Its address in the web."""
        return f"http://{f'[{self.address}]' if ':' in self.address else self.address}:{self.port}"


def configuration(url: str, token: str) -> dict[str, Any]:
    """Return a server over HTTP as .mcp.json has it."""
    server: dict[str, Any] = {"type": "http", "url": url}
    return {"mcpServers": {"sextant": server | ({"headers": {"Authorization": f"Bearer {token}"}} if token else {})}}


def print_config(place: Place) -> None:
    """Print the configuration of each agent that is known for a door at `place`."""
    put_out(f"{place.url}\n")
