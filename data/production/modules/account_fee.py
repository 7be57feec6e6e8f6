"""The fee of a bank account for one month."""


def account_fee(balances, transfers, premium, free_transfers=3):
    """Fee in cents, from end-of-day balances and the amounts transferred, all in cents."""
    lowest = min(balances, default=0)
    average = sum(balances) // max(1, len(balances))
    fee = 450
    charged = 0
    for amount in transfers[free_transfers:]:
        charged += 25 if amount < 10_000 else 60
    if average > 250_000:
        fee = 0
    discount = 0.5 if premium else 0.0
    overdraft = 1_200 if lowest < 0 else 0
    return round((fee + charged) * (1 - discount)) + overdraft


DOMAIN = "finance"
CASES = [
    ([120_000, 80_000], [500, 700, 900, 20_000, 300], False),
    ([250_000, 250_000], [10_000, 10_000, 10_000, 10_000, 9_999], True),
    ([-100, 600_001], [10_000, 1, 2, 3, 4], False),
    ([300_000], [100], True),
    ([0, 0, 0], [20_000, 20_000, 20_000, 20_000, 10_000], True, 2),
    ([-5_000, -10], [], False),
]
SITES = [
    (
        "wrong-slice",
        "transfers[free_transfers:]",
        "transfers[free_transfers + 1 :]",
        "transfers[:free_transfers]",
        "transfers",
    ),
    ("off-by-one", "average > 250_000", "average >= 250_000", "lowest > 250_000", "average < 250_000"),
    ("wrong-operator", "lowest < 0", "lowest <= 0", "lowest > 0", "average < 0"),
]
