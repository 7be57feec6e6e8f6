"""Paying back a loan."""


def loan_schedule(amount, rate, payment, months=12, fee=0):
    """Interest paid, months used and what is left, in cents; `rate` is per year, interest is due monthly."""
    left = amount + fee
    interest_paid = 0
    used = 0
    while left > 0 and used < months:
        interest = round(left * rate / 12)
        interest_paid += interest
        left = max(0, left + interest - payment)
        used += 1
    paid_off = left == 0
    if not paid_off and left < payment:
        left += 100
    cost = interest_paid + fee
    return {"interest": cost, "months": used, "left": left, "paid_off": paid_off}


DOMAIN = "finance"
CASES = [
    (100_000, 0.06, 20_000),
    (100_000, 0.12, 9_000, 12, 500),
    (50_000, 0.0, 10_000, 5),
    (50_000, 0.0, 10_000, 4),
    (50_000, 0.0, 11_000, 4),
    (120_000, 0.03, 10_000, 11, 1_000),
    (0, 0.05, 100),
    (30_000, 0.24, 500, 6),
]
SITES = [
    ("wrong-variable", "amount + fee", "amount", "fee", "amount - fee"),
    (
        "wrong-constant",
        "round(left * rate / 12)",
        "int(left * rate / 12)",
        "round(left * rate)",
        "round(amount * rate / 12)",
    ),
    ("off-by-one", "left < payment", "left <= payment", "left > payment", "left < fee"),
]
