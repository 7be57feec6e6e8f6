"""Which access keys are due for a change."""


def key_rotation(keys, today, lifetime=90, warn=14):
    """Keys by state: expired, due soon, unused; `keys` maps a name to (day made, day last used or None)."""
    expired = []
    soon = []
    unused = []
    for name, (made, used) in sorted(keys.items()):
        left = made + lifetime - today
        if left < 0:
            expired.append(name)
        elif left <= warn:
            soon.append(name)
        if used is None or today - used > lifetime // 2:
            unused.append(name)
    both = [name for name in expired if name in unused]
    healthy = len(keys) - len(expired) - len(soon)
    score = healthy / len(keys) if keys else 1.0
    return {"expired": expired, "soon": soon, "unused": unused, "delete": both, "score": round(score, 2)}


DOMAIN = "devices"
CASES = [
    ({"api": (10, 95), "web": (40, None), "job": (1, 20)}, 100),
    ({"a": (0, 45), "b": (0, 44), "c": (15, 89), "d": (76, 80)}, 90),
    ({}, 5),
    ({"x": (0, None), "y": (14, 30), "z": (16, 29)}, 60, 45, 0),
    ({"old": (5, 6), "new": (99, 99), "mid": (20, 100)}, 101, 80, 5),
]
SITES = [
    ("off-by-one", "left < 0", "left <= 0", "left > 0", "left < -warn"),
    (
        "missing-edge-case",
        "used is None or today - used > lifetime // 2",
        "used is not None and today - used > lifetime // 2",
        "used is None",
        "used is None or used > lifetime // 2",
    ),
    (
        "wrong-default",
        "healthy / len(keys) if keys else 1.0",
        "healthy / len(keys) if keys else 0.0",
        "healthy / 100 if keys else 1.0",
        "len(soon) / len(keys) if keys else 1.0",
    ),
]
