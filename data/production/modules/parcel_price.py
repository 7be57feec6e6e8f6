"""What a parcel costs to send."""


def parcel_price(weight_kg, sides_cm, zone, express=False):
    """Price in cents. `sides_cm` are the three sides, `zone` counts from 1 (near) to 5 (far)."""
    longest = max(sides_cm)
    volume = 1
    for side in sides_cm:
        volume *= side
    billed = max(weight_kg, volume / 5000)
    if zone not in (1, 2, 3, 4, 5):
        raise ValueError("no such zone")
    price = 390 + 85 * billed * zone
    if longest > 120:
        price += 1_500
    if express:
        price *= 1.5
    return int(price + 0.5)


DOMAIN = "logistics"
CASES = [
    (2, (30, 20, 10), 1),
    (1, (60, 50, 40), 3),
    (12, (120, 30, 30), 2, True),
    (0.4, (130, 10, 10), 5),
    (5, (40, 40, 121), 4, True),
    (3, (20, 20, 20), 9),
]
SITES = [
    (
        "wrong-operator",
        "max(weight_kg, volume / 5000)",
        "weight_kg + volume / 5000",
        "min(weight_kg, volume / 5000)",
        "weight_kg",
    ),
    ("off-by-one", "longest > 120", "longest >= 120", "longest < 120", "sum(sides_cm) > 120"),
    ("wrong-constant", "price *= 1.5", "price += 150", "price *= 15", "price += 1.5"),
]
