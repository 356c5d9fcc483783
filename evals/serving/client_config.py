"""The address of a server, and the configuration to paste into an agent: `sextant serve ...
--print-config`.
"""

import ipaddress
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from sextant.tools.platform.cli import print_stdout
from sextant.tools.records import JsonObject
from sextant.tools.schemas import to_toml, toml_lines

TOKEN = "SEXTANT_TOKEN"  # the variable of the token that clients have to show


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a door, and its conditions for clients."""

    address: str
    port: int
    token: str  # "" lets everybody in
    transport: str = ""  # of MCP: stdio or http
    rewards: bool = False  # whether a reward is told

    @property
    def url(self) -> str:
        """Its address in the web."""
        return f"http://{f'[{self.address}]' if ':' in self.address else self.address}:{self.port}"

    @property
    def is_here(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            return self.address == "localhost"


def http_server_config(url: str, token: str) -> JsonObject:
    """Return a server of MCP over HTTP, as .mcp.json and others have it; `token` may be a variable's name in braces."""
    return {"type": "http", "url": url} | (
        {"headers": {"Authorization": f"Bearer {token}"}} if token else {}
    )


def print_config(address: ServerAddress, command: Sequence[str]) -> None:
    """Print the configuration of agents for a door at `address`, or on stdio for `command`, which opens it."""
    if not address.transport:
        print_stdout(f"{address.url}\n")
        return
    # which stays in its variable
    url = f"{address.url}/mcp"
    secret = bool(address.token)
    if address.transport == "stdio":
        claude = code = {
            "type": "stdio",
            "command": command[0],
            "args": list(command[1:]),
        }
        python = {"transport": "stdio", **claude}
        shell = f"claude mcp add sextant -- {shlex.join(command)}"
        codex = "\n".join(toml_lines({"command": command[0], "args": command[1:]}))
    else:
        claude, code = (
            http_server_config(url, name * secret)
            for name in (f"${{{TOKEN}}}", f"${{env:{TOKEN}}}")
        )
        python = {**http_server_config(url, "TOKEN" * secret), "transport": "streamable_http"}
        shell = f"claude mcp add --transport http sextant {url}"
        shell += f' --header "Authorization: Bearer ${TOKEN}"' * secret
        codex = f"url = {to_toml(url)}" + f'\nbearer_token_env_var = "{TOKEN}"' * secret
    del python["type"]
    sections = {
        "Claude Code, in a shell": shell,
        "Claude Code, .mcp.json": json.dumps({"mcpServers": {"sextant": claude}}, indent=2),
        "Codex, ~/.codex/config.toml": f"[mcp_servers.sextant]\n{codex}",
        "VS Code, .vscode/mcp.json": json.dumps({"servers": {"sextant": code}}, indent=2),
        "LangChain's MCP adapter, in Python; an episode belongs to a session, so tools share one": (
            f"client = MultiServerMCPClient({{'sextant': {python}}})\n"
            "async with client.session('sextant') as session:\n    tools = await "
            "load_mcp_tools(session)"
        ),
    }
    print_stdout("\n\n".join(f"# {client}\n{config}" for client, config in sections.items()) + "\n")
