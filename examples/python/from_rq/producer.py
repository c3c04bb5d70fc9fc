"""`count_words.submit(path)` in place of `queue.enqueue(count_words, path)`."""

from jobs import app, count_words

job = count_words.submit(__file__)
print(job.result(timeout=60) > 10)
print(app.queue.get(job.id).status)
