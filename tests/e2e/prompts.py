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
    "Explain how a lock and a key work together.",
    "Write a shell command that lists all files of a folder by size, and say what each flag does.",
    "What are the first ten even numbers? Write them in one line, with commas between them.",
    "Turn into a question: the museum closes at six on Sundays.",
    "How do birds find their way when they fly south?",
    "Write an HTML page with a heading and a list of three fruits.",
    "Spell the word necessary, then use it in a sentence.",
    "What happens to water when it freezes?",
    "Write a haiku about the first snow.",
    "Make this sentence shorter: due to the fact that it was raining, we decided to stay at home.",
    "Which is heavier, a kilogram of feathers or a kilogram of iron? Explain.",
    "Write the multiplication table of seven, up to seven times ten.",
    "Describe a day in the life of a postman in a mountain village.",
    "Give me ten names for a small black cat.",
    "Change every he to she: he said that he would come when he had found his coat.",
    "Write a JavaScript function that reverses a string.",
    "What do the words synonym and antonym mean? Give two examples of each.",
    "Plan a dinner for four people, one of whom does not eat meat.",
    "How can I fall asleep more easily?",
    "Repeat the alphabet backwards.",
    "Write a dialogue between a tourist and a baker who does not speak the same language.",
    "Who wrote Romeo and Juliet, and what is the play about?",
    "List the months of the year with the number of days of each.",
    "Put these words in order by length: tree, elephant, sea, bicycle, house.",
    "Explain what a loop is in programming, with an example in Python.",
    "Write an advertisement for an umbrella that never turns inside out.",
    "What is the moral of the story of the hare and the tortoise?",
    "Write a packing list for a baby, a dog and a violin.",
)


def asked(question: str) -> list[dict[str, str]]:
    """The question as a conversation's only message."""
    return [{"role": "user", "content": question}]
