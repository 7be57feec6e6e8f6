"""Reading columns out of comma-separated text."""


def csv_columns(text, wanted, comment="#"):
    """Values per wanted column name; short rows give empty values, comments and blank lines are left out."""
    rows = []
    for line in text.splitlines():
        if line.strip() and not line.startswith(comment):
            rows.append([cell.strip() for cell in line.split(",")])
    header = rows[0] if rows else []
    columns = {}
    for name in wanted:
        values = []
        if name in header:
            place = header.index(name)
            values = [row[place] if place < len(row) else "" for row in rows[1:]]
        columns[name] = values
    longest = max(map(len, columns.values()), default=0)
    complete = [name for name in wanted if len(columns[name]) == longest]
    missing = sorted(set(wanted) - set(header))
    return {"columns": columns, "complete": complete, "missing": missing}


DOMAIN = "publishing"
CASES = [
    ("id,name,age\n1,Ann,30\n2,Bob\n", ["name", "age"]),
    ("# note\n a , b \n\n x,y \n  # z,w\n", ["a", "c"]),
    ("", ["a"]),
    ("a,b\n1,2,3\n4,5", ["b", "a"], ";"),
    ("; a\na,b\n,\n1,\n", ["b", "q", "p"], ";"),
    ("  \na,b\n#1,2\n3,4\n", ["b"]),
]
SITES = [
    (
        "missing-edge-case",
        "line.startswith(comment)",
        "line.lstrip().startswith(comment)",
        "line.endswith(comment)",
        "comment",
    ),
    (
        "wrong-default",
        'row[place] if place < len(row) else ""',
        "row[place] if place < len(row) else None",
        'row[place] if place < len(row) - 1 else ""',
        "row[-1]",
    ),
    (
        "swapped-arguments",
        "sorted(set(wanted) - set(header))",
        "[name for name in wanted if name not in header]",
        "sorted(set(header) - set(wanted))",
        "sorted(set(wanted) & set(header))",
    ),
]
