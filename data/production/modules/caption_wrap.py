"""Breaking a caption into lines."""


def caption_wrap(text, width, max_lines=3, mark="..."):
    """Lines of at most `width` letters; a caption that is too long ends with `mark`."""
    words = text.split()
    lines = []
    line = ""
    for word in words:
        candidate = f"{line} {word}" if line else word
        if len(candidate) <= width or not line:
            line = candidate
        else:
            lines.append(line)
            line = word
    if line:
        lines.append(line)
    kept = lines[:max_lines]
    cut = len(lines) > max_lines
    if cut:
        kept[-1] = kept[-1][: width - len(mark)].rstrip() + mark
    return kept


DOMAIN = "publishing"
CASES = [
    ("the quick brown fox jumps over the lazy dog", 10),
    ("one two three four five six seven", 9, 2),
    ("short", 20),
    ("", 5),
    ("aa  bb\ncc dd", 5, 2),
    ("a verylongwordindeed fits nowhere at all here", 8, 3, "~"),
    ("abc def ghi", 3, 2),
]
SITES = [
    ("wrong-separator", "text.split()", "text.split(' ')", "list(text)", "text.splitlines()"),
    ("off-by-one", "len(candidate) <= width", "len(candidate) < width", "len(line) <= width", "len(candidate) > width"),
    ("wrong-slice", "[: width - len(mark)]", "", "[width - len(mark) :]", "[: width - 2 * len(mark)]"),
]
