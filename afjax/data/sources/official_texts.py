"""Other tasks on texts, in their original formats.

These are SQuAD, GoEmotions, WNUT-17, and the tasks of AdapterFusion (Pfeiffer 2021) that are not defined elsewhere.
"""

from collections.abc import Mapping

from afjax.config.tasks import TaskKind
from afjax.data.sources.layouts import Conll, Folders, JsonLines, Split, Squad, Table, tsv
from afjax.data.sources.official_rows import argument_row, by_column, fields, label_set_row
from afjax.data.sources.official_task import OfficialTask

UKP_TOPICS = tuple(
    "abortion cloning death_penalty gun_control marijuana_legalization minimum_wage nuclear_energy "
    "school_uniforms".split()
)

# GoEmotions' labels, in index order.
EMOTIONS = tuple(
    "admiration amusement anger annoyance approval caring confusion curiosity desire disappointment disapproval "
    "disgust embarrassment excitement fear gratitude grief joy love nervousness optimism pride realization relief "
    "remorse sadness surprise neutral".split()
)

ENTITIES = ("corporation", "creative-work", "group", "location", "person", "product")


def sick(about: str, kind: TaskKind, label: tuple[str, ...], labels: tuple[str, ...]) -> OfficialTask:
    row = fields(text_a="sentence_A", text_b="sentence_B", label=label, id="pair_ID")
    tests = ("SICK_test_annotated.txt", "SICK_test.txt")
    splits: Mapping[str, Split] = {"TRAIN": "train", "TRIAL": "dev", "TEST": "test"}
    layouts = (
        Table(train=("SICK_train.txt",), dev=("SICK_trial.txt",), test=tests, row=row),
        Table(every=("SICK.txt",), row=row, choose=by_column("SemEval_set", splits)),
    )
    return OfficialTask(about=about, folders=("sick", "SICK"), layouts=layouts, kind=kind, labels=labels)


def squad(about: str, version: str, folders: tuple[str, ...], *, no_answer: bool) -> OfficialTask:
    files = Squad(train=(f"train-{version}.json",), dev=(f"dev-{version}.json",), no_answer=no_answer)
    return OfficialTask(
        about=about, folders=folders, layouts=(files,), kind="span", no_answer=no_answer, tfds=f"squad/{version}"
    )


def scitail_table(folder: str) -> Table:
    """Builds SciTail's TSV layout, without quoting.

    Quotes in the texts are unbalanced.
    """
    train, dev, test = (f"{folder}scitail_1.0_{split}.tsv" for split in ("train", "dev", "test"))
    names = ("premise", "hypothesis", "label")
    row = fields(text_a="premise", text_b="hypothesis", label="label")
    return Table(train=(train,), dev=(dev,), test=(test,), names=names, row=row)


def scitail_lines(name: str) -> JsonLines:
    train, dev, test = (name.format(split) for split in ("train", "dev", "test"))
    # One of SciTail's formats uses SNLI's label name "entailment".
    row = fields(text_a="sentence1", text_b="sentence2", label="gold_label", rename={"entailment": "entails"})
    return JsonLines(train=(train,), dev=(dev,), test=(test,), row=row)


TEXT_TASKS: Mapping[str, OfficialTask] = {
    "scitail": OfficialTask(
        about="Entailment from science questions (Khot 2018).",
        folders=("SciTailV1.1", "scitail/SciTailV1.1", "scitail", "SciTail"),
        layouts=(
            scitail_table("tsv_format/"),
            scitail_lines("snli_format/scitail_1.0_{}.txt"),
            scitail_lines("predictor_format/scitail_1.0_structure_{}.jsonl"),
            scitail_table(""),
            scitail_lines("scitail_1.0_{}.txt"),
            scitail_lines("scitail_1.0_structure_{}.jsonl"),
        ),
        labels=("neutral", "entails"),
        tfds="sci_tail",
    ),
    "sick": sick(
        "Entailment between sentences (Marelli 2014).",
        "classification",
        ("entailment_judgment", "entailment_label"),
        ("CONTRADICTION", "NEUTRAL", "ENTAILMENT"),
    ),
    "sick_r": sick("Relatedness of SICK's pairs, from 1 to 5.", "regression", ("relatedness_score",), ()),
    "argument": OfficialTask(
        about="Arguments for and against eight topics (UKP; Stab 2018).",
        folders=tuple(
            f"{folder}{data}"
            for folder in ("argument", "UKP_sentential_argument_mining", "ukp_sentential_argument_mining_corpus")
            for data in ("/data/complete", "/complete", "/data", "")
        ),
        layouts=(
            Table(
                every=(tuple(f"{topic}.tsv" for topic in UKP_TOPICS),),
                row=argument_row,
                choose=by_column("set", {"train": "train", "val": "dev", "test": "test"}),
            ),
        ),
        labels=("NoArgument", "Argument_against", "Argument_for"),
    ),
    "imdb": OfficialTask(
        about="Sentiment of film reviews (Maas 2011). Every tenth train file of each class is dev.",
        folders=("aclImdb", "imdb/aclImdb", "imdb", "IMDB", "."),
        layouts=(
            Folders(
                roots={"train": "train", "dev": "train", "test": "test"},
                archives=("aclImdb_v1",),
                classes={"neg": "negative", "pos": "positive"},
                choose=lambda split, text, number: split == "test" or (number % 10 == 9) == (split == "dev"),
            ),
        ),
        labels=("negative", "positive"),
        tfds="imdb_reviews",
    ),
    "goemotions": OfficialTask(
        about="Emotions in Reddit comments, which can have several (Demszky 2020).",
        folders=("goemotions", "GoEmotions", "go_emotions", "goemotions/data"),
        layouts=(
            tsv(label_set_row(EMOTIONS, fields(text="text", label="labels", id="id")), names=("text", "labels", "id")),
        ),
        kind="multi_label",
        labels=EMOTIONS,
    ),
    "wnut17": OfficialTask(
        about="Rare and new named entities in social media (Derczynski 2017).",
        folders=("ner/wnut17", "wnut17", "WNUT17", "wnut_17"),
        layouts=(
            Conll(
                train=("wnut17train.conll",),
                dev=("emerging.dev.conll",),
                test=("emerging.test.annotated", "emerging.test.conll"),
            ),
        ),
        kind="tagging",
        labels=(*(f"{prefix}-{entity}" for prefix in "BI" for entity in ENTITIES), "O"),
    ),
    "squad": squad(
        "SQuAD v1.1: answers are spans of paragraphs (Rajpurkar 2016).",
        "v1.1",
        ("squad", "SQuAD", "squad_v1", "squad_v1.1", "squad1", "SQuAD-v1.1"),
        no_answer=False,
    ),
    "squad_v2": squad(
        "SQuAD v2.0: some questions have no answer (Rajpurkar 2018).",
        "v2.0",
        ("squad_v2", "squad_v2.0", "squad2", "SQuAD2", "SQuAD-v2.0", "squad", "SQuAD"),
        no_answer=True,
    ),
}
