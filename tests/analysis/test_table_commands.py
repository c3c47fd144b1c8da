"""``afjax table`` and ``afjax plot`` print tables, write files, and refuse invalid arguments."""

from pathlib import Path

import pytest
from facts import has_facts
from made_runs import adapter, begin, experiment, finish, finish_all, fusion

from afjax.analysis.formats import FORMATS
from afjax.analysis.missing import rename_task
from afjax.analysis.tables import LAYOUTS
from afjax.cli.commands import table
from afjax.cli.main import main
from afjax.config.tasks import TaskConfig

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    scores = {("rte", "full"): (0.6,), ("rte", "houlsby"): (0.5,), ("cb", "full"): (0.7,), ("cb", "pfeiffer"): (0.8,)}
    return finish_all(tmp_path / "runs", scores, saved=2)


def refused(capsys: Capsys, *words: str) -> str:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_table(runs: Path, tmp_path: Path, capsys: Capsys) -> None:
    words = ["table", "houlsby", f"--runs={runs}", "--format=markdown"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "| method   | total | trained/task |" in shown
    assert main([*words, f"--output={tmp_path / 'table.md'}"]) == 0
    assert (tmp_path / "table.md").read_text() == shown


def test_folder_of_a_sweeps_run_may_have_commas(tmp_path: Path, capsys: Capsys) -> None:
    run = tmp_path / "runs" / "train.learning_rate=0.001,seed=0"
    finish(run, experiment("rte", "full"), 0.4)
    finish(tmp_path / "other", experiment("cb", "full"), 0.6)
    assert main(["table", "houlsby", f"--runs={run},{tmp_path / 'other'}"]) == 0
    assert has_facts(capsys.readouterr().out, "cb", "rte")


@pytest.mark.parametrize("figure", ["tradeoff", "differences"])
def test_plot(figure: str, runs: Path, tmp_path: Path, capsys: Capsys) -> None:
    begin(runs / "begun", experiment("rte", "head"))
    assert main(["plot", figure, f"--runs={runs}", f"--output={tmp_path / 'new' / 'picture'}"]) == 0
    out, err = capsys.readouterr()
    assert out.split() == [str(tmp_path / "new" / f"picture.{suffix}") for suffix in ("png", "svg", "csv")]
    assert has_facts(err, "begun ", "head", "rte", "seed 0", "not finished")


def test_plots_print_the_notes_of_tables(tmp_path: Path, capsys: Capsys) -> None:
    runs = tmp_path / "runs"
    finish_all(runs, {("rte", "full"): (0.6, 0.7), ("rte", "houlsby"): (0.5,)}, saved=2)
    finish(runs / "size", experiment("rte", "houlsby", adapter=adapter("houlsby", size=8)), 0.4, saved=2)
    finish(runs / "z", experiment("rte", "full"), 0.9, saved=2)
    picture = f"--output={tmp_path / 'picture'}"
    uneven = ("different seeds", "houlsby and full on rte")
    repeated = (str(runs / "z"), "repeats", "full on rte", "ignored")
    assert main(["plot", "differences", f"--runs={runs}", picture]) == 0
    err = capsys.readouterr().err
    for facts in (uneven, repeated, ("setting", "chosen", "houlsby on rte")):
        assert has_facts(err, *facts)
    assert main(["plot", "tradeoff", f"--runs={runs}", picture]) == 0
    err = capsys.readouterr().err
    assert has_facts(err, "different seeds", "houlsby:8 and full on rte")
    assert has_facts(err, *repeated)
    assert main(["plot", "tradeoff", f"--runs={runs}", picture, "--task=rte"]) == 0
    assert has_facts(capsys.readouterr().err, *repeated)


def test_tradeoff_of_one_task_ignores_the_metrics_of_others(runs: Path, tmp_path: Path) -> None:
    task = TaskConfig(name="cb", source="data/cb", metric="f1")
    finish(runs / "f1", experiment("cb", "full", of=task), 0.5)
    assert main(["plot", "tradeoff", f"--runs={runs}", f"--output={tmp_path / 'picture'}", "--task=rte"]) == 0


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["arows"], ("LAYOUT", '"arows"', "adapterfusion", 'Did you mean "arrows"')),
        (["arrows", "--format=html"], ("--format", '"html"', "text, markdown")),
    ],
)
def test_unknown_layout_or_format_is_refused(words: list[str], facts: tuple[str, ...], capsys: Capsys) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["table", *words, "--runs=none"])
    assert raised.value.code == 2
    assert has_facts(capsys.readouterr().err, *facts)


def test_the_parser_knows_every_layout_and_format() -> None:
    assert (set(table.LAYOUTS), set(table.FORMATS)) == (set(LAYOUTS), set(FORMATS))


def test_bad_arguments_are_refused(runs: Path, tmp_path: Path, capsys: Capsys) -> None:
    given, picture = f"--runs={runs}", f"--output={tmp_path / 'picture'}"
    assert has_facts(refused(capsys, "table", "arrows", given), "no fusions", "arrows")
    assert has_facts(refused(capsys, "table", "arrows", given, "--by_size"), "--by_size", "arrows")
    assert f"no folder {runs / 'none'}" in refused(capsys, "table", "pals", f"--runs={runs},{runs / 'none'}")
    assert "--runs is" in refused(capsys, "plot", "search", f"--runs={runs},", picture)
    for output in (tmp_path, tmp_path / "none" / "table.md"):
        assert str(output.name) in refused(capsys, "table", "pals", given, f"--output={output}")
    (tmp_path / "file").touch()
    assert "cannot be written" in refused(capsys, "plot", "search", given, f"--output={tmp_path / 'file' / 'picture'}")
    assert 'names "ret"' in refused(capsys, "plot", "tradeoff", given, picture, "--task=ret")
    sentence = refused(capsys, "plot", "tradeoff", given, picture, "--task=cb,rte")
    assert has_facts(sentence, "--task is cb,rte", "one task", "--tasks=cb,rte")
    (tmp_path / "z.csv").mkdir()
    assert "z.csv is a folder" in refused(capsys, "plot", "differences", given, f"--output={tmp_path / 'z'}")
    (tmp_path / "z.csv").rmdir()
    assert "adapter.init_scale" in refused(capsys, "plot", "robustness", given, picture)
    finish(tmp_path / "other", fusion("rte", ("cb",)), 0.5, trunk="c" * 64)
    assert "different trunks" in refused(capsys, "table", "pals", f"{given},{tmp_path / 'other'}")
    assert "no finished run" in refused(capsys, "table", "pals", f"--runs={tmp_path / 'runs' / 'run00' / 'target'}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "other", "runs"]


def test_names_of_missing_runs_replace_whole_words_only() -> None:
    names = ("rte-fusion", "my_rte.2", "start-rte", "smarter", "rte")
    renamed = ["cb-fusion", "my_cb.2", "start-cb", "smarter", "cb"]
    assert [rename_task(name, "rte", "cb") for name in names] == renamed
    assert rename_task("start-art", "art", "mrpc") == "start-mrpc"
