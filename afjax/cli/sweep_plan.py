"""Plans ``afjax sweep``: parses and checks the combinations of settings and seeds."""

import dataclasses
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from etils import epath

from afjax import store
from afjax.cli.config_files import split_arguments
from afjax.cli.experiments import check_used, load_experiment
from afjax.cli.sweep_grid import parse_distinct_seeds, parse_grid
from afjax.config.experiment import ExperimentConfig
from afjax.config.from_dict import from_dict, to_dict
from afjax.errors import UserError
from afjax.storage.json_files import read_json
from afjax.train.defaults import choose_defaults
from afjax.train.sweep_files import SWEEP_RECORD
from afjax.train.workdir import CONFIG, RESULT, TARGET, check_workdir, recorded_config
from afjax.trunk.pretrained import find_pooling

# Maximum length of a run's folder name, excluding the digest appended to a shortened name.
NAME_LENGTH = 200
# Roots of the settings that change the task. Scores on different tasks are not comparable.
TASK_SETTINGS = ("task", "tasks")
# Roots of the settings that change a run's rows.
INPUT_SETTINGS = (*TASK_SETTINGS, "sources")


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a sweep.

    Attributes:
      settings: ``{setting: value}``, with values as in ``--config.SETTING=VALUE``.
      seed: The random seed.
    """

    settings: Mapping[str, str]
    seed: int

    @property
    def title(self) -> str:
        """The run's name in messages."""
        return ", ".join(self.overrides)

    @property
    def name(self) -> str:
        """A readable and unique name for the run's folder."""
        return folder_name({**self.settings, "seed": str(self.seed)})

    @property
    def overrides(self) -> list[str]:
        return [f"{setting}={value}" for setting, value in self.settings.items()] + [f"seed={self.seed}"]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep over settings and seeds.

    Attributes:
      config: The experiment, ``NAME[:key=value,...]`` or the same with ``FILE.py``.
      overrides: Overrides of every run, each ``a.b=value``.
      grid: ``{setting: values}``, with values as in ``--config.SETTING=VALUE``.
      seeds: The random seeds to train every combination of settings with.
      adapters: A store whose adapters are copied to each run's own store before it starts; may be empty.
    """

    config: str
    overrides: tuple[str, ...]
    grid: Mapping[str, tuple[str, ...]]
    seeds: tuple[int, ...]
    adapters: str = ""

    @property
    def settings(self) -> list[dict[str, str]]:
        """Every combination of the grid's values."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    @property
    def runs(self) -> list[Run]:
        return [Run(settings, seed) for settings in self.settings for seed in self.seeds]

    @property
    def varies_task(self) -> bool:
        """Whether the grid has settings of the task."""
        return any(setting.partition(".")[0] in TASK_SETTINGS for setting in self.grid)

    @property
    def varies_method(self) -> bool:
        """Whether the grid has settings besides the task's, and so a best setting."""
        return any(setting.partition(".")[0] not in TASK_SETTINGS for setting in self.grid)


def part_of(runs: Sequence[Run], number: int, count: int) -> Sequence[Run]:
    """Returns part ``number`` of ``count`` parts of the runs.

    The runs of a part are consecutive, so that they can share compiled programs.
    """
    return runs[number * len(runs) // count : (number + 1) * len(runs) // count]


def plan(
    config: str, *, overrides: Sequence[str], grid: Sequence[str], seeds: str, workdir: Path, adapters: str = ""
) -> Sweep:
    """Builds a sweep and checks every run, without writing anything.

    Args:
      config: ``NAME[:key=value,...]`` or the same with ``FILE.py``. If the file has a function ``get_sweep``, it
        returns the grid: ``{dotted setting: [values]}``.
      overrides: Overrides of every run, each ``a.b=value``.
      grid: Each ``a.b=value,value``, which adds a setting to the grid or replaces its values from the file.
      seeds: Comma-separated integers. Without a grid, at least two are needed.
      workdir: The sweep's folder. If it contains a sweep, that sweep is resumed; values and seeds may be added,
        and those whose runs have not begun may be removed.
      adapters: A local store of adapters to copy to every run; may be empty.

    Raises:
      UserError: A combination of settings is not a valid experiment, or two are the same experiment; there is nothing
        to sweep; a setting or a value is given twice; no run uses a swept setting; an override has no effect; a
        value is empty or cannot be parsed; ``adapters`` is not a local store with adapters; or the workdir contains a
        different sweep or runs of a different config.
    """
    requested = Sweep(
        config, tuple(overrides), parse_grid(config, overrides, grid), parse_distinct_seeds(seeds), adapters
    )
    if not requested.grid and len(requested.seeds) < 2:
        raise UserError(
            f"There is nothing to sweep: {split_arguments(config)[0]} has no function get_sweep, no --grid.SETTING was "
            f"given, and --seeds={seeds} is one seed. Use several seeds, such as --seeds=0,1,2, or a grid, such as "
            "--grid.train.learning_rate=1e-4,3e-4."
        )
    if adapters and not (Path(adapters) / "adapters").is_dir():
        raise UserError(f"--adapters={adapters} is not a local store with adapters; pass a store's folder.")
    sweep = _resume(requested, workdir)
    find_store = (lambda: adapters) if adapters else None
    # Finding a trunk can take a second, and most runs of a sweep share one.
    pooling = functools.cache(find_pooling)
    seen: dict[str, str] = {}
    experiments = []
    for run in sweep.runs:
        experiment = load_experiment(config, [*overrides, *run.overrides], find_store=find_store)
        experiments.append(experiment)
        resolved = json.dumps(to_dict(experiment))
        if resolved in seen:
            raise UserError(f"{seen[resolved]} and {run.title} are the same experiment; leave one of them out.")
        seen[resolved] = run.title
        folder = epath.Path(run_folder(workdir, run))
        if recorded := recorded_config(folder):
            own_pooling = functools.partial(pooling, experiment.trunk)
            check_workdir(folder, choose_defaults(experiment, own_pooling, recorded))
    # A sweep that an earlier version began with such settings can be continued.
    is_new = not (workdir / SWEEP_RECORD).exists()
    stored = frozenset(store.names(adapters, "adapters")) if adapters and is_new else frozenset()
    if is_new:
        check_used(experiments, overrides)
    for setting in sorted(sweep.grid) if is_new else ():
        is_unused = all(_has_no_effect(setting, experiment, stored) for experiment in experiments)
        if is_unused and len(sweep.grid[setting]) > 1:
            raise UserError(
                f'No run uses the swept setting "{setting}" (recipe={experiment.recipe}, '
                f"partition={experiment.partition}); leave it out, or give it a single value: --grid.{setting}=VALUE."
            )
    return sweep


def _has_no_effect(setting: str, experiment: ExperimentConfig, stored: Set[str]) -> bool:
    """Whether an experiment does not use a setting.

    Args:
      setting: The dotted setting.
      experiment: The experiment.
      stored: Names of the stored adapters. If all sources are stored, they are not trained.
    """
    unused = {*experiment.unused_settings}
    if experiment.recipe == "fusion" and {*experiment.source_names} <= stored:
        unused |= {"adapter", "sources"}
    return not unused.isdisjoint((setting, setting.partition(".")[0]))


def select_settings(settings: Mapping[str, str], roots: Sequence[str]) -> dict[str, str]:
    """Returns the settings whose first part is one of ``roots``."""
    return {setting: value for setting, value in settings.items() if setting.partition(".")[0] in roots}


def folder_name(settings: Mapping[str, str]) -> str:
    """Returns a readable and unique folder name for some settings."""
    unchanged = ",".join(f"{setting}={value}" for setting, value in settings.items())
    plain = ",".join(f"{_plain(setting)}={_plain(value)}" for setting, value in settings.items())
    # _plain also replaces commas and "=" in values, so a name that is neither changed nor shortened is unique.
    if plain == unchanged and len(plain) <= NAME_LENGTH:
        return plain
    return f"{plain[:NAME_LENGTH]}~{hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]}"


def run_folder(workdir: Path, run: Run) -> Path:
    """Returns the folder of a run."""
    return workdir / "runs" / run.name


def _plain(text: str) -> str:
    """Replaces separators, and characters that are special in folder names, with "_"."""
    return re.sub(r"[^\w.+-]", "_", text, flags=re.ASCII)


def _resume(sweep: Sweep, workdir: Path) -> Sweep:
    """Checks a sweep against the workdir's sweep, if any.

    The order of the settings is taken from the workdir's sweep. The sweep may add values and seeds to the workdir's
    sweep, and remove values whose runs have not begun, but not change anything else.

    Raises:
      UserError: The workdir contains a different sweep or a damaged record, or is not a folder.
    """
    path = workdir / SWEEP_RECORD
    record = read_json(path, advice="choose another --workdir")
    if record is None:
        return sweep
    try:
        recorded: Sweep = from_dict(Sweep, record, str(path))
    except UserError as error:
        raise UserError(f"{path} is damaged ({error}); choose another --workdir.") from None
    old, new = (
        {"config": side.config, "adapters": side.adapters or "none"}
        | dict(override.split("=", 1) for override in side.overrides if "=" in override)
        for side in (recorded, sweep)
    )
    differences = [
        f"{setting}: recorded {old.get(setting, 'not set')}, given {new.get(setting, 'not set')}"
        for setting in old | new
        if old.get(setting) != new.get(setting)
    ]
    for setting in sorted(recorded.grid.keys() ^ sweep.grid.keys()):
        differences.append(f"{setting}: swept only {'in the recorded sweep' if setting in recorded.grid else 'now'}")
    removals = []
    for setting, values in {**recorded.grid, "seed": recorded.seeds}.items():
        kept_values = {**sweep.grid, "seed": sweep.seeds}.get(setting, values)
        removed = [str(value) for value in values if value not in kept_values]
        removals += [f"{setting}: {', '.join(removed)} recorded, not given"] if removed else []
    if not differences:
        sweep = dataclasses.replace(sweep, grid={setting: sweep.grid[setting] for setting in recorded.grid})
        names = {run.name for run in sweep.runs}
        dropped = [run_folder(workdir, run) for run in recorded.runs if run.name not in names]
        # If none of these runs has begun to train, for example because it had no data, nothing is lost.
        if not any((folder / CONFIG).exists() or (folder / TARGET / RESULT).exists() for folder in dropped):
            return sweep
        raise UserError(
            f"The workdir {workdir} has a sweep with more runs ({'; '.join(removals)}). Pass these values too. For "
            f"tables without them, copy {workdir / 'runs'} into another folder, and set --workdir to that folder: "
            "finished runs are not retrained."
        )
    raise UserError(
        f"The workdir {workdir} has another sweep ({'; '.join([*differences, *removals])}). To resume that sweep, "
        "use the same settings (values and seeds may be added, and removed if their runs have not begun); otherwise "
        "choose another --workdir."
    )
