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
