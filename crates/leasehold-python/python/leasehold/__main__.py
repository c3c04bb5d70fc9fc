"""`python -m leasehold`: the command line."""

import signal
import sys

from . import _native


def main() -> int:
    """Runs the command line with the arguments of this process and returns its exit code."""
    # The command line handles Ctrl-C itself: most commands end, workers let running tasks finish.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    program = [sys.executable, "-m", "leasehold"]
    return _native.main(program, ["leasehold", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
