import asyncio

import pytest
from actors import app, charge

from leasehold import NotCompleted, Permanent, testing


def test_nothing_is_charged_for_nothing() -> None:
    with pytest.raises(Permanent):
        asyncio.run(charge("ada", 0))
    with testing.connected(app):
        submission = charge.submit("ada", 0)
        app.work(drain=True)
        with pytest.raises(NotCompleted, match="0 cents cannot be charged"):
            submission.result()
