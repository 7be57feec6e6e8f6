"""The total of an invoice."""


def invoice_total(lines, tax_rates, discount=0.0, shipping=500):
    """Net, tax and total in cents; lines are (count, cents each, tax class)."""
    net = 0
    tax = 0.0
    for count, cents, tax_class in lines:
        amount = count * cents * (1 - discount)
        net += amount
        tax += amount * tax_rates.get(tax_class, 0.2)
    if net < 5_000:
        net += shipping
        tax += shipping * 0.2
    net = round(net)
    tax = round(tax)
    rounding = -(net + tax) % 5
    return {"net": net, "tax": tax, "total": net + tax + rounding, "rounding": rounding}


DOMAIN = "finance"
CASES = [
    ([(2, 1999, "food"), (1, 350, "book")], {"food": 0.07, "book": 0.05}),
    ([(10, 500, "tool")], {"food": 0.07}),
    ([(3, 4242, "food"), (2, 99, "gift")], {"food": 0.07}, 0.1),
    ([(1, 4999, "food")], {"food": 0.1}, 0.0, 700),
    ([], {}),
    ([(7, 733, "book"), (0, 10, "food")], {"book": 0.05}, 0.25),
    ([(1, 6001, "food")], {"food": 0.0}),
]
SITES = [
    (
        "wrong-default",
        "tax_rates.get(tax_class, 0.2)",
        "tax_rates.get(tax_class, 0.0)",
        "tax_rates.get(tax_class, 2.0)",
        "max(tax_rates.values(), default=0.0)",
    ),
    ("off-by-one", "net < 5_000", "net <= 5_000", "net > 5_000", "len(lines) < 2"),
    ("wrong-operator", "-(net + tax) % 5", "2 - (net + tax + 2) % 5", "(net + tax) % 5", "-net % 5"),
]
