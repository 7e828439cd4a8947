"""A verifier that hangs on some answers, raises on others, and grades the rest by their bytes."""

import time


def mood(response: str) -> str:
    total = sum(response.encode())
    if total % 13 == 0:
        return "hangs"
    if total % 5 == 0:
        return "raises"
    return "right" if total % 2 else "wrong"


def grade(response: str, answer: str) -> float:
    found = mood(response)
    if found == "hangs":
        time.sleep(600)
    if found == "raises":
        raise ArithmeticError(answer)
    return float(found == "right")
