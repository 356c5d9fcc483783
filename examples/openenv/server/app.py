"""The environment's server: sextant serve with its options; $SEXTANT_TOKEN is what clients have to show."""

import sys

from sextant.evals.serve import command, parser
from sextant.tools.platform.cli import run_and_leave

OPTIONS = ["--task", "congress", "--split", "dev", "--rewards", "--repeat"]


def main() -> None:
    sys.argv[1:] = [*OPTIONS, "--openenv", "--address", "0.0.0.0", "--port", "8000", *sys.argv[1:]]
    run_and_leave(parser(), command)


if __name__ == "__main__":
    main()
