"""Content words of the built-in tasks.

The target task shares no content words with the source tasks.
"""

from dataclasses import dataclass

Pair = tuple[str, str]


@dataclass(frozen=True)
class Words:
    """Content words of a task.

    Attributes:
      people: Nouns for people, with a regular plural.
      handled: ``(base form, past)`` of verbs whose objects are things.
      met: Past participles of verbs whose objects are people. They must equal the past tense.
      things: ``(general term, specific terms)``, plural nouns.
      details: Places and times.
      compared: Comparatives and their opposites.
      events: Intransitive verbs in the past tense.
      passed: ``(giver's verb, receiver's verb)`` for the same event, in the past tense.
      held: Nouns for objects that are given and received.
    """

    people: tuple[str, ...]
    handled: tuple[Pair, ...]
    met: tuple[str, ...]
    things: tuple[tuple[str, tuple[str, ...]], ...]
    details: tuple[str, ...]
    compared: tuple[Pair, ...]
    events: tuple[str, ...]
    passed: tuple[Pair, ...]
    held: tuple[str, ...]


def _pairs(text: str) -> tuple[Pair, ...]:
    """Splits a text such as "taller shorter, older younger"."""
    return tuple((first, second) for first, second in map(str.split, text.split(", ")))


# The list of people is as long as possible, with words that are a single token in BERT's vocabulary. With few people,
# an adapter memorizes the pairs of people instead of learning the relation between the sentences.
SOURCE_WORDS = Words(
    people=tuple(
        "nurse farmer teacher lawyer painter singer driver doctor sailor dancer judge student hunter banker actor "
        "miner priest clerk guard cook boy girl king queen prince knight merchant poet author player artist director "
        "editor reporter scientist engineer captain officer mayor senator chief chef maid servant father mother uncle "
        "cousin neighbor friend professor scholar bishop wizard prisoner agent surgeon runner".split()
    ),
    handled=_pairs(
        "order ordered, collect collected, wash washed, count counted, paint painted, pack packed, "
        "deliver delivered, move moved, check checked, want wanted"
    ),
    met=tuple(
        "thanked followed called visited warned helped praised greeted hired trusted pushed kissed blamed watched "
        "admired invited attacked saved caught loved hated fired stopped touched".split()
    ),
    things=(
        ("flowers", ("roses", "tulips", "lilies")),
        ("animals", ("dogs", "horses", "cats")),
        ("fruits", ("apples", "pears", "plums")),
        ("tools", ("hammers", "saws", "drills")),
        ("clothes", ("shirts", "coats", "socks")),
        ("vehicles", ("trucks", "cars", "buses")),
    ),
    details=("in the kitchen", "at noon", "on Monday", "in the garden", "before dawn", "near the river"),
    compared=_pairs(
        "taller shorter, older younger, richer poorer, stronger weaker, faster slower, bigger smaller, "
        "warmer colder, better worse"
    ),
    events=tuple(
        "left arrived sang slept laughed spoke won cried prayed rested smiled shouted returned died ate danced".split()
    ),
    passed=(("gave", "received"), ("lent", "borrowed")),
    held=("lamp", "book", "ring", "knife", "watch", "bag", "bottle", "map"),
)

TARGET_WORDS = Words(
    people=tuple(
        "soldier pilot writer monk tourist detective boxer swimmer rider warrior stranger visitor guest owner manager "
        "composer musician photographer journalist architect".split()
    ),
    handled=_pairs("inspect inspected, photograph photographed, examine examined, sort sorted"),
    met=("chased", "accused", "defended", "arrested", "insulted", "rescued", "ignored", "interviewed"),
    things=(
        ("trees", ("oaks", "pines", "palms")),
        ("vegetables", ("beans", "onions", "potatoes")),
        ("instruments", ("violins", "flutes", "drums")),
        ("birds", ("eagles", "crows", "ducks")),
    ),
    details=("at the station", "in winter", "after lunch", "on the roof"),
    compared=_pairs("louder quieter, heavier lighter, earlier later"),
    events=("departed", "nodded", "voted", "jumped", "paused"),
    passed=(("sold", "bought"),),
    held=("boat", "painting", "tent", "clock"),
)
