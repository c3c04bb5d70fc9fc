"""Runs the programs in the documents, and type-checks the package and the examples with `mypy --strict`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import leasehold

DOCUMENTS = ["README.md", "docs/guides/python.md", "crates/leasehold-python/README.md"]
EXAMPLES = ROOT / "examples/python"


def programs_of(document: str) -> list[tuple[str, str]]:
    """Names and texts of the programs in a document. One without a title is called `program.py`."""
    pattern = r"^```python(?: title=(\S+))?\n(.*?)^```"
    found = re.findall(pattern, (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{document} has no programs"
    return [(name or "program.py", text) for name, text in found]


def run(*args: object) -> str:
    command = [sys.executable, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("document", "number"), [(each, number) for each in DOCUMENTS for number in range(len(programs_of(each)))]
)
def test_a_program_of_the_documents_runs(document: str, number: int, tmp_path: Path) -> None:
    # Programs may import others of the document, which have a title.
    for name, text in programs_of(document):
        (tmp_path / name).write_text(text)
    name, text = programs_of(document)[number]
    (tmp_path / name).write_text(text)
    run("-W", "error", tmp_path / name)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_programs_of_a_document_run_one_after_the_other_and_again(document: str, tmp_path: Path) -> None:
    # All run in the working directory of this test, where the first one creates the queue. Some import others.
    for name, text in programs_of(document) * 2:
        path = tmp_path / name
        path.write_text(text)
        run("-W", "error", path)


def test_the_example_runs(folder: Path) -> None:
    shown = run("-W", "error", EXAMPLES / "resize.py", folder)
    assert shown.startswith("3 completed, 1 failed\n")
    assert "-> completed {'url': 'b-64.png', 'written_with': 2}" in shown
    assert "-> failed leasehold._errors.Permanent: an image cannot be 0 wide" in shown


def test_the_package_and_the_example_are_typed(tmp_path: Path) -> None:
    package = Path(leasehold.__file__).parent
    assert (package / "py.typed").exists()
    run("-m", "mypy", "--strict", "--cache-dir", tmp_path, "-p", "leasehold")
    run("-m", "mypy", "--strict", "--cache-dir", tmp_path, *sorted(EXAMPLES.glob("*.py")))
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import leasehold\n\nasync def f(q: leasehold.Queue) -> int:\n    return await q.get('x')\n")
    checked = subprocess.run([sys.executable, "-m", "mypy", "--strict", wrong], capture_output=True, text=True)
    assert checked.returncode == 1 and 'got "Task"' in checked.stdout


def test_the_stubs_are_true() -> None:
    assert "Success: no issues found" in run("-m", "mypy.stubtest", "leasehold")


def test_everything_public_has_a_docstring() -> None:
    for name in leasehold.__all__:
        if name.startswith("__"):
            continue
        public = getattr(leasehold, name)
        assert public.__doc__, name
        for member in vars(public) if isinstance(public, type) else ():
            value = getattr(public, member)
            if not member.startswith("_") and callable(value):
                assert value.__doc__, f"{name}.{member}"
