"""GLUE and SuperGLUE tasks."""

from collections.abc import Mapping

from afjax.data.sources.layouts import JsonLines, RowReader, Table, tsv
from afjax.data.sources.official_rows import by_dev_ids, fields
from afjax.data.sources.official_task import OfficialTask

NLI_LABELS = ("entailment", "neutral", "contradiction")
RTE_LABELS = ("entailment", "not_entailment")

MRPC_ROW = fields(text_a="#1 String", text_b="#2 String", label="Quality", id="index")
MRPC_RAW = (("msr_paraphrase_train.txt", "dev_ids.tsv"),)


def glue(name: str) -> tuple[str, ...]:
    return (f"glue/{name}", f"GLUE/{name}", f"glue_data/{name}", name)


def super_glue(name: str) -> tuple[str, ...]:
    bases = ("super_glue/", "superglue/", "SuperGLUE/", "")
    return tuple(f"{base}{folder}" for base in bases for folder in (name, f"{name}/{name}"))


def jsonl(row: RowReader) -> JsonLines:
    """Returns the layout of SuperGLUE tasks."""
    return JsonLines(train=("train.jsonl",), dev=("val.jsonl",), test=("test.jsonl",), row=row)


def mnli(about: str, matched: str) -> OfficialTask:
    row = fields(text_a="sentence1", text_b="sentence2", label="gold_label", id="index")
    files = Table(
        train=("train.tsv",), dev=(f"dev_{matched}.tsv",), test=(f"test_{matched}.tsv",), row=row, drop_labels=("-",)
    )
    return OfficialTask(about=about, folders=glue("MNLI"), layouts=(files,), labels=NLI_LABELS, tfds="glue/mnli")


GLUE_TASKS: Mapping[str, OfficialTask] = {
    # GLUE. The tables have no quoting. Test splits are unlabeled, and their predictions are scored by GLUE's server.
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
        about="Whether two sentences from the news have the same meaning (Dolan 2005; GLUE).",
        folders=glue("MRPC"),
        layouts=(
            Table(train=("train.tsv",), dev=("dev.tsv",), row=MRPC_ROW),
            Table(train=MRPC_RAW, dev=MRPC_RAW, row=MRPC_ROW, auxiliary=("dev_ids.tsv",), choose=by_dev_ids),
            Table(test=("msr_paraphrase_test.txt", "test.tsv"), row=MRPC_ROW, number=True),
        ),
        labels=("not_equivalent", "equivalent"),
        tfds="glue/mrpc",
    ),
    "qqp": OfficialTask(
        about="Whether two questions on Quora ask the same thing (GLUE).",
        folders=glue("QQP"),
        layouts=(
            # The published files have malformed lines.
            tsv(fields(text_a="question1", text_b="question2", label="is_duplicate", id="id"), skip_short=True),
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
    "mnli": mnli("Entailment in the same genres as train (Williams 2018; GLUE).", "matched"),
    "mnli_mismatched": mnli("Entailment in genres that are not in train (GLUE).", "mismatched"),
    "qnli": OfficialTask(
        about="Whether a sentence contains the answer to a question (from SQuAD; GLUE).",
        folders=glue("QNLI"),
        layouts=(tsv(fields(text_a="question", text_b="sentence", label="label", id="index")),),
        labels=RTE_LABELS,
        tfds="glue/qnli",
    ),
    "rte": OfficialTask(
        about="Textual entailment from the RTE challenges (GLUE and SuperGLUE).",
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
}
