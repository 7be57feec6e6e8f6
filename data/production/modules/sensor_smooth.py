"""Smoothing the readings of a sensor."""


def sensor_smooth(readings, window=3, low=-40.0, high=85.0):
    """Moving mean of plausible readings, the number of bad ones and the largest jump; None is a lost reading."""
    good = []
    bad = 0
    for value in readings:
        if value is None or not low <= value <= high:
            bad += 1
        else:
            good.append(value)
    smooth = []
    for end in range(1, len(good) + 1):
        part = good[max(0, end - window) : end]
        smooth.append(round(sum(part) / len(part), 3))
    jumps = [abs(after - before) for before, after in zip(smooth, smooth[1:])]
    largest = max(jumps, default=0.0)
    quality = 1 - bad / len(readings) if readings else 0.0
    return {"values": smooth, "bad": bad, "jump": round(largest, 3), "quality": round(quality, 2)}


DOMAIN = "devices"
CASES = [
    ([20.0, 21.5, None, 19.0, 90.0],),
    ([-40.0, 85.0, 0.0, 10.0], 2),
    ([], 3),
    ([None, 200.0], 2),
    ([1.0, 4.0, 2.0, 8.0, 5.0, 7.0], 4, 0.0, 8.0),
    ([0.0, -3.5, 12.0], 1, -3.5, 50.0),
]
SITES = [
    (
        "off-by-one",
        "not low <= value <= high",
        "not low < value < high",
        "low <= value <= high",
        "not value <= high - low",
    ),
    (
        "off-by-one",
        "good[max(0, end - window) : end]",
        "good[max(0, end - window) : end + 1]",
        "good[:end]",
        "good[end - 1 : end - 1 + window]",
    ),
    (
        "wrong-default",
        "1 - bad / len(readings) if readings else 0.0",
        "1 - bad / len(readings) if readings else 1.0",
        "bad / len(readings) if readings else 0.0",
        "1 - bad / window if readings else 0.0",
    ),
]
