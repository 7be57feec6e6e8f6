"""What a field gave over the weeks."""


def harvest_log(weighings, tare_kg=2.0, price=1.2):
    """Net kilograms per crop, the best week and the income; weighings are (week, crop, crates, gross kg)."""
    per_crop = {}
    per_week = {}
    for week, crop, crates, gross in weighings:
        net = max(0.0, gross - crates * tare_kg)
        per_crop[crop] = per_crop.get(crop, 0.0) + net
        per_week[week] = per_week.get(week, 0.0) + net
    best = max(per_week, key=lambda week: (per_week[week], -week), default=None)
    heavy = [crop for crop, kilos in sorted(per_crop.items()) if kilos >= 100]
    income = 0.0
    for crop, kilos in per_crop.items():
        income += kilos * price * (0.9 if crop in heavy else 1.0)
    return {"crops": per_crop, "best": best, "heavy": heavy, "income": round(income, 2)}


DOMAIN = "people"
CASES = [
    ([(1, "kale", 2, 30.0), (1, "beet", 4, 88.0), (2, "kale", 1, 44.0)],),
    ([(3, "oats", 5, 110.0), (4, "oats", 0, 12.5), (5, "peas", 10, 75.0), (5, "dill", 10, 15.0)], 2.0, 0.8),
    ([],),
    ([(7, "corn", 1, 102.0), (6, "corn", 1, 102.0), (6, "rye", 3, 6.0)],),
    ([(9, "figs", 3, 50.0), (8, "nuts", 2, 49.0)], 0.5),
]
SITES = [
    (
        "missing-edge-case",
        "max(0.0, gross - crates * tare_kg)",
        "gross - crates * tare_kg",
        "max(0.0, gross - tare_kg)",
        "max(0.0, gross + crates * tare_kg)",
    ),
    ("wrong-order", "(per_week[week], -week)", "(per_week[week], week)", "(-per_week[week], -week)", "-week"),
    (
        "wrong-constant",
        "0.9 if crop in heavy else 1.0",
        "0.9 if heavy else 1.0",
        "1.0 if crop in heavy else 0.9",
        "0.9 if crop in per_week else 1.0",
    ),
]
