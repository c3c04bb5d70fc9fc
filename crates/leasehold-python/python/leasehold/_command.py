"""`python -m leasehold worker MODULE`: runs the tasks of an application."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence

from . import _reload
from ._app import Leasehold
from ._errors import Error, Invalid
from ._worker import WorkerOptions

EXIT_CODES = {"unavailable": 75, "denied": 77, "invalid": 64, "corrupt": 65, "lost": 1, "internal": 70}
"""Exit codes by kind of error, as of the command line."""

_EPILOG = """examples:
  python -m leasehold worker shop.tasks                  # the application `app` of the module shop.tasks
  python -m leasehold worker shop.main:queue shop.mail   # the application `queue`, with the tasks of shop.mail
  python -m leasehold worker shop.tasks --reload         # restarts when a Python file of the project changes

The queue and everything else come from the application and from the settings (`python -m leasehold config show`).
`python -m leasehold worker --exec` runs tasks with programs instead."""


def worker(args: Sequence[str]) -> int:
    """Runs a worker and returns the exit code of the process."""
    parser = _parser()
    given = parser.parse_args(args)
    modules = [*([given.app] if given.app else []), *given.modules]
    if not modules:
        parser.error("name the module of the application, such as shop.tasks")
    if given.reload:
        return _reload.supervise([each for each in args if each != "--reload"])
    _reload.end_with_supervisor()
    if not logging.getLogger().handlers:
        logging.basicConfig(
            level=given.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
    options: WorkerOptions = {}
    if given.concurrency is not None:
        options["concurrency"] = given.concurrency
    if given.drain_secs is not None:
        options["drain_secs"] = given.drain_secs
    try:
        with load(modules[0], modules[1:]) as app:
            app.work(given.id, drain=given.drain, **options)
        return 0
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_CODES[error.kind]


def load(name: str, more: Sequence[str] = ()) -> Leasehold:
    """Imports an application by `module` or `module:attribute`, and `more` modules with tasks.

    Raises:
        Invalid: If there is none of this name.
    """
    # As for `python -m`; not for the installed script.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    module_name, _, attribute = name.partition(":")
    module = _import(module_name)
    for each in more:
        _import(each)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Leasehold)}
    if not attribute:
        attribute = "app" if "app" in found or len(found) != 1 else next(iter(found))
    app = getattr(module, attribute, None)
    if isinstance(app, Leasehold):
        return app
    there = f"it has {', '.join(found)}" if found else "it has none"
    raise Invalid(f"`{module_name}` has no application `{attribute}`, a leasehold.Leasehold; {there}")


def _import(name: str) -> object:
    if not all(part.isidentifier() for part in name.split(".")):
        raise Invalid(f"`{name}` is not the name of a module, such as shop.tasks")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # An import inside the module that fails is an error of the application, with its traceback.
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise Invalid(
            f"there is no module `{error.name}` in {os.getcwd()}, nor elsewhere on Python's path"
        ) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="leasehold worker",
        description="Run the tasks of a Python application.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "modules",
        nargs="*",
        metavar="MODULE[:APP]",
        help="module with the application, and its name there [default: app]; further modules are only imported",
    )
    parser.add_argument("--app", metavar="MODULE[:APP]", help="module with the application, as an option")
    parser.add_argument("--id", help="worker id [default: random]")
    parser.add_argument("--concurrency", type=int, metavar="N", help="number of tasks to run at once [default: 8]")
    parser.add_argument("--drain", action="store_true", help="exit when the queue is empty")
    parser.add_argument(
        "--drain-secs",
        type=int,
        metavar="SECONDS",
        help="seconds that running tasks have to finish after Ctrl-C or SIGTERM; unrelated to --drain [default: 30]",
    )
    parser.add_argument(
        "--reload", action="store_true", help="restart when a Python file of the project changes; for development"
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="lowest level to log on standard error, unless the application configures logging [default: info]",
    )
    return parser
