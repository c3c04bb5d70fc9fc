from thumbnails import thumbnail


def test_thumbnail() -> None:
    assert thumbnail("photos/a.jpg", width=32) == "a-32.png"
