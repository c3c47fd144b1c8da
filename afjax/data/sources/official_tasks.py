"""The table of tasks in the benchmarks' own downloads.

Layouts of files are in ``afjax.data.sources.layouts``. The meaning of columns, and how rows are split if a benchmark
does not split them, is in ``afjax.data.sources.official_rows``.
"""

from collections.abc import Mapping

from afjax.data.sources.official_glue import GLUE_TASKS
from afjax.data.sources.official_houlsby import HOULSBY_TASKS
from afjax.data.sources.official_multiple_choice import MULTIPLE_CHOICE_TASKS
from afjax.data.sources.official_task import OfficialTask
from afjax.data.sources.official_texts import TEXT_TASKS

OFFICIAL: Mapping[str, OfficialTask] = {**GLUE_TASKS, **MULTIPLE_CHOICE_TASKS, **TEXT_TASKS, **HOULSBY_TASKS}
