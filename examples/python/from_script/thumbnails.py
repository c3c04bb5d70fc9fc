"""Coming from a script with a loop: the loop submits, and as many workers as you like run `python thumbnails.py work`."""

import sys
from pathlib import Path

from leasehold import Leasehold, Submitted

app = Leasehold("./leasehold-data")


@app.task(max_attempts=3, timeout=60)
def thumbnail(path: str, width: int = 64) -> str:
    return f"{Path(path).stem}-{width}.png"


if __name__ == "__main__":
    if sys.argv[1] == "work":
        print(app.work(drain=True).completed, "completed")
    else:
        # With the path as the key, a second run submits only new files.
        tasks = [thumbnail.options(key=path).new_task(path) for path in sys.argv[2:]]
        print(sum(isinstance(each, Submitted) and each.is_new for each in app.submit_many(tasks)), "submitted")
