"""How far an electric vehicle still gets."""


def battery_range(charge_kwh, trips, reserve=0.1, cold=False):
    """Kilometres left; `trips` are (kilometres, kWh used), the latest last."""
    usable = charge_kwh * (1 - reserve)
    recent = [trip for trip in trips[-5:] if trip[0] > 0]
    distance = sum(trip[0] for trip in recent)
    energy = sum(trip[1] for trip in recent)
    per_km = energy / distance if distance >= 20 else 0.18
    if cold:
        per_km *= 1.25
    left = usable / max(per_km, 0.05)
    return round(left, 1)


DOMAIN = "devices"
CASES = [
    (40, [(10, 2), (20, 3), (15, 4)]),
    (55, [(100, 15), (5, 2), (0, 1), (8, 2), (6, 1), (7, 2)], 0.2),
    (30, [], 0.1, True),
    (60, [(10, 1), (10, 1)], 0.0),
    (25, [(12, 3), (7, 1), (9, 2), (11, 3), (30, 4), (18, 5)], 0.15, True),
    (10, [(50, -1)], 0.5),
]
SITES = [
    ("wrong-slice", "trips[-5:]", "trips[-3:]", "trips[:5]", "trips[5:]"),
    ("off-by-one", "distance >= 20", "distance > 20", "distance <= 20", "energy >= 20"),
    ("wrong-default", "max(per_km, 0.05)", "abs(per_km)", "min(per_km, 0.05)", "max(per_km, 0.5)"),
]
