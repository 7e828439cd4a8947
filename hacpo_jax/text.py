"""Text of models and files, made safe for a terminal."""


def printable(text: str) -> str:
    r"""The text with everything but printable characters, line ends and tabs written as escapes.

    A model may well write the control sequences that move a terminal's cursor or change its title.

    Args:
      text: any text.

    Returns:
      Text in which, e.g., the escape character is the four characters `\x1b`.
    """
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def time_left(seconds: float) -> str:
    """How long something may still take, as precisely as such a guess can be.

    Returns:
      Text such as `about 40 s left`, `about 12 min left` or `about 3.5 h left`.
    """
    if seconds < 90:
        return f"about {seconds:.0f} s left"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} min left"
    return f"about {seconds / 3600:.1f} h left"
