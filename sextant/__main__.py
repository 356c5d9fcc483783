"""`python -m sextant` is the command `sextant`."""

from sextant.evals.__main__ import main

if __name__ == "__main__":
    main()
