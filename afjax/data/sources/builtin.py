"""Three small tasks generated from a grammar.

The quickstart and the tests use them, because they need no downloads. Every row is a pair of short sentences about
people. Two source tasks teach relations between sentences:

- ``entail`` (entailment, neutral, contradiction): quantifiers, numbers, and more general and more specific statements,
  with and without negation.
- ``paraphrase`` (different, same): active and passive, opposite comparatives, temporal order, giving and receiving.

``target`` asks whether the second sentence follows from the first. It combines the relations of both source tasks with
different content words and has only 200 training rows, too few to learn the relations from scratch. Single words say
little about the label, because rows of all labels use the same words and differ only in the order of the people, the
quantifier or the scope of a negation.

Rows are generated with fixed seeds. All rows of a task are distinct, so train, dev and test are disjoint.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from afjax.config.tasks import TaskConfig
from afjax.data.sources.builtin_words import SOURCE_WORDS, TARGET_WORDS, Pair, Words
from afjax.data.sources.kind import SourceKind, Split, SplitSource
from afjax.data.splits import Rows
from afjax.errors import UserError, did_you_mean

NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine")

# Pairs of quantifiers by label. The label is the relation of a sentence with the first quantifier to the same sentence
# with the second.
QUANTIFIERS = {
    "entailment": (("All", "Some"), ("All", "Most"), ("Most", "Some"), ("None", "Not all")),
    "neutral": (("Some", "All"), ("Most", "All"), ("Some", "Most"), ("Not all", "None")),
    "contradiction": (("All", "None"), ("None", "Some"), ("Some", "None"), ("None", "Most"), ("All", "Not all")),
}

# Pairs of statements by label. The strong statement (+) implies the weak one, and - negates a statement.
STATEMENTS = {
    "entailment": (("+strong", "+weak"), ("-weak", "-strong")),
    "neutral": (("+weak", "+strong"), ("-strong", "-weak"), ("+weak", "-strong"), ("-strong", "+weak")),
    "contradiction": (("+strong", "-weak"), ("-weak", "+strong")),
}


def quantifier(rng: np.random.Generator, words: Words, label: str) -> Pair:
    """Generates a pair of sentences that differ in the quantifier.

    The quantifiers are all, most, some, none and not all.
    """
    first, second = pick(rng, QUANTIFIERS[label])
    _, past = pick(rng, words.handled)
    clause = f"of the {pick(rng, words.people)}s {past} {pick(rng, pick(rng, words.things)[1])}."
    return f"{first} {clause}", f"{second} {clause}"


def scope(rng: np.random.Generator, words: Words, label: str) -> Pair:
    """Generates a pair of statements that differ in how specific they are.

    One statement has a more specific term, or an additional detail. Negation reverses the direction of entailment.
    """
    general, specials = pick(rng, words.things)
    special = pick(rng, specials)
    if rng.integers(2):
        objects = {"strong": special, "weak": general}
    else:
        objects = {"strong": f"{special} {pick(rng, words.details)}", "weak": special}
    base, past = pick(rng, words.handled)
    person = pick(rng, words.people)

    def sentence(form: str) -> str:
        verb = past if form[0] == "+" else f"did not {base} any"
        return f"The {person} {verb} {objects[form[1:]]}."

    first, second = pick(rng, STATEMENTS[label])
    return sentence(first), sentence(second)


def number(rng: np.random.Generator, words: Words, label: str) -> Pair:
    """Generates a pair with numbers, each after "at least" or, negated, "fewer than"."""
    low, high = sorted(two(rng, range(len(NUMBERS))))
    numbers = {"strong": NUMBERS[high], "weak": NUMBERS[low]}
    first, second = pick(rng, STATEMENTS[label])
    _, past = pick(rng, words.handled)
    clause = f"{pick(rng, words.people)}s {past} {pick(rng, pick(rng, words.things)[1])}."

    def sentence(form: str) -> str:
        return f"{'At least' if form[0] == '+' else 'Fewer than'} {numbers[form[1:]]} {clause}"

    return sentence(first), sentence(second)


def voice(rng: np.random.Generator, words: Words, label: str) -> Pair:
    """Generates an active and a passive sentence."""
    met = pick(rng, words.met)
    return converse(
        rng, label, two(rng, words.people), f"The {{0}} {met} the {{1}}.", f"The {{1}} was {met} by the {{0}}."
    )


def comparison(rng: np.random.Generator, words: Words, label: str) -> Pair:
    """Generates a pair with a comparative and its opposite."""
    more, less = pick(rng, words.compared)
    direct, reverse = f"The {{0}} is {more} than the {{1}}.", f"The {{1}} is {less} than the {{0}}."
    return converse(rng, label, two(rng, words.people), direct, reverse)


def order(rng: np.random.Generator, words: Words, label: str) -> Pair:
    """Generates a pair about the order of two events, with "before" and "after"."""
    people, events = two(rng, words.people), two(rng, words.events)
    happenings = (f"{people[0]} {events[0]}", f"{people[1]} {events[1]}")
    return converse(rng, label, happenings, "The {0} before the {1}.", "The {1} after the {0}.")


def passing(rng: np.random.Generator, words: Words, label: str) -> Pair:
    """Generates a pair with verbs of giving and receiving."""
    (gave, received), held = pick(rng, words.passed), pick(rng, words.held)
    direct, reverse = f"The {{0}} {gave} the {held} to the {{1}}.", f"The {{1}} {received} the {held} from the {{0}}."
    return converse(rng, label, two(rng, words.people), direct, reverse)


def converse(rng: np.random.Generator, label: str, pair: tuple[str, str], direct: str, reverse: str) -> Pair:
    """Generates a pair from two forms of a statement about two people or events.

    If the label is "same", both sentences have the same meaning. Otherwise the people or events are swapped in the
    second sentence.
    """
    second = pair if label == "same" else pair[::-1]
    forms = (direct, reverse) if rng.integers(2) else (reverse, direct)
    return forms[0].format(*pair), forms[1].format(*second)


def pick(rng: np.random.Generator, items: Sequence[Any]) -> Any:
    return items[int(rng.integers(len(items)))]


def two(rng: np.random.Generator, items: Sequence[Any]) -> tuple[Any, Any]:
    """Samples two different items."""
    first = int(rng.integers(len(items)))
    step = 1 + int(rng.integers(len(items) - 1))
    return items[first], items[(first + step) % len(items)]


# Generates a pair of sentences for a label of the relation (entailment, neutral or contradiction, or else different or
# same).
Relation = Callable[[np.random.Generator, Words, str], Pair]
# Maps each label of a task to the corresponding labels of the relation.
LabelMap = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Grammar:
    """The grammar of one task.

    Attributes:
      seed: Random seed of the task's rows.
      words: The task's content words.
      relations: The task's relations, each with a mapping from the task's labels to the relation's. Rows cycle through
        the relations, so every split has about the same number of each.
      sizes: Number of rows in train, dev and test.
    """

    seed: int
    words: Words
    relations: tuple[tuple[Relation, LabelMap], ...]
    sizes: tuple[int, int, int]

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(self.relations[0][1])


ENTAIL: LabelMap = {label: (label,) for label in ("entailment", "neutral", "contradiction")}
PARAPHRASE: LabelMap = {label: (label,) for label in ("different", "same")}
FOLLOWS_ENTAILED: LabelMap = {"does_not_follow": ("neutral", "contradiction"), "follows": ("entailment",)}
FOLLOWS_SAME: LabelMap = {"does_not_follow": ("different",), "follows": ("same",)}

GRAMMARS = {
    "entail": Grammar(
        seed=1,
        words=SOURCE_WORDS,
        relations=tuple((relation, ENTAIL) for relation in (quantifier, scope, number)),
        sizes=(4000, 400, 400),
    ),
    "paraphrase": Grammar(
        seed=2,
        words=SOURCE_WORDS,
        relations=tuple((relation, PARAPHRASE) for relation in (voice, comparison, order, passing)),
        sizes=(2000, 400, 400),
    ),
    "target": Grammar(
        seed=3,
        words=TARGET_WORDS,
        relations=(
            *((relation, FOLLOWS_ENTAILED) for relation in (quantifier, scope, number)),
            *((relation, FOLLOWS_SAME) for relation in (voice, comparison, order, passing)),
        ),
        sizes=(200, 600, 600),
    ),
}


def builtin_rows(name: str, split: str) -> Rows:
    """Generates the train, dev or test split of a built-in task.

    The rows are labeled text pairs.

    Raises:
      UserError: There is no such task.
    """
    if name not in GRAMMARS:
        raise UserError(
            f'There is no built-in task "{name}"; the built-in tasks are {", ".join(GRAMMARS)}. For your own data, use '
            f"a file or folder as the source.{did_you_mean(name, GRAMMARS)}"
        )
    # The slice is a copy, because a caller may change its rows.
    return draw_rows(name)[split][:]


@functools.cache
def draw_rows(name: str) -> dict[str, Rows]:
    """Generates all splits of a task, with about the same number of rows for each label."""
    grammar = GRAMMARS[name]
    rng = np.random.default_rng(grammar.seed)
    names = grammar.label_names
    seen: set[Pair] = set()
    splits = {}
    for split, size in zip(("train", "dev", "test"), grammar.sizes, strict=True):
        pairs: list[Pair] = []
        labels = []
        while len(pairs) < size:
            relation, labels_of = grammar.relations[len(pairs) % len(grammar.relations)]
            label = pick(rng, names)
            pair = relation(rng, grammar.words, pick(rng, labels_of[label]))
            if pair not in seen:
                seen.add(pair)
                pairs.append(pair)
                labels.append(names.index(label))
        first, second = zip(*pairs, strict=True)
        splits[split] = Rows(list(first), list(second), np.array(labels, np.int32), names)
    return splits


def _open_split(task: TaskConfig, split: Split) -> SplitSource:
    rows, name = builtin_rows(task.source.partition(":")[2], split), f"{task.source} {split}"
    return SplitSource(name, _rows_by_column(name, rows), rows.label_names)


def _rows_by_column(name: str, rows: Rows) -> Iterator[tuple[str, dict[str, Any]]]:
    assert rows.text_b is not None, "built-in tasks are pairs"
    assert rows.labels is not None, "built-in tasks are labeled"
    for number, (first, second, label) in enumerate(zip(rows.text_a, rows.text_b, rows.labels, strict=True), start=1):
        yield f"{name}:{number}", {"text_a": first, "text_b": second, "label": rows.label_names[label]}


KIND = SourceKind(
    scheme="builtin",
    open_split=_open_split,
    has_split=lambda task, split: True,
    portable=True,
    num_texts=2,
    fixed_splits=True,
)
