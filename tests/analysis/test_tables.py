"""The numbers in tables of synthetic runs match hand-computed values, in every format."""

import csv
import io
import json
from pathlib import Path

import pytest
from facts import has_facts
from made_runs import adapter, begin, experiment, finish, finish_all, fusion
from test_runs import jointly

from afjax.analysis import formats
from afjax.analysis.runs import collect
from afjax.analysis.tables import GAP, Grid, Table, arrow, make_grid, make_table
from afjax.config.tasks import TaskConfig
from afjax.config.training import SamplingConfig
from afjax.errors import UserError


def rows_of(table: Table) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in table.rows}


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    """Writes runs on two tasks. On "cb", head has only two seeds and full has no runs. On "rte", pfeiffer has none."""
    scores = {
        ("rte", "head"): (0.50, 0.52, 0.57),
        ("rte", "full"): (0.60, 0.62, 0.58),
        ("cb", "head"): (0.70, 0.74),
        ("cb", "pfeiffer"): (0.80, 0.80, 0.80),
    }
    return make_grid(collect([finish_all(tmp_path, scores)]))


def test_means_and_deviations(grid: Grid) -> None:
    table = make_table("adapterfusion", grid)
    assert table.header == ("task", "head", "full", "pfeiffer", "seeds")
    # The scores 50, 52 and 57 have mean 53 and variance (9 + 1 + 16) / 2 = 13. The variance of 60, 62 and 58 is (0 + 4
    # + 4) / 2 = 4, and the variance of 70 and 74 is (4 + 4) / 1 = 8.
    assert rows_of(table) == {
        "cb": ("72.00 ± 2.83 (2)", GAP, "80.00 ± 0.00", "3"),
        "rte": ("53.00 ± 3.61", "60.00 ± 2.00", GAP, "3"),
        "mean": ("62.50", GAP, GAP, ""),
    }
    assert has_facts("\n".join(table.notes), "11 runs", "trunk minilm", "seeds 0, 1, 2")
    wanted = [
        "cb-head-seed2",
        *(f"cb-full-seed{seed}" for seed in range(3)),
        *(f"rte-pfeiffer-seed{seed}" for seed in range(3)),
    ]
    assert [command.rpartition("/")[2] for command in table.commands] == wanted


def test_seeds_tasks_and_methods_can_be_selected(tmp_path: Path) -> None:
    found = collect([finish_all(tmp_path, {("rte", "head"): (0.5,), ("cb", "head"): (0.6,)})])
    table = make_table("adapterfusion", make_grid(found, tasks="rte", methods="full,head", seeds="0,7"))
    assert rows_of(table) == {"rte": (GAP, "50.00 (1)", "2")}
    assert [command.rpartition("-")[2] for command in table.commands] == ["seed0", "seed7", "seed7"]
    for wrong, facts in (
        ({"tasks": "ret"}, '--tasks .*"ret".*cb, rte'),
        ({"methods": "fusion"}, '--methods .*"fusion".*no finished run.*head'),
        ({"methods": "head,head"}, '"head" twice'),
        ({"seeds": "a"}, '--seeds is "a"'),
    ):
        with pytest.raises(UserError, match=facts):
            make_grid(found, **wrong)


@pytest.mark.parametrize(
    ("one", "other", "sign"),
    [(80.3, 80.0, "→"), (80.0, 80.3, "→"), (80.31, 80.0, "↑"), (79.69, 80.0, "↓"), (80.0, 80.0, "→"), (0.3, 0.0, "→")],
)
def test_arrows_are_level_at_the_bounds(one: float, other: float, sign: str) -> None:
    assert arrow(one - other) == sign


def test_arrows(tmp_path: Path) -> None:
    finish_all(tmp_path, {(task, "pfeiffer"): (score,) for task, score in (("rte", 0.5), ("cb", 0.8), ("sick", 0.6))})
    finish(tmp_path / "f1", fusion("rte", ("cb",)), 0.51)
    finish(tmp_path / "f2", fusion("cb", ("rte",)), 0.803)
    table = make_table("arrows", make_grid(collect([tmp_path])))
    assert table.header == ("task", "fusion vs pfeiffer")
    assert rows_of(table) == {"cb": ("→",), "rte": ("↑",), "sick": (GAP,), "better": ("1/2",)}
    assert [row[3] for row in table.data] == [pytest.approx(0.3), pytest.approx(1.0), None]
    assert len(table.commands) == 1


def test_differences(grid: Grid) -> None:
    table = make_table("differences", grid)
    assert table.header == ("task", "head", "pfeiffer")
    assert rows_of(table) == {"cb": (GAP, GAP), "rte": ("-7.00", GAP)}


def test_comparison_over_different_seeds_is_noted(tmp_path: Path) -> None:
    runs = {("rte", "full"): (0.5, 0.6), ("rte", "head"): (0.4,), ("cb", "full"): (0.5,), ("cb", "head"): (0.4,)}
    table = make_table("differences", make_grid(collect([finish_all(tmp_path, runs)])))
    assert has_facts(table.notes[0], "different seeds", "head and full on rte")
    table = make_table("differences", make_grid(collect([tmp_path]), tasks="cb"))
    assert not any("different seeds" in note for note in table.notes)


def test_scores_with_fewer_seeds_than_the_others_are_marked(tmp_path: Path) -> None:
    """All finished seeds count, even if fewer are requested."""
    runs = {("rte", "full"): (0.5,), ("rte", "head"): (0.4, 0.5, 0.6)}
    table = make_table("adapterfusion", make_grid(collect([finish_all(tmp_path, runs)]), seeds="0"))
    assert rows_of(table) == {"rte": ("50.00 ± 10.00", "50.00 (1)", "3")}
    assert table.commands == ()


def test_different_train_and_dev_rows_are_noted(tmp_path: Path) -> None:
    for task, digests in (("rte", ("aa", "bb")), ("cb", ("aa", "aa"))):
        for method, digest in zip(("full", "head"), digests, strict=True):
            rows = {f"task {task}'s {split} rows": digest for split in ("train", "dev")}
            finish(tmp_path / f"{task}-{method}", experiment(task, method), 0.5, rows=rows)
    # Runs of earlier versions have no digests.
    finish(tmp_path / "cb-old", experiment("cb", "layernorm"), 0.5)
    found = collect([tmp_path])
    for split in ("train", "dev"):
        rows = f"different {split} rows"
        (note,) = [note for note in make_table("differences", make_grid(found)).notes if rows in note]
        assert has_facts(note, "rte", rows, str(tmp_path / "rte-full"), str(tmp_path / "rte-head"))
        one_method = make_table("adapterfusion", make_grid(found, methods="head"))
        assert not any(rows in note for note in one_method.notes)


def test_settings_with_different_rows_are_noted(tmp_path: Path) -> None:
    """The note also names runs that are not in the table, because their setting was not chosen."""
    for name, score in (("low", 0.4), ("high", 0.6)):
        rows = {f"task rte's {split} rows": name for split in ("train", "dev")}
        finish(tmp_path / name, experiment("rte", "full"), score, rows=rows)
    notes = make_table("adapterfusion", make_grid(collect([tmp_path]))).notes
    (note,) = [note for note in notes if "different dev rows" in note]
    assert has_facts(note, str(tmp_path / "high"), str(tmp_path / "low"))


def test_metric_for_which_lower_is_better_is_refused(tmp_path: Path) -> None:
    task = TaskConfig(name="stsb", source="data", kind="regression")
    workdir = finish(tmp_path / "a", experiment("stsb", "head", of=task), 0.5)
    path = workdir / "target" / "result.json"
    (result,) = json.loads(path.read_text())
    result["metrics"] |= {"mse": 0.1, "spearman": 0.4}
    path.write_text(json.dumps([result]))
    with pytest.raises(UserError, match=r'"mse".*pearson, spearman'):
        make_grid(collect([tmp_path]), metric="mse")


def test_left_out_methods_are_named(tmp_path: Path) -> None:
    found = collect([finish_all(tmp_path, {("rte", method): (0.5,) for method in ("full", "head", "pfeiffer")})])
    for methods, missing in (("pfeiffer", "add full"), ("full", "add head or pfeiffer")):
        with pytest.raises(UserError, match=f"--methods is {methods}; {missing}"):
            make_table("differences", make_grid(found, methods=methods))


def test_layouts_with_missing_runs_are_refused(tmp_path: Path) -> None:
    grid = make_grid(collect([finish_all(tmp_path, {("rte", "head"): (0.5,)})]))
    with pytest.raises(UserError, match=r"no fusions.*arrows.*head"):
        make_table("arrows", grid)
    with pytest.raises(UserError, match=r"method full.*configs/baselines\.py:method=full"):
        make_table("differences", grid)


def test_houlsby_counts_parameters(tmp_path: Path) -> None:
    """Full fine-tuning on two tasks has two trunks of 22 713 216 parameters each. Adapters share one trunk."""
    trunk, added = 22_713_216, 227_132
    for task in ("cb", "rte"):
        finish(tmp_path / f"{task}-full", experiment(task, "full"), 0.9, saved=1)
        finish(tmp_path / f"{task}-adapter", experiment(task, "houlsby"), 0.8, saved=added // 2)
    finish(tmp_path / "head", experiment("cb", "head"), 0.7)
    table = make_table("houlsby", make_grid(collect([tmp_path])))
    assert has_facts("\n".join(table.notes), "No artifacts", f"{tmp_path / 'head'} ", "parameters", "--runs")
    # Full fine-tuning trains all trunk parameters except the pooler, because the head has its own pooler.
    assert rows_of(table) == {
        "head": (GAP, GAP, "70.00", GAP, GAP),
        "full": ("1.99×", f"{100 * (trunk - 147_840) / trunk:.2f}%", "90.00", "90.00", "90.00"),
        "houlsby": ("1.02×", "1.00%", "80.00", "80.00", "80.00"),
    }
    houlsby = [dict(zip(table.data_header, row, strict=True)) for row in table.data if row[0] == "houlsby"]
    assert [of["total_relative"] for of in houlsby] == [1 + 2 * added / trunk] * 2


def test_task_trunk_replaces_the_pretrained_trunk(tmp_path: Path) -> None:
    finish(tmp_path / "cb", experiment("cb", "pfeiffer", partition="adapter+trunk"), 0.9, saved=1)
    (row,) = make_table("houlsby", make_grid(collect([tmp_path]))).rows
    # The total counts the trained trunk without its pooler, and not the pretrained trunk.
    assert row[:2] == ("pfeiffer-trunk", "0.99×")


def test_pals_has_a_row_per_sampler(tmp_path: Path) -> None:
    for sampler, score in (("annealed", 0.8), ("proportional", 0.6)):
        sampling = SamplingConfig(sampler=sampler)
        config = jointly("pals", ("cb", "rte"), partition="adapter+trunk", sampling=sampling)
        finish(tmp_path / sampler, config, {"cb": score, "rte": 0.7}, saved=1_000_000, trained_trunk=sampler)
    finish(tmp_path / "full", experiment("cb", "full"), 0.9, saved=1)
    table = make_table("pals", make_grid(collect([tmp_path]), by_sampler=True))
    assert table.header == ("method", "sampler", "parameters", "cb", "rte", "mean")
    # Besides the trunk, each of the two tasks has an adapter and a head, with a million parameters each.
    assert table.rows == (
        ("full", GAP, GAP, "90.00", GAP, GAP),
        ("mt-pals", "annealed", "1.18×", "80.00", "70.00", "75.00"),
        ("mt-pals", "proportional", "1.18×", "60.00", "70.00", "65.00"),
    )


def test_sizes_are_separate_methods_if_requested(tmp_path: Path) -> None:
    for size, score in ((8, 0.6), (64, 0.7)):
        finish(tmp_path / f"{size}", experiment("rte", "houlsby", adapter=adapter("houlsby", size=size)), score)
    finish(tmp_path / "p", experiment("rte", "pfeiffer"), 0.5)
    found = collect([tmp_path])
    assert make_table("adapterfusion", make_grid(found)).rows == (("rte", "50.00", "70.00", "1"),)
    sized = make_table("adapterfusion", make_grid(found, by_size=True))
    assert sized.header == ("task", "pfeiffer:1/16", "houlsby:8", "houlsby:64", "seeds")


def test_size_of_lora_is_its_rank(tmp_path: Path) -> None:
    for rank in (8, 16):
        finish(tmp_path / f"{rank}", experiment("rte", "lora", adapter=adapter("lora", rank=rank)), 0.5)
    assert make_grid(collect([tmp_path]), by_size=True).methods == ("lora:8", "lora:16")


def test_unfinished_run_of_a_size_is_resumed(tmp_path: Path) -> None:
    finish(tmp_path / "done", experiment("rte", "houlsby"), 0.5)
    begin(tmp_path / "begun", experiment("rte", "houlsby", seed=1))
    table = make_table("adapterfusion", make_grid(collect([tmp_path]), seeds="0,1", by_size=True))
    assert table.commands == (f"afjax train --config={tmp_path}/begun/config.json --workdir={tmp_path}/begun",)
    assert has_facts("\n".join(table.notes), "begun", "houlsby:64", "seed 1", "not finished")


# Output formats.


@pytest.fixture
def hostile(tmp_path: Path) -> Table:
    task = TaskConfig(name="a_b|50%&c$", source="data", metric="f1")
    finish(tmp_path / "a", experiment("x", "head", of=task), 0.5)
    finish(tmp_path / "b", experiment("x", "head", of=task, seed=1), 0.52)
    finish_all(tmp_path, {("rte", "full"): (0.25,)})
    return make_table("adapterfusion", make_grid(collect([tmp_path])))


def test_text(grid: Grid) -> None:
    lines = formats.to_text(make_table("adapterfusion", grid)).splitlines()
    assert lines[:6] == [
        "Dev scores",
        "",
        "task              head          full      pfeiffer  seeds",
        "cb    72.00 ± 2.83 (2)             -  80.00 ± 0.00      3",
        "rte       53.00 ± 3.61  60.00 ± 2.00             -      3",
        "mean             62.50             -             -",
    ]


def test_markdown_is_aligned_and_escaped(hostile: Table) -> None:
    lines = formats.to_markdown(hostile).splitlines()
    assert lines[2:6] == [
        "| task                |         head |  full | seeds |",
        "| ------------------- | -----------: | ----: | ----: |",
        "| a\\_b\\|50%\\&c\\$ (f1) | 51.00 ± 1.41 |     - |     2 |",
        "| rte                 |            - | 25.00 |     1 |",
    ]
    assert lines[-1] == "```"


def test_latex_is_escaped(hostile: Table) -> None:
    text = formats.to_latex(hostile)
    assert "\\begin{tabular}{lrrr}\n\\toprule\ntask " in text
    assert r"a\_b\textbar{}50\%\&c\$ (f1) & 51.00 $\pm$ 1.41 &" in text
    assert all(line.startswith("%") for line in text.partition("\\end{tabular}\n")[2].splitlines())


def test_csv_has_every_number_and_the_commands(grid: Grid) -> None:
    rows = list(csv.DictReader(io.StringIO(formats.to_csv(make_table("adapterfusion", grid)))))
    of = {(row["task"], row["method"]): row for row in rows}
    assert float(of["cb", "head"]["std"]) == pytest.approx(8**0.5)
    assert (of["cb", "head"]["seeds"], of["cb", "head"]["settings"], of["cb", "head"]["runs"]) == ("0 1", "1", "2")
    assert of["rte", "pfeiffer"]["mean"] == ""
    assert of["rte", "pfeiffer"]["command"].count(" && afjax train ") == 2
