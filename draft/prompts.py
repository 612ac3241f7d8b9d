"""The prompts that `paceline draft probe` asks when it is given none.

Four kinds in turn: conversation, code, rewriting, lists. Drafts that look things up do well on the
second half of them, and drafts that are models on all; a measure of one kind would mislead. They
are short, so that the time goes into answers.
"""

from __future__ import annotations

PROMPTS: tuple[str, ...] = (
    "Why does the moon look larger when it is near the horizon?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Correct the spelling and repeat the text:\n\nThe quik brown fox jumps over the lasy dog. The "
    "dog dose not move. The fox runs back to the forrest and the dog goes on sleeping.",
    "List the planets of the solar system in order, one per line.",
    "How do I keep bread fresh for longer?",
    "Write a class Stack in Python with the methods push, pop and peek.",
    "Rewrite in the past tense:\n\nAnna opens the window. She sees a bird on the roof. The bird "
    "sings a song. Anna opens the door and goes into the garden.",
    "Count from one to twenty in words, separated by commas.",
    "Give me some advice for my first job interview.",
    "Explain what this code does, and repeat it with comments:\n\ndef total(items):\n"
    "    result = 0\n    for item in items:\n        result += item.price * item.count\n"
    "    return result",
    "Replace every name by its first letter and repeat the text:\n\nMaria met Tom at the station. "
    "Tom gave Maria a book. Maria gave Tom a map of the city. Tom thanked Maria.",
    "Name ten animals that live in the sea, as a numbered list.",
    "Tell me a short story about a lighthouse keeper.",
    "Write an SQL query that counts the orders of each customer.",
    "Turn this into a JSON array of objects:\n\nname,age,city\nAda,36,London\nBen,41,Leeds\n"
    "Cleo,29,York",
    "Write a shopping list for a vegetable soup for four people, with amounts.",
)
