"""Questions for the demo model: short, of every kind, some of which ask to copy what they say."""

from __future__ import annotations

SIMPLE = "What is the capital of France, and what is the city known for?"

QUESTIONS = (
    "Why do leaves turn red and yellow in autumn?",
    "Copy this line three times: the old boat drifted past the quiet harbour.",
    "Write a Python function that counts the vowels in a word.",
    "Repeat word for word: red, green, blue, red, green, blue, red, green, blue.",
    "Give me a recipe for a simple tomato soup, step by step.",
    "List the planets of the solar system, one on each line.",
    "Explain to a child what a shadow is.",
    "Rewrite in the past tense: she walks to the market and buys apples, pears and apples.",
    "Write a short poem about a lighthouse keeper and his cat.",
    "What should I pack for a weekend of hiking in the mountains?",
    "Translate into French: the train leaves at seven in the morning.",
    "Name five uses for an empty glass jar.",
    "How does a bicycle stay upright while it moves?",
    "Summarise in one sentence: Bees visit flowers to collect nectar. While they do, pollen sticks "
    "to their legs. At the next flower some of it falls off, and the plant can make seeds.",
    "Write a polite e-mail that asks a neighbour to turn the music down.",
    "What is the difference between weather and climate?",
    "Make a table with the columns day and meal for three days.",
    "Tell me a story that begins with: Nobody had opened that door for years.",
    "Why is the sea salty?",
    "Give three arguments for and three against working from home.",
    "Count from thirty down to one.",
    "How do I remove a coffee stain from a white shirt?",
    "Describe the smell of a forest after rain.",
    "Continue this list of pairs: hot and cold, big and small, early and late, open and",
)


def asked(question: str) -> list[dict[str, str]]:
    """The question as a conversation's only message."""
    return [{"role": "user", "content": question}]
