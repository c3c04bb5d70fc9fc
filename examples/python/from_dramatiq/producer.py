"""`submit` in place of `send`, `submit_async` in async code, `options` in place of `send_with_options`."""

import asyncio

from actors import charge


async def main() -> None:
    first = await charge.submit_async("ada", cents=500)
    again = await charge.options(key="order-17").submit_async("bob", 700)
    print((await first.result_async(timeout=60)).startswith("charged 500 cents to ada"), again.is_new)


asyncio.run(main())
