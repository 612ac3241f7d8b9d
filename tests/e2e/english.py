"""Whether a text is English, roughly: enough to tell an answer from noise."""

from __future__ import annotations

import re

COMMON = {
    *("a", "also", "and", "are", "as", "at", "be", "but", "by", "can", "for", "from", "has"),
    *("have", "in", "is", "it", "its", "known", "many", "most", "of", "on", "one", "or", "such"),
    *("that", "the", "they", "this", "to", "was", "which", "with", "you", "your"),
}


def is_english(text: str) -> bool:
    """Mostly words of ordinary length, several of them common ones."""
    words = re.findall(r"[A-Za-z]+", text)
    letters = sum(map(len, words))
    known = {word.lower() for word in words} & COMMON
    return (
        len(words) >= 5
        and len(known) >= 3
        and letters > 0.6 * len(text)
        and max(map(len, words)) <= 24
    )
