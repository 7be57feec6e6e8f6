"""The table of a league."""


def league_table(games, win=3, draw=1):
    """Rows (team, points, goals for, goals against), best first; games are (home, away, goals home, goals away)."""
    rows = {}
    for home, away, scored, conceded in games:
        for team, own, other in ((home, scored, conceded), (away, conceded, scored)):
            points, plus, minus = rows.get(team, (0, 0, 0))
            gained = win if own > other else draw if own == other else 0
            rows[team] = (points + gained, plus + own, minus + other)
    table = [(team, *row) for team, row in rows.items()]
    table.sort(key=lambda row: row[0])
    table.sort(key=lambda row: (row[1], row[2] - row[3]), reverse=True)
    goals = sum(row[2] for row in table)
    average = goals / len(games) if games else 0.0
    leader = table[0][0] if table else None
    return {"table": table, "leader": leader, "goals": round(average, 2)}


DOMAIN = "people"
CASES = [
    ([("A", "B", 2, 1), ("B", "C", 0, 0), ("C", "A", 1, 3)],),
    ([("A", "B", 1, 0), ("B", "A", 4, 0), ("C", "D", 2, 1), ("D", "C", 1, 1)],),
    ([],),
    ([("X", "Y", 0, 2), ("Z", "X", 5, 5), ("Y", "Z", 1, 1)], 2, 1),
    ([("P", "Q", 6, 5), ("R", "S", 1, 0), ("Q", "R", 1, 0), ("S", "P", 3, 0), ("P", "S", 2, 2)],),
]
SITES = [
    (
        "wrong-operator",
        "draw if own == other else 0",
        "draw if own >= other - 1 else 0",
        "draw if own != other else 0",
        "draw",
    ),
    ("wrong-order", "(row[1], row[2] - row[3])", "(row[1], row[2])", "(row[1], row[3] - row[2])", "(row[2], row[1])"),
    (
        "wrong-variable",
        "goals / len(games) if games else 0.0",
        "goals / (2 * len(games)) if games else 0.0",
        "goals / len(table) if games else 0.0",
        "len(games) / goals if games else 0.0",
    ),
]
