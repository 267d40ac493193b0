"""`python -m relay_wgrad`."""

import sys

if __name__ == "__main__":
    try:  # what the command line loads takes a second, in which Ctrl-C is one too
        from .cli.main import main
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(main())
