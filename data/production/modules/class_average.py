"""Marks of a class."""


def class_average(marks, weights=None, drop_lowest=False):
    """Weighted average per pupil, and of the class; None stands for a missed test."""
    weights = weights or {}
    averages = {}
    for pupil, results in marks.items():
        taken = [(weights.get(test, 1), mark) for test, mark in results.items() if mark is not None]
        taken.sort(key=lambda pair: pair[1])
        if drop_lowest and len(taken) > 2:
            taken = taken[1:]
        total = sum(weight for weight, _ in taken)
        averages[pupil] = round(sum(weight * mark for weight, mark in taken) / total, 2) if total else None
    known = [value for value in averages.values() if value is not None]
    mean = sum(known) / len(known) if known else 0.0
    best = max(known, default=None)
    spread = best - min(known) if len(known) > 1 else 0.0
    return {"pupils": averages, "class": round(mean, 2), "best": best, "spread": round(spread, 2)}


DOMAIN = "people"
CASES = [
    ({"ann": {"t1": 4, "t2": 6, "t3": 5}, "bob": {"t1": 3, "t2": None, "t3": 9}}, {"t1": 2}),
    ({"cy": {"t1": 8, "t2": 2}, "di": {"t1": 7, "t2": 7, "t3": 1}}, None, True),
    ({"eve": {"t1": None}}, None),
    ({}, {"t1": 3}),
    ({"flo": {"t1": 10, "t2": 0, "t3": 5, "t4": 6}, "gus": {"t1": 0, "t4": 0}}, {"t2": 3, "t4": 2}, True),
]
SITES = [
    (
        "wrong-default",
        "weights.get(test, 1)",
        "weights.get(test, 1) * (mark > 0)",
        "weights.get(test, 0)",
        "weights.get(pupil, 1)",
    ),
    ("missing-edge-case", "if value is not None", "if value", "if value is None", "if value is not None and value > 5"),
    ("swapped-arguments", "best - min(known)", "best - mean", "min(known) - best", "best + min(known)"),
]
