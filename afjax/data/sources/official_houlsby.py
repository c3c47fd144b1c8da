"""Additional tasks of Houlsby 2019, in their original formats.

Houlsby 2019's splits are not published. Tasks without official splits are split into train, dev and test (80/10/10) by
a hash of each text.
"""

from collections.abc import Mapping

from afjax.data.sources.layouts import Folders, RowReader, Table
from afjax.data.sources.official_rows import by_hash, fields, hashed_split
from afjax.data.sources.official_task import OfficialTask

NEWSGROUPS = tuple(
    "alt.atheism comp.graphics comp.os.ms-windows.misc comp.sys.ibm.pc.hardware comp.sys.mac.hardware comp.windows.x "
    "misc.forsale rec.autos rec.motorcycles rec.sport.baseball rec.sport.hockey sci.crypt sci.electronics sci.med "
    "sci.space soc.religion.christian talk.politics.guns talk.politics.mideast talk.politics.misc "
    "talk.religion.misc".split()
)

POLITICAL_MEDIA = ("Political-media-DFE.csv", "political_social_media.csv")
PROGRESSIVE = ("progressive-tweet-sentiment.csv",)
ECONOMIC_NEWS = ("Full-Economic-News-DFE-839861.csv", "US-Economic-News.csv")


def _crowdflower(
    name: str,
    about: str,
    files: tuple[str, ...],
    *,
    label: str,
    text: str = "text",
    labels: tuple[str, ...] = (),
    drop: tuple[str, ...] = (),
    rename: Mapping[str, str] = {},
) -> tuple[str, OfficialTask]:
    """Defines a task from CrowdFlower's "Data for Everyone" collection.

    The collection's datasets have no official splits. ``drop`` lists labels that are not classes, such as "not sure".
    Rows with these labels are skipped.

    Returns:
      The task's name and definition.
    """
    table = spreadsheet(files, fields(text=text, label=label, rename=rename), drop)
    about = f"{about} (CrowdFlower; one of Houlsby 2019's additional tasks)"
    return f"crowdflower_{name}", OfficialTask(
        about=about, folders=("crowdflower", f"crowdflower_{name}", "CrowdFlower"), layouts=(table,), labels=labels
    )


def spreadsheet(files: tuple[str, ...], row: RowReader, drop: tuple[str, ...] = ()) -> Table:
    """Builds the layout of a CSV file exported from a spreadsheet, without splits.

    The file can be in UTF-8, Windows-1252 or Latin-1, and can have empty cells.
    """
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


CROWDFLOWER = (
    _crowdflower(
        "airline",
        "Sentiment of tweets about airlines",
        ("Airline-Sentiment-2-w-AA.csv", "Tweets.csv"),
        label="airline_sentiment",
        labels=("negative", "neutral", "positive"),
    ),
    _crowdflower(
        "corporate_messaging", "Purpose of corporate messages", ("Corporate-messaging-DFE.csv",), label="category"
    ),
    _crowdflower(
        "disasters",
        "Whether tweets are about disasters",
        ("socialmedia-disaster-tweets-DFE.csv",),
        label="choose_one",
        labels=("Not Relevant", "Relevant"),
        drop=("Can't Decide",),
    ),
    _crowdflower(
        "economic_news_relevance",
        "Whether articles are about the US economy",
        ECONOMIC_NEWS,
        label="relevance",
        labels=("no", "yes"),
        drop=("not sure",),
    ),
    _crowdflower("emotion", "Emotion of tweets", ("text_emotion.csv",), text="content", label="sentiment"),
    _crowdflower(
        "global_warming",
        "Whether tweets say that global warming is real",
        ("1377884570_tweet_global_warming.csv", "tweet_global_warming.csv"),
        text="tweet",
        label="existence",
        labels=("N", "Y"),
        drop=("N/A", "NA"),
        rename={"No": "N", "Yes": "Y"},
    ),
    _crowdflower("political_audience", "Audience of politicians' posts", POLITICAL_MEDIA, label="audience"),
    _crowdflower("political_bias", "Whether politicians are partisan", POLITICAL_MEDIA, label="bias"),
    _crowdflower("political_message", "Purpose of politicians' posts", POLITICAL_MEDIA, label="message"),
    _crowdflower(
        "primary_emotions",
        "Emotion of sentences, on Plutchik's wheel",
        ("primary-plutchik-wheel-DFE.csv",),
        text="sentence",
        label="emotion",
    ),
    _crowdflower(
        "progressive_opinion",
        "Whether tweets express an opinion on a progressive issue",
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
        label="relevance",
        labels=("no", "yes"),
        drop=("not sure",),
    ),
)


HOULSBY_TASKS: Mapping[str, OfficialTask] = {
    "newsgroups": OfficialTask(
        about="20 Newsgroups: full messages classified by newsgroup (Lang 1995). A tenth of train is dev.",
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
    "customer_complaints_issue": complaints(
        "The issue of consumers' complaints (157 classes in Houlsby 2019).", "issue"
    ),
    **dict(CROWDFLOWER),
}
