"""Mixing songs for a given time."""


def playlist_mix(songs, minutes, gap=2, repeat_after=2):
    """Titles within `minutes`; an artist waits `repeat_after` songs. Songs are (title, artist, seconds)."""
    limit = minutes * 60
    waiting = sorted(songs, key=lambda song: song[2], reverse=True)
    chosen = []
    length = 0
    for title, artist, seconds in waiting:
        recent = [other for _, other in chosen[-repeat_after:]]
        pause = gap if chosen else 0
        if artist not in recent and length + pause + seconds <= limit:
            chosen.append((title, artist))
            length += pause + seconds
    unused = len(songs) - len(chosen)
    spare = limit - length
    full = spare < 60
    return {"titles": [title for title, _ in chosen], "unused": unused, "spare": spare, "full": full}


DOMAIN = "people"
CASES = [
    ([("a", "X", 200), ("b", "X", 180), ("c", "Y", 240), ("d", "Z", 100)], 10),
    ([("a", "X", 60), ("b", "Y", 58)], 2),
    ([("a", "X", 60), ("b", "Y", 59), ("c", "Y", 5)], 3),
    ([], 4),
    ([("a", "X", 200), ("b", "Y", 150), ("c", "Z", 100)], 5),
    ([("a", "X", 60)], 2),
    ([("e", "P", 300), ("f", "Q", 280), ("g", "R", 260), ("h", "P", 240), ("i", "Q", 30)], 20, 5, 1),
    ([("k", "K", 120), ("l", "L", 118), ("m", "K", 116), ("n", "L", 57)], 7, 0, 3),
]
SITES = [
    (
        "wrong-order",
        "key=lambda song: song[2], reverse=True",
        "key=lambda song: song[0]",
        "key=lambda song: song[2]",
        "key=lambda song: song[1], reverse=True",
    ),
    (
        "off-by-one",
        "length + pause + seconds <= limit",
        "length + seconds <= limit",
        "length + pause + seconds < limit - gap",
        "length <= limit",
    ),
    ("off-by-one", "spare < 60", "spare <= 60", "spare > 60", "length < 60"),
]
