"""When to take a medicine, and how much."""


def dose_plan(weight_kg, per_kg_mg, tablet_mg, hours=24, gap=8, maximum_mg=4000):
    """Hours and tablets of a day's doses, in half tablets; never above the daily maximum."""
    moments = list(range(0, hours, gap))
    wanted = min(weight_kg * per_kg_mg, maximum_mg / max(1, len(moments)))
    halves = int(wanted * 2 // tablet_mg)
    if halves == 0:
        raise ValueError("not even half a tablet")
    plan = []
    given = 0
    for moment in moments:
        dose = halves * tablet_mg / 2
        if given + dose <= maximum_mg:
            plan.append((moment, halves / 2))
            given += dose
    last = plan[-1][0] if plan else None
    return {"plan": plan, "total_mg": given, "next": None if last is None else (last + gap) % hours}


DOMAIN = "people"
CASES = [
    (70, 10, 500),
    (20, 15, 250, 24, 6),
    (60, 20, 500, 24, 6, 4000),
    (3, 10, 500),
    (50, 12, 300, 20, 6, 900),
    (90, 11, 330, 12, 4, 3000),
]
SITES = [
    ("swapped-arguments", "range(0, hours, gap)", "range(gap, hours + 1, gap)", "range(0, gap, hours)", "range(hours)"),
    (
        "wrong-operator",
        "int(wanted * 2 // tablet_mg)",
        "round(wanted * 2 / tablet_mg)",
        "int(wanted // tablet_mg)",
        "int(wanted * 4 // tablet_mg)",
    ),
    ("wrong-operator", "(last + gap) % hours", "last + gap", "(last - gap) % hours", "last % hours"),
]
