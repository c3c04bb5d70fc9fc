"""`python -m leasehold`: the command line, and workers of Python applications."""

import signal
import sys

from . import _native


def main() -> int:
    """Runs the command line with the arguments of this process and returns its exit code."""
    if sys.argv[1:2] == ["worker"] and _is_for_application(sys.argv[2:]):
        from ._command import worker

        return worker(sys.argv[2:])
    # The command line handles Ctrl-C itself: most commands end, workers let running tasks finish.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    program = [sys.executable, "-m", "leasehold"]
    return _native.main(program, ["leasehold", *sys.argv[1:]])


def _is_for_application(args: list[str]) -> bool:
    """True for `worker shop.tasks …` and `worker --app shop.tasks …`; a worker of programs has neither."""
    is_named = bool(args) and not args[0].startswith("-")
    return is_named or any(arg == "--app" or arg.startswith("--app=") for arg in args)


if __name__ == "__main__":
    sys.exit(main())
