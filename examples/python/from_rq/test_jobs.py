from pathlib import Path

from jobs import app, count_words

from leasehold import testing


def test_a_file_that_is_missing_at_first(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    with testing.connected(app) as queue:
        job = count_words.options(delay=3_600).submit(str(path))
        path.write_text("one two three")
        queue.advance(3_600)
        assert app.work(drain=True).completed == 1
        assert job.result() == 3
