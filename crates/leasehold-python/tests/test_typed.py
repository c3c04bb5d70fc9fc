"""Type checkers accept a typed application, and find the mistakes in calls of its tasks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TYPED = Path(__file__).parent / "typed"


def errors_of(checker: str, folder: Path) -> set[tuple[str, int]]:
    """Files and lines in which a type checker finds errors."""
    shutil.copytree(TYPED, folder, dirs_exist_ok=True)
    if checker == "mypy":
        command = ["--strict", "--cache-dir", "cache", *sorted(each.name for each in TYPED.glob("*.py"))]
    else:
        settings = {"typeCheckingMode": "strict", "reportUnusedVariable": "none", "reportMissingModuleSource": "none"}
        (folder / "pyrightconfig.json").write_text(json.dumps(settings))
        command = ["--pythonpath", sys.executable]
    done = subprocess.run(
        [sys.executable, "-m", checker, *command], capture_output=True, text=True, timeout=300, cwd=folder
    )
    # With a wrong configuration they find nothing, or fail otherwise.
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.findall(r"^\s*(?:\S*/)?(\w+\.py):(\d+)(?::\d+)?(?:: error:| - error:)", done.stdout, re.MULTILINE)
    return {(name, int(line)) for name, line in found}


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_every_wrong_line_is_found_and_no_other(checker: str, tmp_path: Path) -> None:
    lines = (TYPED / "wrong.py").read_text().splitlines()
    wrong = {("wrong.py", number) for number, line in enumerate(lines, 1) if "  # wrong" in line}
    assert len(wrong) > 10
    assert errors_of(checker, tmp_path) == wrong
