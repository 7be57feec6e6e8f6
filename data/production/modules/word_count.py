"""How often words are used in a text."""


def word_count(text, stop_words=(), top=3):
    """The most used words with their counts, most used first."""
    cleaned = ""
    for letter in text.lower():
        cleaned += letter if letter.isalnum() else " "
    counts = {}
    stops = set(stop_words)
    for word in cleaned.split():
        if word not in stops:
            counts[word] = counts.get(word, 0) + 1
    pairs = list(counts.items())
    pairs.sort(key=lambda pair: (-pair[1], pair[0]))
    limit = min(top, len(pairs))
    return pairs[:limit]


DOMAIN = "publishing"
CASES = [
    ("The cat saw the other Cat.", ("the",)),
    ("b a c a b d e",),
    ("It's 5 o'clock, it is 5", ("is",), 4),
    ("", ()),
    ("one two two three three three four four four four", (), 2),
    ("Re-do: redo re do x1 X1", (), 5),
]
SITES = [
    (
        "missing-edge-case",
        "letter.isalnum()",
        'letter.isalnum() or letter in "-\'"',
        "letter.isalpha()",
        "letter.isdigit()",
    ),
    (
        "wrong-default",
        "counts.get(word, 0) + 1",
        "min(9, counts.get(word, 0) + len(word))",
        "counts.get(word, 1) + 1",
        "1",
    ),
    ("wrong-order", "(-pair[1], pair[0])", "-pair[1]", "(pair[1], pair[0])", "pair[0]"),
]
