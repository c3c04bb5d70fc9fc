"""Coming from Celery: `python -m leasehold worker tasks` in place of `celery -A tasks worker`."""

from leasehold import Leasehold, RetryPolicy

app = Leasehold("./leasehold-data")


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task(max_attempts=5, timeout=60, retry=RetryPolicy(initial_secs=10))
def send_email(to: str, subject: str = "Hello") -> None:
    print(f"{subject} sent to {to}")
