"""Official benchmark files are read: small files for every task, and the real files if they are available."""

import csv
import gzip
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any, get_args

import pytest
from facts import has_facts

from afjax.config.tasks import Metric, TaskKind
from afjax.data.sources.kind import SPLITS, Split
from afjax.data.sources.official import OFFICIAL, find_official, read_official
from afjax.errors import UserError

# ``{task: ({path: contents}, {split: expected rows})}``.
Cases = dict[str, tuple[dict[str, str | bytes], dict[str, list[dict[str, Any]]]]]

MARK = "\ufeff"


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def write_all(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        write(folder / name, content)
    return folder


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def spreadsheet(*rows: tuple[str, ...], end: str = "\r\n", encoding: str = "cp1252") -> bytes:
    file = io.StringIO()
    csv.writer(file, lineterminator=end).writerows(rows)
    return file.getvalue().encode(encoding)


def rows_of(name: str, folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {split: [row for _, row in read_official(name, folder, split)] for split in find_official(name, folder)}


def refused(name: str, folder: Path, split: Split, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        list(read_official(name, folder, split))
    for word in (str(folder), *words):
        assert word in str(caught.value)


def pair(first: str, second: str, **more: Any) -> dict[str, Any]:
    return {"text_a": first, "text_b": second} | more


# Files in each task's layout, and the expected rows.

GLUE: Cases = {
    "cola": (
        {
            "glue/CoLA/train.tsv": 'gj04\t1\t\tThe "half quoted.\ngj04\t0\t*\tHim left.\n',
            "glue/CoLA/dev.tsv": "gj04\t1\t\tNo newline at the end.",
            "glue/CoLA/test.tsv": "index\tsentence\n0\tBill left.\n",
        },
        {
            "train": [{"text": 'The "half quoted.', "label": "1"}, {"text": "Him left.", "label": "0"}],
            "dev": [{"text": "No newline at the end.", "label": "1"}],
            "test": [{"id": "0", "text": "Bill left."}],
        },
    ),
    "sst2": (
        {
            "GLUE/SST-2/train.tsv.gz": "sentence\tlabel\nhide new secretions \t0\n",
            "GLUE/SST-2/dev.tsv": "sentence\tlabel\nit 's charming\u2028and affecting . \t1\n",
            "GLUE/SST-2/test.tsv": "index\tsentence\n0\tuneasy .\n",
        },
        {
            "train": [{"text": "hide new secretions", "label": "0"}],
            "dev": [{"text": "it 's charming\u2028and affecting .", "label": "1"}],
            "test": [{"id": "0", "text": "uneasy ."}],
        },
    ),
    "mrpc": (
        {
            "glue_data/MRPC/train.tsv": MARK + 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tone "\ttwo\r\n',
            "glue_data/MRPC/dev.tsv": MARK + "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n0\t7\t9\tone\tthree\r\n",
            "glue_data/MRPC/msr_paraphrase_test.txt": MARK
            + "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tfour\tfive\n1\t3\t4\tsix\tseven\n",
            "glue_data/MRPC/test.tsv": "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tfour\tfive\n",
        },
        {
            "train": [pair('one "', "two", label="1")],
            "dev": [pair("one", "three", label="0")],
            "test": [pair("four", "five", label="0", id="0"), pair("six", "seven", label="1", id="1")],
        },
    ),
    "qqp": (
        {
            "QQP/train.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n5\t1\t2\tWhy?\tHow?\t0\n",
            "QQP/dev.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n6\t1\t2\tWhy?\tWhy so?\t1\n",
            "QQP/test.tsv": "id\tquestion1\tquestion2\n0\tWhy?\tWho?\n",
        },
        {
            "train": [pair("Why?", "How?", label="0", id="5")],
            "dev": [pair("Why?", "Why so?", label="1", id="6")],
            "test": [pair("Why?", "Who?", id="0")],
        },
    ),
    "stsb": (
        {
            "glue/STS-B/train.tsv": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
            "\tscore\n"
            "0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane.\tA jet.\t4.250\n",
            "glue/STS-B/test.tsv": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\n"
            "0\tmain-captions\tMSRvid\t2012test\t0024\tnone\tnone\tA girl.\tA boy.\n",
        },
        {"train": [pair("A plane.", "A jet.", label="4.250", id="0")], "test": [pair("A girl.", "A boy.", id="0")]},
    ),
    "mnli": (
        {
            "glue/MNLI/train.tsv": "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label\n"
            "0\t31193n\tone\ttwo\tneutral\tneutral\n1\t31194n\tthree\tfour\tneutral\t-\n",
            "glue/MNLI/dev_matched.tsv": "index\tpromptID\tsentence1\tsentence2\tlabel1\tlabel2\tgold_label\n"
            "0\t63735n\tfive\tsix\tcontradiction\tentailment\tcontradiction\n",
            "glue/MNLI/dev_mismatched.tsv": "index\tsentence1\tsentence2\tgold_label\n0\tanother\tgenre\tentailment\n",
            "glue/MNLI/test_matched.tsv": "index\tsentence1\tsentence2\n0\tseven\teight\n",
        },
        {
            "train": [pair("one", "two", label="neutral", id="0")],
            "dev": [pair("five", "six", label="contradiction", id="0")],
            "test": [pair("seven", "eight", id="0")],
        },
    ),
    "mnli_mismatched": (
        {
            "MNLI/train.tsv": "index\tsentence1\tsentence2\tgold_label\n0\tone\ttwo\tneutral\n",
            "MNLI/dev_matched.tsv": "index\tsentence1\tsentence2\tgold_label\n0\tfive\tsix\tcontradiction\n",
            "MNLI/dev_mismatched.tsv": "index\tsentence1\tsentence2\tgold_label\n0\tanother\tgenre\tentailment\n",
            "MNLI/test_mismatched.tsv": "index\tsentence1\tsentence2\n0\tseven\teight\n",
        },
        {
            "train": [pair("one", "two", label="neutral", id="0")],
            "dev": [pair("another", "genre", label="entailment", id="0")],
            "test": [pair("seven", "eight", id="0")],
        },
    ),
    "qnli": (
        {
            "glue/QNLI/train.tsv": 'index\tquestion\tsentence\tlabel\n0\tWho "?\tBob.\tnot_entailment\n',
            "glue/QNLI/test.tsv": "index\tquestion\tsentence\n0\tWho?\tAnn.\n",
        },
        {"train": [pair('Who "?', "Bob.", label="not_entailment", id="0")], "test": [pair("Who?", "Ann.", id="0")]},
    ),
    "rte": (
        {
            "super_glue/RTE/RTE/train.jsonl": lines(
                {"premise": "p", "hypothesis": "h", "label": "entailment", "idx": 0}
            ),
            "super_glue/RTE/RTE/val.jsonl": lines(
                {"premise": "q", "hypothesis": "i", "label": "not_entailment", "idx": 0}
            ),
            "super_glue/RTE/RTE/test.jsonl": lines({"premise": "r", "hypothesis": "j", "idx": 0}),
        },
        {
            "train": [pair("p", "h", label="entailment", id=0)],
            "dev": [pair("q", "i", label="not_entailment", id=0)],
            "test": [pair("r", "j", id=0)],
        },
    ),
    "wnli": (
        {"WNLI/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tThe drain is clogged.\tIt is.\t1\n"},
        {"dev": [pair("The drain is clogged.", "It is.", label="1", id="0")]},
    ),
    "diagnostics": (
        {
            "glue/MNLI/diagnostic-full.tsv": "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\t"
            "Domain\tPremise\tHypothesis\tLabel\n\t\tNegation\t\tNews\tThe cat sat.\tNo cat sat.\tcontradiction\n"
        },
        {"test": [pair("The cat sat.", "No cat sat.", label="contradiction", id="0")]},
    ),
}

SUPER_GLUE: Cases = {
    "boolq": (
        {
            "superglue/BoolQ/train.jsonl": lines({"question": "is it", "passage": "It is.", "idx": 7, "label": True}),
            "superglue/BoolQ/val.jsonl": lines({"question": "was it", "passage": "It is.", "idx": 0, "label": False}),
            "superglue/BoolQ/test.jsonl": lines({"question": "are they", "passage": "It is.", "idx": 0}),
        },
        {
            "train": [pair("is it", "It is.", label="true", id=7)],
            "dev": [pair("was it", "It is.", label="false", id=0)],
            "test": [pair("are they", "It is.", id=0)],
        },
    ),
    "cb": (
        {"CB/val.jsonl": lines({"premise": "p", "hypothesis": "h", "label": "neutral", "idx": 0})},
        {"dev": [pair("p", "h", label="neutral", id=0)]},
    ),
}


def winogrande(answer: str = "", sentence: str = "Ann beat Bo because _ was fast.") -> str:
    row = {"qID": "3Q-1", "sentence": sentence, "option1": "Ann", "option2": "Bo"}
    return lines(row | ({"answer": answer} if answer else {}))


FAST = {"id": "3Q-1", "context": "Ann beat Bo because", "choices": ["Ann was fast.", "Bo was fast."]}

CSQA = {
    "id": "07",
    "question": {
        "question_concept": "lake",
        "stem": "Where?",
        "choices": [{"label": "A", "text": "one"}, {"label": "B", "text": "two"}],
    },
}

COSMOS = "id,context,question,answer0,answer1,answer2,answer3,label"

HELLASWAG = {
    "ind": 24,
    "activity_label": "Roof shingle removal",
    "ctx_a": "A man sits on a roof.",
    "ctx_b": "he",
    "ctx": "A man sits on a roof. he",
    "endings": ["is ripping.", "stands.", "falls.", "sings."],
    "source_id": "activitynet~v",
}

CHOICES: Cases = {
    "csqa": (
        {
            "csqa/train_rand_split.jsonl": lines({"answerKey": "B"} | CSQA),
            "csqa/test_rand_split_no_answers.jsonl.gz": lines(CSQA),
        },
        {
            "train": [{"id": "07", "context": "Where?", "choices": ["one", "two"], "label": 1}],
            "test": [{"id": "07", "context": "Where?", "choices": ["one", "two"]}],
        },
    ),
    "socialiqa": (
        {
            "socialiqa-train-dev/dev.jsonl": lines(
                {"context": "Ann left.", "question": "Why?", "answerA": "bored", "answerB": "sad", "answerC": "glad"}
            ),
            "socialiqa-train-dev/dev-labels.lst": "3",
            "socialiqa-train-dev/train.jsonl": "",
        },
        {"dev": [{"context": "Ann left. Why?", "choices": ["bored", "sad", "glad"], "label": 2}]},
    ),
    "winogrande": (
        {
            "winogrande_1.1/train_s.jsonl": winogrande("2"),
            "winogrande_1.1/train_m.jsonl": winogrande("1", "Ann beat Bo as _'s car was fast."),
            "winogrande_1.1/train_m-labels.lst": "1\n",
            "winogrande_1.1/dev.jsonl": winogrande("2"),
            "winogrande_1.1/test.jsonl": winogrande(),
        },
        {
            "train": [
                {
                    "id": "3Q-1",
                    "context": "Ann beat Bo as",
                    "choices": ["Ann's car was fast.", "Bo's car was fast."],
                    "label": 0,
                }
            ],
            "dev": [FAST | {"label": 1}],
            "test": [FAST],
        },
    ),
    "hellaswag": (
        {
            "hellaswag/hellaswag_train.jsonl": lines(HELLASWAG | {"label": 3}),
            "hellaswag/hellaswag_val.jsonl": lines(HELLASWAG | {"ctx_b": "", "label": 0}),
            "hellaswag/hellaswag_test.jsonl": lines(HELLASWAG),
        },
        {
            "train": [
                {
                    "context": "A man sits on a roof.",
                    "choices": ["he is ripping.", "he stands.", "he falls.", "he sings."],
                    "label": 3,
                }
            ],
            "dev": [
                {
                    "context": "A man sits on a roof.",
                    "choices": ["is ripping.", "stands.", "falls.", "sings."],
                    "label": 0,
                }
            ],
            "test": [
                {
                    "context": "A man sits on a roof.",
                    "choices": ["he is ripping.", "he stands.", "he falls.", "he sings."],
                }
            ],
        },
    ),
    "cosmosqa": (
        {
            "cosmosqa/train.csv": f'{COSMOS}\n3##1,"It ""rained,\nthen.",Why?,a,b,c,None of the above,2\n',
            "cosmosqa/valid.csv": f"{COSMOS}\n3##2,Hot.,Why?,a,b,c,d,0\n",
            "cosmosqa/test.jsonl": lines(
                {"id": "3##3", "context": "Cold.", "question": "Why?"} | {f"answer{n}": "abcd"[n] for n in range(4)}
            ),
        },
        {
            "train": [
                {
                    "id": "3##1",
                    "context": 'It "rained,\nthen. Why?',
                    "choices": ["a", "b", "c", "None of the above"],
                    "label": 2,
                }
            ],
            "dev": [{"id": "3##2", "context": "Hot. Why?", "choices": ["a", "b", "c", "d"], "label": 0}],
            "test": [{"id": "3##3", "context": "Cold. Why?", "choices": ["a", "b", "c", "d"]}],
        },
    ),
    **{
        f"winogrande_{size}": (
            {
                f"winogrande/train_{size}.jsonl": winogrande("2"),
                f"winogrande/train_{size}-labels.lst": "2\n",
                "winogrande/train_other.jsonl": "",
            },
            {"train": [FAST | {"label": 1}]},
        )
        for size in ("xs", "s", "m", "l", "xl", "debiased")
    },
}

SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
SICK_ONE = (
    "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tentailment_AB\tSemEval_set\n"
    "1\tone\ttwo\tNEUTRAL\t4.5\tA_neutral_B\tTRAIN\n2\tthree\tfour\tENTAILMENT\t5\tA_entails_B\tTRIAL\n"
    "3\tfive\tsix\tCONTRADICTION\t3.3\tA_contradicts_B\tTEST\n"
)
UKP_TOPICS = (
    "abortion cloning death_penalty gun_control marijuana_legalization minimum_wage nuclear_energy school_uniforms"
).split()
UKP = "topic\tretrievedUrl\tarchivedUrl\tsentenceHash\tsentence\tannotation\tset\n"

OTHERS: Cases = {
    "scitail": (
        {
            "SciTailV1.1/tsv_format/scitail_1.0_train.tsv": 'A "half quote.\tThree.\tneutral\nTwo\tThree\tentails\n',
            "SciTailV1.1/snli_format/scitail_1.0_dev.txt": lines(
                {"gold_label": "entails", "sentence1": "p", "sentence2": "h", "annotator_labels": ["entails"]}
            ),
            "SciTailV1.1/predictor_format/scitail_1.0_structure_test.jsonl": lines(
                {"gold_label": "neutral", "sentence1": "q", "sentence2": "i", "sentence2_structure": "s"}
            ),
        },
        {
            "train": [pair('A "half quote.', "Three.", label="neutral"), pair("Two", "Three", label="entails")],
            "dev": [pair("p", "h", label="entails")],
            "test": [pair("q", "i", label="neutral")],
        },
    ),
    "sick": (
        {
            "sick/SICK_train.txt": f"{SICK}\n1\tone\ttwo\t4.5\tNEUTRAL\n",
            "sick/SICK_trial.txt": f"{SICK}\n4\tthree\tfour\t3.6\tCONTRADICTION\n",
            "sick/SICK_test_annotated.txt": f"{SICK}\r\n6\tfive\tsix\t3.3\tENTAILMENT\r\n",
        },
        {
            "train": [pair("one", "two", label="NEUTRAL", id="1")],
            "dev": [pair("three", "four", label="CONTRADICTION", id="4")],
            "test": [pair("five", "six", label="ENTAILMENT", id="6")],
        },
    ),
    "sick_r": (
        {"SICK/SICK.txt": SICK_ONE},
        {
            "train": [pair("one", "two", label="4.5", id="1")],
            "dev": [pair("three", "four", label="5", id="2")],
            "test": [pair("five", "six", label="3.3", id="3")],
        },
    ),
    "argument": (
        {
            f"UKP_sentential_argument_mining/data/complete/{topic}.tsv": UKP
            + f'{topic}\tu\ta\th\t"Half quoted.\tNoArgument\t{("train", "val", "test")[number % 3]}\n'
            for number, topic in enumerate(UKP_TOPICS)
        },
        {
            split: [pair(topic, '"Half quoted.', label="NoArgument") for topic in UKP_TOPICS[number::3]]
            for number, split in enumerate(SPLITS)
        },
    ),
    "imdb": (
        {
            **{
                f"aclImdb/train/{name}/{number}_1.txt": f"{name} {number}"
                for name in ("neg", "pos")
                for number in range(10)
            },
            "aclImdb/train/unsup/0_0.txt": "unlabeled",
            "aclImdb/test/neg/0_2.txt": "Bad.<br />",
            "aclImdb/test/pos/0_9.txt": "Good, é.",
        },
        {
            "train": [
                {"text": f"{name[:3]} {number}", "label": name}
                for name in ("negative", "positive")
                for number in range(9)
            ],
            "dev": [{"text": f"{name[:3]} 9", "label": name} for name in ("negative", "positive")],
            "test": [{"text": "Bad.<br />", "label": "negative"}, {"text": "Good, é.", "label": "positive"}],
        },
    ),
    **{
        name: (
            {
                f"squad/train-{version}.json": json.dumps(
                    {"data": [{"paragraphs": [{"context": "Ann met Bob.", "qas": questions}]}], "version": version}
                )
            },
            {
                "train": [
                    {"context": "Ann met Bob."} | question | {"answers": answers}
                    for question, answers in zip(
                        [{"id": row["id"], "question": row["question"]} for row in questions],
                        [{"text": ["Bob"], "answer_start": [8]}, {"text": [], "answer_start": []}],
                        strict=False,
                    )
                ]
            },
        )
        for name, version, questions in (
            ("squad", "v1.1", [{"id": "q1", "question": "Who?", "answers": [{"text": "Bob", "answer_start": 8}]}]),
            (
                "squad_v2",
                "v2.0",
                [
                    {
                        "id": "q1",
                        "question": "Who?",
                        "answers": [{"text": "Bob", "answer_start": 8}],
                        "is_impossible": False,
                    },
                    {"id": "q2", "question": "Why?", "answers": [], "is_impossible": True},
                ],
            ),
        )
    },
}

# Tasks without official splits: ``{task: (path, text column, label column)}``.
STANCE = (
    "q1_from_reading_the_tweet_which_of_the_options_below_is_most_likely_to_be_true_about_the_stance_or_outlook_of_the_"
    "tweeter_towards_the_target"
)
OPINION = "q2_which_of_the_options_below_is_true_about_the_opinion_in_the_tweet"
SPREADSHEETS = {
    "crowdflower_airline": ("crowdflower/Airline-Sentiment-2-w-AA.csv", "text", "airline_sentiment"),
    "crowdflower_corporate_messaging": ("crowdflower/Corporate-messaging-DFE.csv", "text", "category"),
    "crowdflower_disasters": ("crowdflower/socialmedia-disaster-tweets-DFE.csv", "text", "choose_one"),
    "crowdflower_economic_news_relevance": ("crowdflower/Full-Economic-News-DFE-839861.csv", "text", "relevance"),
    "crowdflower_emotion": ("crowdflower/text_emotion.csv", "content", "sentiment"),
    "crowdflower_global_warming": ("crowdflower/1377884570_tweet_global_warming.csv", "tweet", "existence"),
    "crowdflower_political_audience": ("crowdflower/Political-media-DFE.csv", "text", "audience"),
    "crowdflower_political_bias": ("crowdflower/Political-media-DFE.csv", "text", "bias"),
    "crowdflower_political_message": ("crowdflower/Political-media-DFE.csv", "text", "message"),
    "crowdflower_primary_emotions": ("crowdflower/primary-plutchik-wheel-DFE.csv", "sentence", "emotion"),
    "crowdflower_progressive_opinion": ("crowdflower/progressive-tweet-sentiment.csv", "tweet", OPINION),
    "crowdflower_progressive_stance": ("crowdflower/progressive-tweet-sentiment.csv", "tweet", STANCE),
    "crowdflower_us_economic_performance": ("crowdflower/us-economic-newspaper.csv", "text", "relevance"),
    "customer_complaints": ("customer_complaints/complaints.csv", "Consumer complaint narrative", "Product"),
    "customer_complaints_issue": (
        "consumer_complaints/consumer_complaints.csv",
        "consumer_complaint_narrative",
        "issue",
    ),
}

TASKS = GLUE | SUPER_GLUE | CHOICES | OTHERS


@pytest.mark.parametrize("name", TASKS)
def test_rows_of_every_task(tmp_path: Path, name: str) -> None:
    files, expected = TASKS[name]
    write_all(tmp_path, files)
    assert rows_of(name, tmp_path) == expected
    labels = {str(row["label"]) for rows in expected.values() for row in rows if "label" in row}
    task = OFFICIAL[name]
    if task.kind != "regression":
        assert labels <= {*task.labels, *map(str, range(len(task.labels)))}


def shard_rows(name: str, folder: Path) -> set[tuple[str, str]]:
    """Returns the ``(text, label)`` pairs of all splits, and checks that no text occurs twice."""
    rows = rows_of(name, folder)
    assert list(rows) == list(SPLITS)
    texts = [{row["text"] for row in split} for split in rows.values()]
    assert sum(map(len, texts)) == len(set.union(*texts))
    return {(row["text"], row["label"]) for split in rows.values() for row in split}


@pytest.mark.parametrize("name", SPREADSHEETS)
def test_rows_of_spreadsheets(tmp_path: Path, name: str) -> None:
    path, text, label = SPREADSHEETS[name]
    labels = OFFICIAL[name].labels or ("one", "other")
    rows = [(str(number), f"“{number}”, caf\xe9", labels[number % 2]) for number in range(50)]
    encoding = "utf-8" if "complaints" in name else "cp1252"
    write(tmp_path / path, spreadsheet(("_unit_id", text, label), *rows, end="\r", encoding=encoding))
    if "complaints" in name:
        write(tmp_path / path, spreadsheet(("_unit_id", text, label), *rows, encoding=encoding))
    assert shard_rows(name, tmp_path) == {(text, label) for _, text, label in rows}


def test_every_task_is_covered_by_these_tests() -> None:
    others = {"newsgroups", "sms_spam", "news_aggregator", "goemotions", "wnut17"}
    assert {*TASKS, *SPREADSHEETS, *others} == set(OFFICIAL)


def test_official_task_table_is_valid() -> None:
    for name, task in OFFICIAL.items():
        assert task.about
        assert task.folders
        assert task.layouts
        assert task.kind in get_args(TaskKind)
        assert task.metric in ("", *get_args(Metric))
        assert len(set(task.labels)) == len(task.labels) != 1
        assert not task.labels or task.kind in ("classification", "multiple_choice", "multi_label", "tagging"), name
        assert task.no_answer == (name == "squad_v2")


# Cases that the parametrized tests do not cover.


def test_wnut17_has_words_and_tags(tmp_path: Path) -> None:
    lines = "Ada\tB-person\nwrote\tO\n\t\n\n-DOCSTART-\tO\n\nLondon\tB-location"
    for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"):
        write(tmp_path / "wnut17" / name, lines)
    expected = [{"words": ["Ada", "wrote"], "tags": ["B-person", "O"]}, {"words": ["London"], "tags": ["B-location"]}]
    assert rows_of("wnut17", tmp_path) == dict.fromkeys(SPLITS, expected)
    write(tmp_path / "wnut17/emerging.dev.conll", "Ada\tB-person\n\ufe0f\tO\nwrote\tO\n")
    with pytest.warns(UserWarning, match=r" 1 word .*emerging.dev.conll:1"):
        (dev,) = read_official("wnut17", tmp_path, "dev")
    assert dev[1] == {"words": ["Ada", "wrote"], "tags": ["B-person", "O"]}
    write(tmp_path / "wnut17/emerging.dev.conll", "Ada\tB-person\nwrote\n")
    with pytest.raises(UserError) as error:
        list(read_official("wnut17", tmp_path, "dev"))
    assert has_facts(str(error.value), "emerging.dev.conll:2", "1 column, ", "2")


def test_goemotions_has_several_labels_per_row(tmp_path: Path) -> None:
    rows = 'Thanks, "friend"!\t15,17\tab1\nOh no\t27\tab2\n'
    for split in SPLITS:
        write(tmp_path / f"goemotions/{split}.tsv", rows)
    expected = [
        {"text": 'Thanks, "friend"!', "label": ["gratitude", "joy"], "id": "ab1"},
        {"text": "Oh no", "label": ["neutral"], "id": "ab2"},
    ]
    assert rows_of("goemotions", tmp_path) == dict.fromkeys(SPLITS, expected)
    for wrong in ("28", "1,x", "-1", ""):
        write(tmp_path / "goemotions/dev.tsv", f"Oh no\t{wrong}\tab2\n")
        with pytest.raises(UserError) as error:
            list(read_official("goemotions", tmp_path, "dev"))
        assert has_facts(str(error.value), "dev.tsv:1", "0 to 27")


def test_mrpc_in_its_published_format(tmp_path: Path) -> None:
    raw = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tone\ttwo\n0\t8\t7\tthree\tfour\n"
    write(tmp_path / "MRPC/msr_paraphrase_train.txt", MARK + raw)
    assert find_official("mrpc", tmp_path) == {}
    refused("mrpc", tmp_path, "dev", "dev.tsv or msr_paraphrase_train.txt ", "dev_ids.tsv")
    write(tmp_path / "MRPC/dev_ids.tsv", "8\t7\n")
    assert rows_of("mrpc", tmp_path) == {
        "train": [pair("one", "two", label="1")],
        "dev": [pair("three", "four", label="0")],
    }


def test_mrpc_without_test_labels(tmp_path: Path) -> None:
    write(tmp_path / "MRPC/test.tsv", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tfour\tfive\n")
    assert rows_of("mrpc", tmp_path) == {"test": [pair("four", "five", id="0")]}


def test_broken_rows_of_qqp_are_skipped(tmp_path: Path) -> None:
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    write(
        tmp_path / "glue/QQP/train.tsv",
        f"{header}1\t1\t2\tWhy?\tHow?\t0\n2\t3\t4\tWhat is\n a\t5\n3\t5\t6\tA?\tB?\t1\n",
    )
    with pytest.warns(UserWarning, match=r" 2 of 4 rows .*too few columns.*train\.tsv:3\.$"):
        rows = list(read_official("qqp", tmp_path, "train"))
    assert [row["id"] for _, row in rows] == ["1", "3"]


def test_glue_rte_takes_precedence_over_superglue_rte(tmp_path: Path) -> None:
    write_all(tmp_path, GLUE["rte"][0])
    path = write(tmp_path / "glue/RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\tone\ttwo\tentailment\n")
    assert find_official("rte", tmp_path) == {"dev": (path,)}


def test_glue_diagnostics_without_labels(tmp_path: Path) -> None:
    write(tmp_path / "glue/diagnostic/diagnostic.tsv", "index\tsentence1\tsentence2\n0\tone\ttwo\n")
    assert rows_of("diagnostics", tmp_path) == {"test": [pair("one", "two", id="0")]}


def test_winogrande_uses_the_largest_train_file(tmp_path: Path) -> None:
    for size in ("xs", "l", "m"):
        write(tmp_path / f"winogrande/train_{size}.jsonl", winogrande("1"))
    write(tmp_path / "winogrande/train_m-labels.lst", "1\n")
    assert find_official("winogrande", tmp_path) == {"train": (tmp_path / "winogrande/train_l.jsonl",)}
    assert find_official("winogrande_m", tmp_path)["train"][1].name == "train_m-labels.lst"
    assert find_official("winogrande_xl", tmp_path) == {}


def test_label_file_with_the_wrong_number_of_labels_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "winogrande/dev.jsonl", winogrande("1"))
    write(tmp_path / "winogrande/dev-labels.lst", "1\n2\n")
    refused("winogrande", tmp_path, "dev", "dev-labels.lst ", "2 labels", "dev.jsonl ", "1 row; ")
    write(tmp_path / "winogrande/dev-labels.lst", "2\n")
    refused("winogrande", tmp_path, "dev", "dev.jsonl:1 ", "different labels")


def test_sick_splits_in_one_file(tmp_path: Path) -> None:
    write(tmp_path / "sick/SICK.txt", SICK_ONE)
    assert rows_of("sick", tmp_path)["dev"] == [pair("three", "four", label="ENTAILMENT", id="2")]


def test_arguments_without_their_sentences_are_refused(tmp_path: Path) -> None:
    header = UKP.replace("sentence\t", "")
    for topic in UKP_TOPICS:
        write(tmp_path / f"argument/{topic}.tsv", f"{header}{topic}\tu\ta\th\tNoArgument\ttrain\n")
    refused("argument", tmp_path, "train", "abortion.tsv:2 ", 'no column "sentence"', "pipeline")


def test_imdb_is_read_from_its_archive(tmp_path: Path) -> None:
    files, expected = OTHERS["imdb"]
    write_all(tmp_path / "unpacked", files)
    with tarfile.open(tmp_path / "aclImdb_v1.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "unpacked/aclImdb", "aclImdb")
    assert find_official("imdb", tmp_path) == dict.fromkeys(SPLITS, (tmp_path / "aclImdb_v1.tar.gz",))
    assert rows_of("imdb", tmp_path) == expected
    place, _ = next(iter(read_official("imdb", tmp_path, "test")))
    assert place == f"{tmp_path}/aclImdb_v1.tar.gz:aclImdb/test/neg/0_2.txt"


def write_newsgroups(folder: Path, *roots: str) -> set[tuple[str, str]]:
    rows = set()
    for root in roots:
        for group in ("alt.atheism", "sci.space"):
            for number in range(40):
                write(
                    folder / root / group / str(number), f"From: {root}\n\n{group} {number} caf\xe9\n".encode("latin-1")
                )
                rows.add((f"From: {root}\n\n{group} {number} caf\xe9", group))
    return rows


def test_newsgroups_by_date(tmp_path: Path) -> None:
    rows = write_newsgroups(tmp_path / "20news-bydate", "20news-bydate-train", "20news-bydate-test")
    assert shard_rows("newsgroups", tmp_path) == rows
    test = rows_of("newsgroups", tmp_path)["test"]
    assert len(test) == 80
    assert all("20news-bydate-test" in row["text"] for row in test)


@pytest.mark.parametrize("archive", ["", "20news-19997.tar.gz"])
def test_newsgroups_without_splits(tmp_path: Path, archive: str) -> None:
    rows = write_newsgroups(tmp_path, "20_newsgroups")
    if archive:
        with tarfile.open(tmp_path / archive, "w:gz") as tar:
            tar.add(tmp_path / "20_newsgroups", "20_newsgroups")
        (tmp_path / "20_newsgroups").rename(tmp_path / "unpacked")
    assert shard_rows("newsgroups", tmp_path) == rows


def test_sms_spam(tmp_path: Path) -> None:
    rows = [(f'"Go {number}, é', "ham") for number in range(40)]
    write(tmp_path / "smsspamcollection/SMSSpamCollection", "".join(f"{label}\t{text}\n" for text, label in rows))
    assert shard_rows("sms_spam", tmp_path) == set(rows)


def test_sms_spam_from_kaggle(tmp_path: Path) -> None:
    rows = [("ham", f'He said "{number}", \xa3', "", "", "") for number in range(40)]
    write(tmp_path / "sms_spam/spam.csv", spreadsheet(("v1", "v2", "", "", ""), *rows, encoding="latin-1"))
    assert shard_rows("sms_spam", tmp_path) == {(text, "ham") for _, text, *_ in rows}


def test_news_aggregator(tmp_path: Path) -> None:
    rows = [(f'Fed "official {number}', "bemt"[number % 4]) for number in range(40)]
    content = "".join(f"{n}\t{t}\thttp://x\tP\t{c}\tddUyU0\twww.x\t1394470370698\n" for n, (t, c) in enumerate(rows, 1))
    write(tmp_path / "newsCorpora.csv", content)
    assert shard_rows("news_aggregator", tmp_path) == set(rows)


def test_labels_that_are_not_a_class_are_skipped(tmp_path: Path) -> None:
    rows = [(f"tweet {number}", label) for number in range(60) for label in ("Yes", "N", "N/A")]
    path = tmp_path / "crowdflower_global_warming/1377884570_tweet_global_warming.csv"
    write(path, spreadsheet(("tweet", "existence"), *rows))
    assert shard_rows("crowdflower_global_warming", tmp_path) == {
        (text, label[0]) for text, label in rows if label != "N/A"
    }


def test_cells_without_text_or_label_are_skipped(tmp_path: Path) -> None:
    rows = [(f"tweet {number}", "anger") for number in range(60)]
    content = spreadsheet(("content", "sentiment"), *rows, (" ", "fear"), ("text", ""))
    write(tmp_path / "crowdflower/text_emotion.csv", content)
    with pytest.warns(UserWarning, match=r" 2 of 62 rows .*no label.*text_emotion\.csv:62\.$"):
        assert shard_rows("crowdflower_emotion", tmp_path) == set(rows)


# Missing and unofficial files.


def test_unknown_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'official task "mnlii".* Did you mean "mnli"\?$'):
        find_official("mnlii", tmp_path)


@pytest.mark.parametrize("name", OFFICIAL)
def test_missing_files_are_reported(tmp_path: Path, name: str) -> None:
    assert find_official(name, tmp_path) == find_official(name, tmp_path / "none") == {}
    refused(name, tmp_path, "test" if name == "diagnostics" else "train", name)


def test_missing_split_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "glue/RTE/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\tone\ttwo\tentailment\n")
    refused("rte", tmp_path, "dev", "glue/RTE ", "no dev split", "dev.tsv or val.jsonl")
    refused("mnli", tmp_path, "dev", "no official data", "mnli;", "dev_matched.tsv", str(tmp_path / "glue/MNLI"))
    with pytest.raises(UserError, match=r"squad .*official test split; .*train, dev"):
        read_official("squad", tmp_path, "test")


def test_files_in_afjax_format_are_not_official(tmp_path: Path) -> None:
    choice = lines({"context": "c", "choices": ["a", "b"], "label": 0})
    names = [*OFFICIAL, "RTE", "CB", "BoolQ", "SST-2", "CoLA"]
    for name in names:
        for split in SPLITS:
            write(tmp_path / name / f"{split}.jsonl.gz", choice)
        write(tmp_path / name / "train.tsv", "text\tlabel\n")
        write(tmp_path / name / "labels.json", '["a", "b"]')
    assert {name: find_official(name, tmp_path) for name in OFFICIAL} == {name: {} for name in OFFICIAL}
    for name in names:
        (tmp_path / name / "labels.json").unlink()
        (tmp_path / name / "train.tsv").unlink()
    found = {name for name in OFFICIAL if find_official(name, tmp_path)}
    # SuperGLUE's folders have the same names (CB, RTE and BoolQ) and also contain JSON lines, so they may be found.
    assert found <= {"cb", "rte", "boolq"}


def test_folder_names_are_case_sensitive(tmp_path: Path) -> None:
    write(tmp_path / "glue/rte/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\tone\ttwo\tentailment\n")
    assert find_official("rte", tmp_path) == {}


# Files that differ from the published ones.


def test_duplicate_ids_are_refused(tmp_path: Path) -> None:
    row = "0\tone\ttwo\tentailment\n"
    write(tmp_path / "RTE/dev.tsv", f"index\tsentence1\tsentence2\tlabel\n{row}{row}")
    refused("rte", tmp_path, "dev", "dev.tsv:3 ", "the id '0'")


def test_files_without_rows_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel\n")
    refused("rte", tmp_path, "dev", "has no rows")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("index,sentence1,sentence2,label\n0,one,two,entailment\n", (":1 ", "commas", "tabs")),
        ("index\tsentence1\tsentence2\tlabel\n0\tone\ttwo\n", (":2 ", "3 columns", "names 4")),
        ("index\tsentence1\tsentence2\n0\tone\ttwo\n", (":2 ", 'no "label"', "index, sentence1, sentence2")),
        ("index\tpremise\thypothesis\tlabel\n0\tone\ttwo\tx\n", (":2 ", 'no "sentence1"', "premise")),
        (b"index\tsentence1\tsentence2\tlabel\n0\tcaf\xe9\ttwo\tx\n", (":2 ", "not UTF-8", "0xe9")),
    ],
)
def test_malformed_tables_are_refused(tmp_path: Path, content: str | bytes, words: tuple[str, ...]) -> None:
    path = write(tmp_path / "glue/RTE/train.tsv", content)
    refused("rte", tmp_path, "train", str(path), *words)


def test_malformed_lines_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "CB/train.jsonl", lines({"premise": "p", "label": "neutral"}))
    refused("cb", tmp_path, "train", "train.jsonl:1 ", 'no "hypothesis"', "premise, label")
    write(tmp_path / "CB/train.jsonl", '{"premise": "p"\n')
    refused("cb", tmp_path, "train", "train.jsonl:1 ", "is not JSON")


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    content = "".join(f"{number}\t1\t\t{number**50}\n" for number in range(300))
    path = write(tmp_path / "CoLA/train.tsv.gz", content)
    path.write_bytes(path.read_bytes()[:-300])
    refused("cola", tmp_path, "train", str(path), "truncated", "gzip")


# Real files, if they are available.

COUNTS = {
    "mrpc": {"train": 3668, "dev": 408, "test": 1725},
    "rte": {"train": 2490, "dev": 277},
    "cola": {"train": 8551, "dev": 1043},
    "sst2": {"train": 67349, "dev": 872},
    "stsb": {"train": 5749, "dev": 1500},
    "wnli": {"train": 635, "dev": 71},
    "qnli": {"dev": 5463},
    "cb": {"train": 250, "dev": 56},
    "boolq": {"dev": 3270},
    "sick": {"train": 4500, "dev": 500, "test": 4927},
    "csqa": {"train": 9741, "dev": 1221, "test": 1140},
    "socialiqa": {"train": 33410, "dev": 1954},
    "winogrande_l": {"train": 10234, "dev": 1267},
    "squad": {"dev": 10570},
    "goemotions": {"train": 43410, "dev": 5426, "test": 5427},
    "wnut17": {"train": 3394, "dev": 1009, "test": 1287},
}


@pytest.mark.skipif("AFJAX_DATA" not in os.environ, reason="AFJAX_DATA names no folder of the benchmarks' downloads")
@pytest.mark.parametrize("name", COUNTS)
def test_row_counts_of_the_real_files(name: str) -> None:
    folder = Path(os.environ["AFJAX_DATA"])
    found = find_official(name, folder)
    if not found:
        pytest.skip(f"AFJAX_DATA has no {name}")
    splits = [split for split in SPLITS if split in COUNTS[name] and split in found]
    counts = {split: sum(1 for _ in read_official(name, folder, split)) for split in splits}
    assert counts == {split: COUNTS[name][split] for split in splits}
