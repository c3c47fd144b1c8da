"""Multiple-choice tasks, in their original formats."""

from collections.abc import Mapping

from afjax.data.sources.layouts import JsonLines, Table
from afjax.data.sources.official_rows import cosmosqa_row, csqa_row, hellaswag_row, socialiqa_row, winogrande_row
from afjax.data.sources.official_task import OfficialTask


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


MULTIPLE_CHOICE_TASKS: Mapping[str, OfficialTask] = {
    "csqa": OfficialTask(
        about="CommonsenseQA: five choices per question (Talmor 2019), random split.",
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
        about="Social IQa: questions about social situations, three choices each (Sap 2019).",
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
    "winogrande": winogrande(
        "WinoGrande (Sakaguchi 2020), the largest train split available.", "xl", "l", "m", "s", "xs"
    ),
    "winogrande_xs": winogrande("WinoGrande, the train split of 160 rows.", "xs"),
    "winogrande_s": winogrande("WinoGrande, the train split of 640 rows.", "s"),
    "winogrande_m": winogrande("WinoGrande, the train split of 2,558 rows.", "m"),
    "winogrande_l": winogrande("WinoGrande, the train split of 10,234 rows.", "l"),
    "winogrande_xl": winogrande("WinoGrande, the train split of 40,398 rows.", "xl"),
    "winogrande_debiased": winogrande("WinoGrande, the debiased train split of 9,248 rows.", "debiased"),
    "hellaswag": OfficialTask(
        about="HellaSwag: four possible continuations of a situation (Zellers 2019).",
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
        about="Cosmos QA: questions about narratives, four choices each (Huang 2019).",
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
}
