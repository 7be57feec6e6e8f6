"""Fitting a picture into a frame."""


def aspect_fit(picture, frame, upscale=False, margin=0):
    """Left, top, width and height of a (width, height) picture, scaled to fit and centred in a frame."""
    room_wide = frame[0] - 2 * margin
    room_high = frame[1] - 2 * margin
    if room_wide <= 0 or room_high <= 0:
        raise ValueError("the margin leaves no room")
    scale = min(room_wide / picture[0], room_high / picture[1])
    if not upscale:
        scale = min(scale, 1.0)
    width = max(1, round(picture[0] * scale))
    height = max(1, round(picture[1] * scale))
    left = margin + (room_wide - width) // 2
    return left, margin + (room_high - height) // 2, width, height


DOMAIN = "publishing"
CASES = [
    ((400, 300), (200, 200)),
    ((100, 50), (300, 300), True, 10),
    ((100, 50), (301, 205)),
    ((1000, 10), (50, 50), False, 5),
    ((3, 2), (10, 10), False, 5),
    ((640, 480), (333, 250), False, 3),
]
SITES = [
    (
        "off-by-one",
        "room_wide <= 0 or room_high <= 0",
        "room_wide < 1 - margin",
        "room_wide > 0",
        "margin > 0 and room_high < 41",
    ),
    (
        "wrong-operator",
        "min(room_wide / picture[0], room_high / picture[1])",
        "room_wide / picture[0]",
        "max(room_wide / picture[0], room_high / picture[1])",
        "min(picture[0] / room_wide, picture[1] / room_high)",
    ),
    ("wrong-variable", "(room_high - height) // 2", "0", "(room_wide - height) // 2", "(room_high - width) // 2"),
]
