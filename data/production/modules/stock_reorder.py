"""What a shop has to order again."""


def stock_reorder(stock, sales, days=7, lead=3, pack=6):
    """Packs to order per article: enough for the lead time and one more period, whole packs only."""
    orders = {}
    urgent = []
    for article in sorted(stock):
        daily = sales.get(article, 0) / days
        needed = daily * (days + lead)
        short = needed - stock[article]
        if short > 0:
            orders[article] = int(-(-short // pack))
        if daily * lead > stock[article]:
            urgent.append(article)
    packs = sum(orders.values())
    largest = max(orders.values(), default=0)
    unsold = [article for article in stock if article not in sales]
    unknown = sorted(set(sales) - set(stock))
    return {"orders": orders, "urgent": urgent, "packs": packs, "largest": largest, "idle": unsold, "new": unknown}


DOMAIN = "logistics"
CASES = [
    ({"tea": 10, "jam": 3, "oil": 40}, {"tea": 21, "jam": 14}),
    ({"nut": 9, "rye": 0}, {"nut": 21, "fig": 2, "rye": 7}),
    ({}, {"x": 1}),
    ({"pen": 20, "ink": 4}, {"pen": 14, "ink": 0}, 7, 3, 5),
    ({"bolt": 100, "nail": 6}, {"bolt": 300, "nail": 10}, 10, 5, 25),
    ({"cup": -2, "mug": 12}, {"cup": 0, "mug": 28}, 14, 6, 4),
]
SITES = [
    ("wrong-operator", "daily * (days + lead)", "daily * days", "daily + days + lead", "daily * (days - lead)"),
    (
        "off-by-one",
        "daily * lead > stock[article]",
        "daily * lead >= stock[article]",
        "daily > stock[article]",
        "daily * lead < stock[article]",
    ),
    (
        "missing-edge-case",
        "if article not in sales",
        "if not sales.get(article)",
        "if article in sales",
        "if article in orders",
    ),
]
