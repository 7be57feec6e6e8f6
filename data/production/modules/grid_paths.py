"""Ways through a warehouse."""


def grid_paths(rows, columns, blocked=(), start=(0, 0)):
    """Number of ways from `start` to the far corner, going only down or right, and the fields never reached."""
    walls = set(blocked)
    ways = {start: 0 if start in walls else 1}
    for row in range(start[0], rows):
        for column in range(start[1], columns):
            field = (row, column)
            if field != start:
                above = ways.get((row - 1, column), 0)
                beside = ways.get((row, column - 1), 0)
                ways[field] = 0 if field in walls else above + beside
    goal = (rows - 1, columns - 1)
    total = ways.get(goal, 0)
    dead = [field for field, count in ways.items() if count == 0 and field not in walls]
    share = len(dead) / max(1, len(ways))
    return {"ways": total, "dead": sorted(dead), "share": round(share, 3)}


DOMAIN = "logistics"
CASES = [
    (3, 3),
    (3, 4, [(0, 1), (1, 2)]),
    (2, 2, [(0, 1), (1, 0)]),
    (4, 3, [(2, 2)], (1, 1)),
    (1, 5, [(0, 2)]),
    (3, 3, [(0, 0)]),
]
SITES = [
    ("missing-edge-case", "0 if start in walls else 1", "1", "1 if start in walls else 0", "len(walls)"),
    (
        "wrong-operator",
        "above + beside",
        "above + beside + ways.get((row - 1, column - 1), 0)",
        "above * beside",
        "max(above, beside)",
    ),
    ("wrong-variable", "max(1, len(ways))", "max(1, len(ways) - len(walls))", "max(1, len(walls))", "max(1, rows)"),
]
