"""`sextant serve --task congress --split dev --mcp stdio`: hand the queries of a run out to
agents outside.

The run folder, its limits, scores and all that is made of it are those of sextant run; the program is
`served:NAME`, with the agent's name from --agent. Doors are in evals/serving. docs/guide/serve.md
shows how each agent comes in.
"""

import argparse
import os
import secrets
import sys
from dataclasses import fields

from sextant.evals.running.request import Request
from sextant.evals.serving.client_config import TOKEN, ServerAddress, print_config
from sextant.tools.errors import UsageError
from sextant.tools.models.model_spec import ModelSettings
from sextant.tools.platform import cli_options
from sextant.tools.platform.cli import CommandParser, cost, positive, print_stderr, run_and_leave

# A door -> what serves a host there, as serve(host, place).
DOORS = {
    "mcp": "sextant.evals.serving.mcp:serve",
    "http": "sextant.evals.serving.rest:serve",
    "openenv": "sextant.evals.serving.openenv:serve",
}
# Options that say what a reward is, which nobody is told without --rewards.
_OF_REWARDS = ("reward", "shaping", "search_cost", "token_cost", "allow_test")
# Options of a run that an agent outside has no use for.
_WITHOUT = {field.name for field in fields(ModelSettings)}
_WITHOUT |= {
    "lm",
    "program",
    "compiled",
    "prompts",
    "cassette",
    "again",
    "no_prompts",
    "shard",
}


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant serve", description="Hand the queries of a run out to agents outside."
    )
    cli_options.add_options(command_line, Request, without=_WITHOUT)
    cli_options.add_tools_option(command_line)
    add = command_line.add_argument
    add(
        "--agent",
        default="agent",
        metavar="NAME",
        help="what outputs call the agent: served:NAME",
    )
    door = command_line.add_mutually_exclusive_group(required=True).add_argument
    door("--mcp", choices=("stdio", "http"), help="tools of the Model Context Protocol")
    door("--http", action="store_true", help="a REST interface, described at /openapi.json")
    door("--openenv", action="store_true", help="an OpenEnv environment: reset, step, state")
    add(
        "--address",
        default="127.0.0.1",
        help="where to listen; another than this machine's own wants a token",
    )
    add("--port", type=positive, default=8400, metavar="N", help="the port to listen on")
    add("--print-config", action="store_true", help="print what to paste into an agent, and end")
    add(
        "--rewards",
        action="store_true",
        help="tell the reward of each step; on test of the last one alone",
    )
    add(
        "--reward",
        default="",
        metavar="METRIC",
        help="what an episode is worth; the task's own metric",
    )
    add(
        "--shaping",
        default="",
        metavar="WHAT",
        help="reward steps by recall of what is surfaced, read or selected",
    )
    add(
        "--search-cost",
        type=cost,
        default=0.0,
        metavar="X",
        help="what a search takes off the reward",
    )
    add(
        "--token-cost",
        type=cost,
        default=0.0,
        metavar="X",
        help="what a token that the agent reports takes off",
    )
    add(
        "--allow-test",
        action="store_true",
        help="let --rewards tell how good answers to test queries are",
    )
    add(
        "--repeat",
        action="store_true",
        help="go on when all is answered, for training; first answers are kept",
    )
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Serve until every query is answered, then score; exit code 7 if queries failed or
    are pending.
    """
    of_rewards = [f"--{name.replace('_', '-')}" for name in _OF_REWARDS if getattr(arguments, name)]
    if of_rewards and not arguments.rewards:
        raise UsageError(
            f"{' and '.join(of_rewards)}: no reward is told without --rewards; add --rewards, or "
            "leave the option out"
        )
    address = _place(arguments)
    arguments.program = f"served:{arguments.agent}"
    request = cli_options.from_options(Request, vars(arguments))
    request.check_names()
    from sextant.evals.serving import episode, episode_server  # what a run takes: not for --help

    door = next(door for name, door in DOORS.items() if getattr(arguments, name))
    if arguments.print_config:
        words = [word for word in sys.argv[1:] if word != "--print-config"]
        # Paths may be read in another folder.
        print_config(
            address,
            [
                sys.executable,
                "-m",
                "sextant.evals.serve",
                *words,
                "--runs",
                str(request.runs.resolve()),
            ],
        )
        try:
            episode_server.load_door(door)
        except UsageError as missing:
            print_stderr(f"before an agent can come in, {missing}")
        return 0
    reward = None
    if arguments.rewards:
        reward = episode.RewardSettings(
            arguments.reward,
            arguments.shaping,
            arguments.search_cost,
            arguments.token_cost,
            arguments.allow_test,
        )
    result = episode_server.serve_command(door, request, address, reward, repeat=arguments.repeat)
    if result.problem:
        raise result.problem
    return 7 if result.failed else 0


def _place(arguments: argparse.Namespace) -> ServerAddress:
    token = os.environ.get(TOKEN, "")
    address = ServerAddress(
        arguments.address, arguments.port, token, arguments.mcp or "", arguments.rewards
    )
    if not address.is_here and not token:
        proposal = secrets.token_urlsafe(24)
        raise UsageError(
            f"{arguments.address} can be reached by others; export {TOKEN}={proposal}, or another "
            f"secret"
        )
    if arguments.port > 65_535:
        raise UsageError(f"--port {arguments.port} is above 65535")
    return address


if __name__ == "__main__":
    run_and_leave(parser(), command)
