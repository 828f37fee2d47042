"""Questions as people ask them, of four kinds (chat, code, maths, reading), written for the benchmarks: answers to them
are natural text, which drafts can or cannot foresee, and no adapter is trained on them."""

from itertools import chain, cycle, islice
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.prompts import chat_tokens

_TOPICS = (
    "keeping a sourdough starter alive", "repairing a bicycle puncture", "the Hanseatic League", "tidal power",
    "learning to sing at forty", "bird migration", "shadow puppetry", "why bridges hum in the wind", "lichens",
    "moving to a village", "restoring old furniture", "the invention of the telegraph", "night trains", "beekeeping",
    "how locks on a canal work", "sign languages", "the Dead Sea", "choosing a first telescope", "rice terraces",
    "fear of public speaking", "what a conductor does", "permafrost", "making paper by hand", "city foxes", "tides",
)  # fmt: skip
_CHATS = (
    "I have ten minutes and know nothing about {topic}. Where would you start?",
    "Tell my grandmother, who is curious about everything, about {topic}.",
    "Please write the opening paragraph of a magazine article on {topic}.",
    "We argued about {topic} at dinner. Which points would a fair judge make for either side?",
)
_TASKS = (
    "returns the second largest number of a list", "counts the vowels of each word in a sentence",
    "merges two dictionaries and adds up the values of common keys", "checks whether a year is a leap year",
    "turns a temperature from Fahrenheit into Celsius", "finds the longest line of a text file",
    "removes duplicates from a list and keeps the order", "groups words by their first letter",
    "computes the moving average of a list of numbers", "validates that brackets in a string are balanced",
    "turns seconds into hours, minutes and seconds", "finds all pairs of numbers that add up to a target",
    "capitalises the first letter of every word", "computes compound interest over some years",
    "reads a CSV file and returns the sum of one column", "reverses the order of the words in a sentence",
    "draws a triangle of stars with a given height", "returns the nth row of Pascal's triangle",
)  # fmt: skip
_CODES = (
    "Write a Python function that {task}, with a docstring and an example of its use.",
    "How do I write a JavaScript function that {task}? Please explain the code step by step.",
    "Show me two different ways to write Python code that {task}, and compare them.",
)
_PEOPLE = ("Mara", "Tomas", "Ines", "Jonas", "Leila", "Pavel", "Ruth", "Samir", "Greta", "Otto", "Yuki", "Bruno")
_MATHS = (
    "{who} picks {a} baskets of {b} apples and gives {c} apples away. How many are left? Show your working.",
    "A train needs {b} minutes for {a} kilometres. How far does it get in {c} hours at that speed? Explain each step.",
    "{who} saves {b} euros a week and already has {c}. After how many weeks are there {a}00 euros? Think step by step.",
)
_PASSAGES = (
    "The lighthouse on the skerry was lit by hand until 1931. Every evening the keeper carried forty litres of oil up "
    "a hundred and twelve steps, wound the clockwork that turned the lens, and noted wind and sight in a book. When "
    "the lamp was replaced by an electric one, he stayed for two more years, because nobody had told him to leave.",
    "Rain that falls on the eastern slope reaches the lake within a day, rain from the west takes almost a week: it "
    "sinks into limestone, joins an underground river and comes up again in three springs near the mill. Farmers knew "
    "this long before a geologist coloured the water with dye in 1908 and waited, watch in hand, at the springs.",
    "The small bakery changed its hours in March. It now opens at five in the morning, since most customers are nurses "
    "on their way to the early shift, and closes at noon. Sales of rolls rose by a third, those of cakes fell by half, "
    "and the owner says that she has seen her children at lunch for the first time in eleven years.",
    "Chess clocks were introduced after a match in 1851 in which one player thought about a single move for more than "
    "two hours. At first sandglasses were used, one for each side; they could not be read exactly and fell over. "
    "The tumbling clock, two clocks on a seesaw of which only the higher one ran, came from Manchester in 1883.",
    "Swifts sleep in the air. At dusk they climb to two thousand metres or more and glide in wide circles, resting one "
    "half of the brain at a time. Young birds that leave the nest in July may not touch the ground for three years. "
    "They eat, drink, mate and gather straw on the wing, and land only when they have eggs to lay.",
    "When the town's only cinema closed, a group of pupils asked the council for the keys. They cleaned the projector, "
    "learned from a retired technician how to thread film, and showed one old picture every Friday for the price of a "
    "bus ticket. After two winters they had repaid the council's loan and owned a second projector.",
)  # fmt: skip
_READINGS = (
    "{passage}\n\nTell me in your own words what happened here and why it is remarkable.",
    "Make a list of the facts and figures in these lines.\n\n{passage}",
    "{passage}\n\nContinue this text with another paragraph in the same style.",
    "Which questions does the following text leave open, and what might the answers be?\n\n{passage}",
    "Write a letter to the editor of the newspaper that printed this.\n\n{passage}",
    "{passage}\n\nExplain every word in this text that a ten-year-old might not know.",
)


def questions() -> list[str]:
    """All of them, the four kinds in turn until the smallest has run out and begins again."""
    chats = [form.format(topic=topic) for form in _CHATS for topic in _TOPICS]
    codes = [form.format(task=task) for form in _CODES for task in _TASKS]
    readings = [form.format(passage=passage) for form in _READINGS for passage in _PASSAGES]
    kinds = (chats, codes, _maths(), readings)
    return list(islice(chain.from_iterable(zip(*map(cycle, kinds), strict=False)), 4 * len(chats)))


def chat_prompts(model: Path) -> list[list[int]]:
    """The questions in the model's chat format, as token ids."""
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    return [chat_tokens(tokenizer, each) for each in questions()]


def _maths() -> list[str]:
    return [
        form.format(who=who, a=7 + 3 * index + more, b=12 + 5 * index - more, c=4 + 2 * index + more)
        for more in range(3)
        for form in _MATHS
        for index, who in enumerate(_PEOPLE)
    ]
