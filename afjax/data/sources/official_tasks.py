"""The tasks of the benchmarks' own downloads: where each task's files are, and what they hold.

A new task is one entry of ``OFFICIAL``. Layouts are in ``afjax.data.sources.layouts``. The meaning of columns, and how
rows are split if the benchmark does not split them, is in ``afjax.data.sources.official_rows``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from afjax.data.sources.layouts import Folders, JsonLines, Layout, RowReader, Split, Squad, Table
from afjax.data.sources.official_rows import (
    argument_row,
    by_column,
    by_dev_ids,
    by_hash,
    cosmosqa_row,
    csqa_row,
    fields,
    hashed_split,
    hellaswag_row,
    socialiqa_row,
    winogrande_row,
)

Kind = Literal["classification", "regression", "multiple_choice", "span"]


@dataclass(frozen=True, kw_only=True)
class OfficialTask:
    """A task of a benchmark.

    Attributes:
      about: What it is, and whose.
      folders: Where its files may be, below the folder of all data; the first that has any counts.
      layouts: How its files may be laid out; each split has the first that it is there in.
      kind: What its rows are.
      labels: Label names in order; of multiple choice the names of the choices; empty: those that occur, sorted.
      metric: The usual metric on dev; empty: accuracy, Pearson for regression, F1 for span.
      no_answer: Whether questions may have no answer.
      tfds: The task's name in TFDS; empty: it is not there.
    """

    about: str
    folders: tuple[str, ...]
    layouts: tuple[Layout, ...]
    kind: Kind = "classification"
    labels: tuple[str, ...] = ()
    metric: str = ""
    no_answer: bool = False
    tfds: str = ""


def glue(name: str) -> tuple[str, ...]:
    return (f"glue/{name}", f"GLUE/{name}", f"glue_data/{name}", name)


def super_glue(name: str) -> tuple[str, ...]:
    bases = ("super_glue/", "superglue/", "SuperGLUE/", "")
    return tuple(f"{base}{folder}" for base in bases for folder in (name, f"{name}/{name}"))


def tsv(row: RowReader) -> Table:
    """The layout of most of GLUE."""
    return Table(train=("train.tsv",), dev=("dev.tsv",), test=("test.tsv",), row=row)


def jsonl(row: RowReader) -> JsonLines:
    """The layout of SuperGLUE."""
    return JsonLines(train=("train.jsonl",), dev=("val.jsonl",), test=("test.jsonl",), row=row)


def mnli(about: str, matched: str) -> OfficialTask:
    row = fields(text_a="sentence1", text_b="sentence2", label="gold_label", id="index")
    files = Table(
        train=("train.tsv",), dev=(f"dev_{matched}.tsv",), test=(f"test_{matched}.tsv",), row=row, drop_labels=("-",)
    )
    return OfficialTask(about=about, folders=glue("MNLI"), layouts=(files,), labels=NLI_LABELS, tfds="glue/mnli")


def sick(about: str, kind: Kind, label: tuple[str, ...], labels: tuple[str, ...]) -> OfficialTask:
    row = fields(text_a="sentence_A", text_b="sentence_B", label=label, id="pair_ID")
    tests = ("SICK_test_annotated.txt", "SICK_test.txt")
    splits: Mapping[str, Split] = {"TRAIN": "train", "TRIAL": "dev", "TEST": "test"}
    layouts = (
        Table(train=("SICK_train.txt",), dev=("SICK_trial.txt",), test=tests, row=row),
        Table(every=("SICK.txt",), row=row, choose=by_column("SemEval_set", splits)),
    )
    return OfficialTask(about=about, folders=("sick", "SICK"), layouts=layouts, kind=kind, labels=labels)


def winogrande(about: str, *sizes: str) -> OfficialTask:
    files = JsonLines(
        train=tuple(
            names
            for size in sizes
            for names in ((f"train_{size}.jsonl", f"train_{size}-labels.lst"), f"train_{size}.jsonl")
        ),
        dev=(("dev.jsonl", "dev-labels.lst"), "dev.jsonl"),
        test=("test.jsonl",),
        needs=("train_*.jsonl", "dev-labels.lst"),
        row=winogrande_row,
        label_lines={"1": 0, "2": 1},
    )
    return OfficialTask(
        about=about,
        folders=("winogrande", "winogrande_1.1", "WinoGrande"),
        layouts=(files,),
        kind="multiple_choice",
        labels=("1", "2"),
    )


def squad(about: str, version: str, folders: tuple[str, ...], *, no_answer: bool) -> OfficialTask:
    files = Squad(train=(f"train-{version}.json",), dev=(f"dev-{version}.json",), no_answer=no_answer)
    return OfficialTask(
        about=about, folders=folders, layouts=(files,), kind="span", no_answer=no_answer, tfds=f"squad/{version}"
    )


def _crowdflower(
    name: str,
    about: str,
    files: tuple[str, ...],
    text: str,
    label: str,
    *,
    labels: tuple[str, ...] = (),
    drop: tuple[str, ...] = (),
    rename: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, OfficialTask]:
    """A task of CrowdFlower's "Data for Everyone", which has no splits; the labels to drop are those of no class."""
    table = spreadsheet(files, fields(text=text, label=label, rename=rename), drop)
    about = f"{about} (CrowdFlower; of the additional tasks of Houlsby 2019)"
    return f"crowdflower_{name}", OfficialTask(
        about=about, folders=("crowdflower", f"crowdflower_{name}", "CrowdFlower"), layouts=(table,), labels=labels
    )


def spreadsheet(files: tuple[str, ...], row: RowReader, drop: tuple[str, ...] = ()) -> Table:
    """A CSV file that has been through a spreadsheet: in Windows-1252 or Latin-1, with empty cells, not split."""
    return Table(
        every=files,
        row=row,
        commas=True,
        encodings=("utf-8", "cp1252", "latin-1"),
        lenient=True,
        choose=by_hash,
        drop_empty=True,
        drop_labels=drop,
    )


def complaints(about: str, label: str) -> OfficialTask:
    row = fields(
        text=("Consumer complaint narrative", "consumer_complaint_narrative"), label=(label.capitalize(), label)
    )
    names = ("complaints.csv", "Consumer_Complaints.csv", "consumer_complaints.csv")
    files = Table(every=names, row=row, commas=True, choose=by_hash, drop_empty=True)
    return OfficialTask(about=about, folders=("customer_complaints", "consumer_complaints"), layouts=(files,))


def scitail_table(folder: str) -> Table:
    """Without quoting: the quotes in SciTail's texts do not come in pairs."""
    train, dev, test = (f"{folder}scitail_1.0_{split}.tsv" for split in ("train", "dev", "test"))
    names = ("premise", "hypothesis", "label")
    row = fields(text_a="premise", text_b="hypothesis", label="label")
    return Table(train=(train,), dev=(dev,), test=(test,), names=names, row=row)


def scitail_lines(name: str) -> JsonLines:
    train, dev, test = (name.format(split) for split in ("train", "dev", "test"))
    # SNLI's name of the label in one of SciTail's formats.
    row = fields(text_a="sentence1", text_b="sentence2", label="gold_label", rename={"entailment": "entails"})
    return JsonLines(train=(train,), dev=(dev,), test=(test,), row=row)


NLI_LABELS = ("entailment", "neutral", "contradiction")
RTE_LABELS = ("entailment", "not_entailment")

MRPC_ROW = fields(text_a="#1 String", text_b="#2 String", label="Quality", id="index")
MRPC_RAW = (("msr_paraphrase_train.txt", "dev_ids.tsv"),)

UKP_TOPICS = tuple(
    "abortion cloning death_penalty gun_control marijuana_legalization minimum_wage nuclear_energy "
    "school_uniforms".split()
)

NEWSGROUPS = tuple(
    "alt.atheism comp.graphics comp.os.ms-windows.misc comp.sys.ibm.pc.hardware comp.sys.mac.hardware comp.windows.x "
    "misc.forsale rec.autos rec.motorcycles rec.sport.baseball rec.sport.hockey sci.crypt sci.electronics sci.med "
    "sci.space soc.religion.christian talk.politics.guns talk.politics.mideast talk.politics.misc "
    "talk.religion.misc".split()
)

POLITICAL_MEDIA = ("Political-media-DFE.csv", "political_social_media.csv")
PROGRESSIVE = ("progressive-tweet-sentiment.csv",)
ECONOMIC_NEWS = ("Full-Economic-News-DFE-839861.csv", "US-Economic-News.csv")

CROWDFLOWER = (
    _crowdflower(
        "airline",
        "Sentiment of tweets about airlines",
        ("Airline-Sentiment-2-w-AA.csv", "Tweets.csv"),
        text="text",
        label="airline_sentiment",
        labels=("negative", "neutral", "positive"),
    ),
    _crowdflower(
        "corporate_messaging",
        "What companies' messages are for",
        ("Corporate-messaging-DFE.csv",),
        text="text",
        label="category",
    ),
    _crowdflower(
        "disasters",
        "Whether tweets are about disasters",
        ("socialmedia-disaster-tweets-DFE.csv",),
        text="text",
        label="choose_one",
        labels=("Not Relevant", "Relevant"),
        drop=("Can't Decide",),
    ),
    _crowdflower(
        "economic_news_relevance",
        "Whether articles are about the US economy",
        ECONOMIC_NEWS,
        text="text",
        label="relevance",
        labels=("no", "yes"),
        drop=("not sure",),
    ),
    _crowdflower("emotion", "Emotion of tweets", ("text_emotion.csv",), text="content", label="sentiment"),
    _crowdflower(
        "global_warming",
        "Whether tweets say that there is global warming",
        ("1377884570_tweet_global_warming.csv", "tweet_global_warming.csv"),
        text="tweet",
        label="existence",
        labels=("N", "Y"),
        drop=("N/A", "NA"),
        rename={"No": "N", "Yes": "Y"},
    ),
    _crowdflower("political_audience", "Whom politicians speak to", POLITICAL_MEDIA, text="text", label="audience"),
    _crowdflower("political_bias", "Whether politicians are partisan", POLITICAL_MEDIA, text="text", label="bias"),
    _crowdflower(
        "political_message", "What politicians' messages are for", POLITICAL_MEDIA, text="text", label="message"
    ),
    _crowdflower(
        "primary_emotions",
        "Emotion of sentences, on Plutchik's wheel",
        ("primary-plutchik-wheel-DFE.csv",),
        text="sentence",
        label="emotion",
    ),
    _crowdflower(
        "progressive_opinion",
        "Whether tweets on progressive issues are opinions",
        PROGRESSIVE,
        text="tweet",
        label="q2_which_of_the_options_below_is_true_about_the_opinion_in_the_tweet",
    ),
    _crowdflower(
        "progressive_stance",
        "Stance of tweets on progressive issues",
        PROGRESSIVE,
        text="tweet",
        label="q1_from_reading_the_tweet_which_of_the_options_below_is_most_likely_to_be_true_about_the_stance_or_outlook_"
        "of_the_tweeter_towards_the_target",
    ),
    _crowdflower(
        "us_economic_performance",
        "Whether snippets of news are about the US economy",
        ("us-economic-newspaper.csv",),
        text="text",
        label="relevance",
        labels=("no", "yes"),
        drop=("not sure",),
    ),
)

OFFICIAL: Mapping[str, OfficialTask] = {
    # GLUE. Its tables have no quoting. Rows without labels are rows to submit predictions for.
    "cola": OfficialTask(
        about="Whether a sentence is acceptable English (Warstadt 2018; GLUE).",
        folders=glue("CoLA"),
        layouts=(
            Table(
                train=("train.tsv",),
                dev=("dev.tsv",),
                names=("source", "label", "mark", "sentence"),
                row=fields(text="sentence", label="label"),
            ),
            Table(test=("test.tsv",), row=fields(text="sentence", label="label", id="index")),
        ),
        labels=("unacceptable", "acceptable"),
        metric="matthews",
        tfds="glue/cola",
    ),
    "sst2": OfficialTask(
        about="Sentiment of phrases from film reviews (Socher 2013; GLUE).",
        folders=glue("SST-2"),
        layouts=(tsv(fields(text="sentence", label="label", id="index", strip=True)),),
        labels=("negative", "positive"),
        tfds="glue/sst2",
    ),
    "mrpc": OfficialTask(
        about="Whether two sentences from the news mean the same (Dolan 2005; GLUE).",
        folders=glue("MRPC"),
        layouts=(
            Table(train=("train.tsv",), dev=("dev.tsv",), row=MRPC_ROW),
            Table(train=MRPC_RAW, dev=MRPC_RAW, row=MRPC_ROW, aside=("dev_ids.tsv",), choose=by_dev_ids),
            Table(test=("msr_paraphrase_test.txt", "test.tsv"), row=MRPC_ROW, number=True),
        ),
        labels=("not_equivalent", "equivalent"),
        tfds="glue/mrpc",
    ),
    "qqp": OfficialTask(
        about="Whether two questions on Quora ask the same (GLUE).",
        folders=glue("QQP"),
        layouts=(
            Table(
                train=("train.tsv",),
                dev=("dev.tsv",),
                test=("test.tsv",),
                row=fields(text_a="question1", text_b="question2", label="is_duplicate", id="id"),
                skip_short=True,  # The published files have broken lines.
            ),
        ),
        labels=("not_duplicate", "duplicate"),
        tfds="glue/qqp",
    ),
    "stsb": OfficialTask(
        about="How similar two sentences are, from 0 to 5 (Cer 2017; GLUE).",
        folders=glue("STS-B"),
        layouts=(tsv(fields(text_a="sentence1", text_b="sentence2", label="score", id="index")),),
        kind="regression",
        tfds="glue/stsb",
    ),
    "mnli": mnli("Entailment across genres, those of train (Williams 2018; GLUE).", "matched"),
    "mnli_mismatched": mnli("Entailment, other genres than in train (GLUE).", "mismatched"),
    "qnli": OfficialTask(
        about="Whether a sentence holds the answer to a question (from SQuAD; GLUE).",
        folders=glue("QNLI"),
        layouts=(tsv(fields(text_a="question", text_b="sentence", label="label", id="index")),),
        labels=RTE_LABELS,
        tfds="glue/qnli",
    ),
    "rte": OfficialTask(
        about="Textual entailment of the RTE challenges (GLUE and SuperGLUE).",
        folders=(*glue("RTE"), *super_glue("RTE")),
        layouts=(
            tsv(fields(text_a="sentence1", text_b="sentence2", label="label", id="index")),
            jsonl(fields(text_a="premise", text_b="hypothesis", label="label", id="idx")),
        ),
        labels=RTE_LABELS,
        tfds="glue/rte",
    ),
    "wnli": OfficialTask(
        about="Winograd schemas as entailment (Levesque 2012; GLUE).",
        folders=glue("WNLI"),
        layouts=(tsv(fields(text_a="sentence1", text_b="sentence2", label="label", id="index")),),
        labels=("not_entailment", "entailment"),
        tfds="glue/wnli",
    ),
    "diagnostics": OfficialTask(
        about="GLUE's diagnostic set: a test of models trained on mnli.",
        folders=(*glue("diagnostic"), *glue("diagnostics"), *glue("MNLI")),
        layouts=(
            Table(
                test=("diagnostic-full.tsv", "diagnostic.tsv"),
                row=fields(
                    text_a=("Premise", "sentence1"), text_b=("Hypothesis", "sentence2"), label="Label", id="index"
                ),
                number=True,
            ),
        ),
        labels=NLI_LABELS,
        metric="matthews",
        tfds="glue/ax",
    ),
    # SuperGLUE.
    "boolq": OfficialTask(
        about="Yes-no questions on passages (Clark 2019; SuperGLUE).",
        folders=super_glue("BoolQ"),
        layouts=(jsonl(fields(text_a="question", text_b="passage", label="label", id="idx")),),
        labels=("false", "true"),
        tfds="super_glue/boolq",
    ),
    "cb": OfficialTask(
        about="Whether speakers commit to embedded clauses (de Marneffe 2019; SuperGLUE).",
        folders=super_glue("CB"),
        layouts=(jsonl(fields(text_a="premise", text_b="hypothesis", label="label", id="idx")),),
        labels=("entailment", "contradiction", "neutral"),
        tfds="super_glue/cb",
    ),
    # Multiple choice.
    "csqa": OfficialTask(
        about="CommonsenseQA: five choices a question (Talmor 2019), random split.",
        folders=("csqa", "commonsense_qa", "commonsenseqa", "CommonsenseQA"),
        layouts=(
            JsonLines(
                train=("train_rand_split.jsonl",),
                dev=("dev_rand_split.jsonl",),
                test=("test_rand_split_no_answers.jsonl",),
                row=csqa_row,
            ),
        ),
        kind="multiple_choice",
        labels=("A", "B", "C", "D", "E"),
    ),
    "socialiqa": OfficialTask(
        about="Social IQa: three choices a question on a situation (Sap 2019).",
        folders=("socialiqa", "socialiqa-train-dev", "socialiqa/socialiqa-train-dev", "social_i_qa"),
        layouts=(
            JsonLines(
                train=(("train.jsonl", "train-labels.lst"),),
                dev=(("dev.jsonl", "dev-labels.lst"),),
                row=socialiqa_row,
                label_lines={"1": 0, "2": 1, "3": 2},
            ),
        ),
        kind="multiple_choice",
        labels=("A", "B", "C"),
    ),
    "winogrande": winogrande("WinoGrande (Sakaguchi 2020), the largest train there.", "xl", "l", "m", "s", "xs"),
    "winogrande_xs": winogrande("WinoGrande, the train of 160 rows.", "xs"),
    "winogrande_s": winogrande("WinoGrande, the train of 640 rows.", "s"),
    "winogrande_m": winogrande("WinoGrande, the train of 2558 rows.", "m"),
    "winogrande_l": winogrande("WinoGrande, the train of 10234 rows.", "l"),
    "winogrande_xl": winogrande("WinoGrande, the train of 40398 rows.", "xl"),
    "winogrande_debiased": winogrande("WinoGrande, the debiased train of 9248 rows.", "debiased"),
    "hellaswag": OfficialTask(
        about="HellaSwag: four ways on from a situation (Zellers 2019).",
        folders=("hellaswag", "hellaswag/data", "HellaSwag"),
        layouts=(
            JsonLines(
                train=("hellaswag_train.jsonl",),
                dev=("hellaswag_val.jsonl",),
                test=("hellaswag_test.jsonl",),
                row=hellaswag_row,
            ),
        ),
        kind="multiple_choice",
        labels=("0", "1", "2", "3"),
        tfds="hellaswag",
    ),
    "cosmosqa": OfficialTask(
        about="Cosmos QA: four choices a question on a narrative (Huang 2019).",
        folders=("cosmosqa", "cosmos_qa", "CosmosQA", "cosmosqa/data"),
        layouts=(
            Table(
                train=("train.csv",),
                dev=("valid.csv",),
                test=("test.csv",),
                needs=("valid.csv",),
                row=cosmosqa_row,
                commas=True,
            ),
            JsonLines(test=("test.jsonl",), needs=("valid.csv",), row=cosmosqa_row),
        ),
        kind="multiple_choice",
        labels=("0", "1", "2", "3"),
        tfds="cosmos_qa",
    ),
    # Pairs and single texts of AdapterFusion (Pfeiffer 2021).
    "scitail": OfficialTask(
        about="Entailment from science questions (Khot 2018).",
        folders=("SciTailV1.1", "scitail/SciTailV1.1", "scitail", "SciTail"),
        layouts=(
            # No quoting: the quotes in its texts do not come in pairs.
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
        "Entailment of pairs of sentences (Marelli 2014).",
        "classification",
        ("entailment_judgment", "entailment_label"),
        ("CONTRADICTION", "NEUTRAL", "ENTAILMENT"),
    ),
    "sick_r": sick("How related SICK's pairs are, from 1 to 5.", "regression", ("relatedness_score",), ()),
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
        about="Sentiment of film reviews (Maas 2011). Every tenth file of each of train's folders is dev.",
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
    # The additional tasks of Houlsby 2019. Their splits are not published: where there is no official one, texts are
    # train, dev and test (80/10/10) by a hash.
    "newsgroups": OfficialTask(
        about="20 Newsgroups: whole messages by their group (Lang 1995). A tenth of train is dev.",
        folders=("newsgroups", "20newsgroups", "20news-bydate", "20_newsgroups", "."),
        layouts=(
            Folders(
                roots={"train": "20news-bydate-train", "dev": "20news-bydate-train", "test": "20news-bydate-test"},
                archives=("20news-bydate",),
                encoding="latin-1",
                choose=lambda split, text, number: split == "test" or hashed_split(text, test=False) == split,
            ),
            Folders(
                roots={"train": "20_newsgroups", "dev": "20_newsgroups", "test": "20_newsgroups"},
                archives=("20news-19997",),
                encoding="latin-1",
                choose=lambda split, text, number: hashed_split(text, test=True) == split,
            ),
        ),
        labels=NEWSGROUPS,
    ),
    "sms_spam": OfficialTask(
        about="Spam among text messages (Almeida 2011).",
        folders=("sms_spam", "smsspamcollection", "sms+spam+collection", "SMSSpamCollection", "."),
        layouts=(
            Table(
                every=("SMSSpamCollection", "SMSSpamCollection.txt"),
                names=("label", "text"),
                row=fields(text="text", label="label"),
                choose=by_hash,
            ),
            spreadsheet(("spam.csv",), fields(text="v2", label="v1")),
        ),
        labels=("ham", "spam"),
    ),
    "news_aggregator": OfficialTask(
        about="Headlines by category: business, entertainment, health (m) or technology (Gasparetti 2017; UCI).",
        folders=("news_aggregator", "NewsAggregatorDataset", "news+aggregator", "."),
        layouts=(
            Table(
                every=("newsCorpora.csv",),
                names=("id", "title", "url", "publisher", "category", "story", "hostname", "timestamp"),
                row=fields(text="title", label="category"),
                choose=by_hash,
            ),
        ),
        labels=("b", "e", "m", "t"),
    ),
    "customer_complaints": complaints("The product that consumers complain about (CFPB).", "product"),
    "customer_complaints_issue": complaints("The issue of complaints: Houlsby 2019 has its 157 classes.", "issue"),
    **dict(CROWDFLOWER),
}
