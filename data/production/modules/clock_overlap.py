"""Do two opening hours overlap?"""


def clock_overlap(first, second, minimum=1):
    """Minutes that two (start, end) spans in minutes of a day share; an end before its start is past midnight."""
    day = 24 * 60
    spans = []
    for start, end in (first, second):
        spans.append((start, end + day if end <= start else end))
    shared = 0
    for shift in (-day, 0, day):
        start = max(spans[0][0], spans[1][0] + shift)
        end = min(spans[0][1], spans[1][1] + shift)
        shared += max(0, end - start)
    shared = min(shared, day)
    enough = shared >= minimum
    return shared if enough else 0


DOMAIN = "devices"
CASES = [
    ((540, 1020), (600, 1080)),
    ((1320, 360), (300, 480)),
    ((600, 600), (0, 1439)),
    ((480, 720), (720, 900)),
    ((1200, 300), (1260, 240), 30),
    ((100, 200), (150, 210), 50),
    ((100, 200), (150, 210), 51),
    ((100, 200), (150, 210), 40),
]
SITES = [
    ("missing-edge-case", "end <= start", "end < start", "end > start", "end >= start + 480"),
    (
        "swapped-arguments",
        "min(spans[0][1], spans[1][1] + shift)",
        "spans[0][1]",
        "max(spans[0][1], spans[1][1] + shift)",
        "min(spans[0][1] + shift, spans[1][1])",
    ),
    ("off-by-one", "shared >= minimum", "shared > minimum", "shared <= minimum", "shared >= 2 * minimum"),
]
