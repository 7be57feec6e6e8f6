"""Finding dishes on a menu."""


def menu_search(dishes, words, budget=None, avoid=()):
    """Names of dishes that fit, best match first; `dishes` are (name, price, ingredients)."""
    terms = {word.lower().strip() for word in words if word.strip()}
    banned = set(avoid)
    hits = []
    for name, price, ingredients in dishes:
        if banned & set(ingredients):
            continue
        if budget is not None and price > budget:
            continue
        tokens = set(name.lower().split()) | set(ingredients)
        score = len(terms & tokens)
        if score or not terms:
            hits.append((-score, price, name))
    hits.sort()
    cheapest = min((price for _, price, _ in hits), default=None)
    names = [name for _, _, name in hits]
    skipped = len(dishes) - len(hits)
    return {"names": names, "cheapest": cheapest, "skipped": skipped}


DOMAIN = "people"
CASES = [
    (
        [("Bean soup", 6, ["bean", "leek"]), ("Fish pie", 12, ["fish", "milk"]), ("Leek tart", 9, ["leek", "egg"])],
        ["Leek", "soup"],
    ),
    (
        [("Rice bowl", 8, ["rice", "egg"]), ("Egg rice", 8, ["rice", "egg", "nut"]), ("Plain rice", 5, ["rice"])],
        ["egg", "RICE "],
        8,
        ["nut"],
    ),
    ([("Stew", 10, ["beef"]), ("Salad", 7, ["kale", "nut"])], [], 7),
    ([], ["x"]),
    ([("Nut cake", 4, ["nut", "egg"]), ("Tea", 2, ["tea"]), ("Egg cup", 3, ["egg"])], [" ", "nut"], 4, ["egg", "tea"]),
    ([("A b", 3, ["c"]), ("B c", 2, ["c"]), ("C a", 1, ["d"])], ["a", "b", "c"]),
    ([("Tea", 2, ["tea"])], [" "]),
]
SITES = [
    (
        "missing-edge-case",
        "for word in words if word.strip()",
        "for word in words",
        "for word in words if not word.strip()",
        "for word in words[1:]",
    ),
    ("off-by-one", "price > budget", "price >= budget", "price < budget", "len(ingredients) > budget"),
    (
        "wrong-variable",
        "len(dishes) - len(hits)",
        "sum(1 for dish in dishes if dish[0] not in names and banned & set(dish[2]))",
        "len(hits) - len(dishes)",
        "len(dishes) - len(terms)",
    ),
]
