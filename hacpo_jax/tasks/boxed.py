r"""Finding the final answer in `\boxed{...}`."""

import re

# An escaped character is one token, so that \{ and \} do not count as braces.
_TOKEN = re.compile(r"\\boxed\s*\{|\\boxed\s+(?P<bare>\w+)|\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""Returns what stands in the last complete `\boxed{...}` of `text`, or None without one.

    Braces are balanced, of nested boxes the innermost counts, `\boxed 2` counts as a box, and a box
    that is never closed (a response that was cut off) does not. Takes time linear in the length.
    """
    last: tuple[int, int] | None = None
    opened: list[int | None] = []  # where each open group's content starts; None: not a box
    for token in _TOKEN.finditer(text):
        if token["bare"]:
            last = token.span("bare")
        elif token.group() == "{":
            opened.append(None)
        elif token.group().startswith(r"\boxed"):
            opened.append(token.end())
        elif token.group() == "}" and opened:
            start = opened.pop()
            if start is not None and (last is None or start > last[0]):
                last = (start, token.start())
    return None if last is None else text[slice(*last)]
