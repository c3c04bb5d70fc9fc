from tasks import add, app

from leasehold import testing


def test_add() -> None:
    assert add(4, 4) == 8
    with testing.connected(app):
        submission = add.submit(4, 4)
        app.work(drain=True)
        assert submission.result() == 8
