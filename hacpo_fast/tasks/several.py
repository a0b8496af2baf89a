"""Texts that hold several answers. Nothing here needs the packages of the `math` reward."""


def split_answers(text: str) -> list[str]:
    """The answers that commas separate in `text`; a comma within brackets of any kind separates nothing."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth <= 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]
