"""The table of all tasks that can be read from official downloads.

File layouts are defined in ``afjax.data.sources.layouts``. Row formats, and splits for benchmarks without splits, are
defined in ``afjax.data.sources.official_rows``.
"""

from collections.abc import Mapping

from afjax.data.sources.official_glue import GLUE_TASKS
from afjax.data.sources.official_houlsby import HOULSBY_TASKS
from afjax.data.sources.official_multiple_choice import MULTIPLE_CHOICE_TASKS
from afjax.data.sources.official_task import OfficialTask
from afjax.data.sources.official_texts import TEXT_TASKS

OFFICIAL: Mapping[str, OfficialTask] = {**GLUE_TASKS, **MULTIPLE_CHOICE_TASKS, **TEXT_TASKS, **HOULSBY_TASKS}
