"""A verifier by luck: one text of three is right, however random a model's weights are."""

import zlib


def grade(response: str, answer: str) -> float:
    return float(zlib.crc32(response.encode()) % 3 == 0)
