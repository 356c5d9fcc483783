"""`python -m programs.lm cache list|show|export|clear`: the answers that were paid for."""

if __name__ == "__main__":
    import sys

    from tools.models.cache_command import main

    sys.exit(main())
