"""Coming from RQ: a task is decorated, and the queue is named once. `python -m leasehold worker jobs` in place of `rq worker`."""

from pathlib import Path

from leasehold import Leasehold

app = Leasehold("./leasehold-data")


@app.task(max_attempts=3)
def count_words(path: str) -> int:
    return len(Path(path).read_text().split())
