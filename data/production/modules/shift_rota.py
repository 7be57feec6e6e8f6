"""Who works which shift."""


def shift_rota(people, days, closed=(), rest=1):
    """Name per open day, in turn; nobody works again within `rest` open days. None where nobody may."""
    queue = list(people)
    last_worked = {}
    rota = {}
    open_days = [day for day in days if day not in closed]
    for position, day in enumerate(open_days):
        chosen = None
        for name in queue:
            if position - last_worked.get(name, -99) > rest:
                chosen = name
                break
        if chosen is not None:
            queue.remove(chosen)
            queue.append(chosen)
            last_worked[chosen] = position
        rota[day] = chosen
    worked = sum(1 for name in rota.values() if name is not None)
    gaps = len(open_days) - worked
    return {"rota": rota, "gaps": gaps, "idle": sorted(set(people) - set(last_worked))}


DOMAIN = "people"
CASES = [
    (["ana", "bo", "cy"], [1, 2, 3, 4, 5]),
    (["ana", "bo"], [1, 2, 3, 4, 5], (3,), 2),
    (["ana"], [1, 2, 3, 4]),
    (["bo", "ana", "cy", "di"], [10, 11]),
    ([], [1, 2]),
    (["ana", "bo", "cy"], [1, 2, 3, 4, 5, 6], (), 3),
    (["ana", "bo"], [5, 6, 7, 8], (6, 7), 0),
]
SITES = [
    ("missing-edge-case", "if day not in closed", "if day not in closed or day % 7 == 0", "if day in closed", ""),
    (
        "off-by-one",
        "position - last_worked.get(name, -99) > rest",
        "position - last_worked.get(name, -99) >= rest",
        "last_worked.get(name, -99) - position > rest",
        "position > rest",
    ),
    (
        "swapped-arguments",
        "set(people) - set(last_worked)",
        "set(queue[:1]) - set(last_worked)",
        "set(last_worked) - set(people)",
        "set(people) & set(last_worked)",
    ),
]
