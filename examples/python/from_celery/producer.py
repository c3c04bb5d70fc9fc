"""`submit` in place of `delay`, `options` in place of `apply_async`."""

from tasks import add, send_email

sum_of_two = add.submit(4, 4)
send_email.options(delay=1, key="welcome-ada").submit("ada@example.org", subject="Welcome")
print(sum_of_two.result(timeout=60))
