"""Splitting a budget by weight, to the cent."""


def budget_split(total, weights, minimum=0):
    """Cents per name; the shares add up to `total`, and cents left over go to the largest remainders."""
    names = sorted(weights)
    spread = total - minimum * len(names)
    if spread < 0 or not names:
        raise ValueError("the budget is too small")
    weight_sum = sum(weights.values()) or 1
    shares = {}
    remainders = []
    for name in names:
        exact = spread * weights[name]
        shares[name] = minimum + exact // weight_sum
        remainders.append((-(exact % weight_sum), name))
    left = total - sum(shares.values())
    for _, name in sorted(remainders)[:left]:
        shares[name] += 1
    return shares


DOMAIN = "finance"
CASES = [
    (100, {"a": 1, "b": 1, "c": 1}),
    (1000, {"rent": 5, "food": 3, "fun": 1}, 50),
    (7, {"x": 2, "y": 3}, 4),
    (11, {"x": 2, "y": 3}, 5),
    (90, {"z": 4, "y": 2, "x": 1, "w": 0}, 20),
    (90, {"z": 4, "y": 2, "x": 1, "w": 0}, 3),
    (0, {"solo": 9}),
]
SITES = [
    ("missing-edge-case", "spread < 0 or not names", "spread <= 0 or not names", "spread > 0", "total < 0"),
    ("wrong-operator", "exact // weight_sum", "-(-exact // weight_sum)", "exact % weight_sum", "exact // len(names)"),
    (
        "wrong-order",
        "sorted(remainders)[:left]",
        "sorted(remainders, key=lambda pair: pair[1])[:left]",
        "sorted(remainders)[left:]",
        "sorted(remainders, reverse=True)[:left]",
    ),
]
