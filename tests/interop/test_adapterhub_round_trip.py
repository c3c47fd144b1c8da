"""A round trip through AdapterHub's files preserves weights and settings."""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import has_facts
from hypothesis import given, settings
from hypothesis import strategies as st

from afjax import store
from afjax.cli.main import main
from afjax.config.adapters import AdapterConfig
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.tasks import TaskConfig
from afjax.errors import UserError
from afjax.interop.adapterhub import export_adapterhub, import_adapterhub
from afjax.interop.adapterhub.adapters import own_adapter, read_adapter, write_adapter
from afjax.interop.adapterhub.families import library_family
from afjax.interop.adapterhub.files import ADAPTER, FUSION, HEAD, OWN, Files, Part, envelope, read_part, write_part
from afjax.interop.adapterhub.fusion import fusion_settings, own_fusion, read_fusion, write_fusion
from afjax.interop.adapterhub.heads import own_head, read_head, write_head
from afjax.interop.facts import without_paths
from afjax.interop.heads import HeadRecord
from afjax.trees import Tree, flatten, unflatten
from afjax.trunk.config import TrunkConfig
from afjax.trunk.pretrained import Trunk
from tests.analysis.random_models import make
from tests.interop.adapterhub_folders import Folders

TRUNK = TrunkConfig(
    vocab_size=11,
    hidden_size=12,
    num_layers=4,
    num_heads=2,
    intermediate_size=8,
    max_positions=20,
    type_vocab_size=1,
    family="roberta",
)
ENCODER = Trunk(name="a-trunk", config=TRUNK, params={}, sha256="0" * 64, folder=None)
IDENTITY = {"name": "a-trunk", "family": "roberta", "hidden_size": 12, "num_layers": 4}
LAYERS = st.none() | st.sets(st.integers(0, 3), min_size=1).map(lambda layers: tuple(sorted(layers)))
ACTIVATIONS = st.sampled_from(["relu", "leaky_relu", "swish", "gelu", "gelu_tanh", "tanh"])
SEEDS = st.integers(0, 2**32 - 1)


def is_valid(settings: dict[str, Any]) -> bool:
    return settings["residual_from"] != "sum" or settings["pretrained_layer_norm"] in ("before", "both")


ADAPTERS = (
    st.fixed_dictionaries(
        {
            "position": st.sampled_from(["attention", "ffn", "both"]),
            "pretrained_layer_norm": st.sampled_from(["before", "after", "both", "none"]),
            "new_layer_norm": st.sampled_from(["before", "after", "both", "none"]),
            "residual_from": st.sampled_from(["sublayer", "sum", "input"]),
            "residual_before_new_layer_norm": st.booleans(),
            "reduction_factor": st.floats(0.25, 64),
            "size": st.none() | st.integers(1, 40),
            "activation": ACTIVATIONS,
            "init": st.sampled_from(["normal", "truncated_normal"]),
            "init_scale": st.floats(0, 1),
            "scaling": st.floats(-4, 4),
            "layers": LAYERS,
        }
    )
    .filter(is_valid)
    .map(lambda settings: AdapterConfig(**settings))
)
FUSIONS = st.builds(
    FusionConfig,
    value=st.booleans(),
    dropout=st.none() | st.floats(0, 0.9),
    init_scale=st.floats(0, 1),
    value_init_scale=st.floats(0, 1),
    regularization=st.floats(0, 1),
    subset=st.none() | st.integers(1, 3),
)
HEADS = st.builds(
    HeadConfig,
    pooling=st.just("first"),
    pooler=st.sampled_from(["head", "trunk", "none"]),
    hidden_layers=st.integers(0, 2),
    activation=ACTIVATIONS,
    dropout=st.none() | st.floats(0, 0.9),
).filter(lambda head: head.pooler != "head" or not head.hidden_layers or head.activation == "tanh")
TASKS = st.sampled_from(
    [
        (TaskConfig(name="t"), ("no", "a,b/c", "日")),
        (TaskConfig(name="t", kind="regression"), ()),
        (TaskConfig(name="t", kind="multi_label"), ("no", "maybe", "yes")),
        (TaskConfig(name="t", kind="multiple_choice"), ("first", "second")),
        (TaskConfig(name="t", kind="span"), ()),
        (TaskConfig(name="t", kind="tagging"), ("B-x", "I-x", "O")),
    ]
)


def random_tree(shapes: dict[str, tuple[int, ...]], seed: int) -> Tree:
    """Draws leaves from random bits, so that every finite float32 can occur."""
    random = np.random.default_rng(seed)
    bits = {path: random.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32) for path, shape in shapes.items()}
    return unflatten({path: np.where(np.isfinite(leaf), leaf, np.float32(1)) for path, leaf in bits.items()})


def adapter_tree(config: AdapterConfig, seed: int) -> Tree:
    depth, d, size = len(config.layers or range(4)), 12, config.bottleneck_size(12)
    shapes: dict[str, tuple[int, ...]] = {}
    for slot in config.slots:
        shapes |= {f"{slot}/down/kernel": (depth, d, size), f"{slot}/down/bias": (depth, size)}
        shapes |= {f"{slot}/up/kernel": (depth, size, d), f"{slot}/up/bias": (depth, d)}
        for place in ("before", "after"):
            if config.new_layer_norm in (place, "both"):
                shapes |= {f"{slot}/norm_{place}/{leaf}": (depth, d) for leaf in ("scale", "bias")}
    return random_tree(shapes, seed)


def fusion_tree(config: FusionConfig, member: AdapterConfig, seed: int) -> Tree:
    depth, shapes = len(member.layers or range(4)), {}
    for slot in member.slots:
        for name in ("query", "key"):
            shapes |= {f"{slot}/{name}/kernel": (depth, 12, 12), f"{slot}/{name}/bias": (depth, 12)}
        if config.value:
            shapes[f"{slot}/value/kernel"] = (depth, 12, 12)
    return random_tree(shapes, seed)


def head_tree(config: HeadConfig, reads_tokens: bool, outputs: int, seed: int) -> Tree:
    shapes: dict[str, tuple[int, ...]] = {"output/kernel": (12, outputs), "output/bias": (outputs,)}
    if config.pooler == "head" and not reads_tokens:
        shapes |= {"pooler/kernel": (12, 12), "pooler/bias": (12,)}
    for layer in range(config.hidden_layers):
        shapes |= {f"hidden/{layer}/kernel": (12, 12), f"hidden/{layer}/bias": (12,)}
    return random_tree(shapes, seed)


def write_and_read(
    files: Files, settings: Any, tensors: dict[str, np.ndarray], name: str, afjax_fields: Any, **more: Any
) -> Part:
    with tempfile.TemporaryDirectory() as folder:
        values = envelope(settings, IDENTITY, name, **more, **{OWN: afjax_fields})
        write_part(Path(folder), files, values, tensors, "safetensors")
        return read_part(Path(folder), files, TRUNK)


def check_same_bits(ours: Tree, theirs: Tree) -> None:
    ours, theirs = flatten(ours), flatten(theirs)
    assert ours.keys() == theirs.keys()
    for path, leaf in ours.items():
        assert theirs[path].dtype == leaf.dtype == np.float32
        assert theirs[path].tobytes() == np.ascontiguousarray(leaf).tobytes(), path


@settings(max_examples=200, deadline=None)
@given(config=ADAPTERS, seed=SEEDS)
def test_round_trip_preserves_adapters(config: AdapterConfig, seed: int) -> None:
    tree = adapter_tree(config, seed)
    theirs, tensors = write_adapter(config, tree, "a", family=library_family("roberta"), hidden_size=12, num_layers=4)
    part = write_and_read(ADAPTER, theirs, tensors, "a", own_adapter(config))
    config_read, params, notes = read_adapter(part, TRUNK)
    assert (config_read, notes) == (config, [])
    check_same_bits(tree, params)
    # Without afjax's own fields, the imported adapter still computes the same function.
    library_fields = {key: value for key, value in part.envelope.items() if key != OWN}
    plain = dataclasses.replace(part, envelope=library_fields)
    library_config, params, _ = read_adapter(plain, TRUNK)
    check_same_bits(tree, params)
    assert library_config.bottleneck_size(12) == config.bottleneck_size(12)
    assert (library_config.layers or (0, 1, 2, 3)) == (config.layers or (0, 1, 2, 3))
    not_preserved = ("size", "reduction_factor", "init", "init_scale", "layers")
    preserved = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in not_preserved
    }
    assert {name: getattr(library_config, name) for name in preserved} == preserved


@settings(max_examples=100, deadline=None)
@given(config=FUSIONS, member=ADAPTERS, seed=SEEDS)
def test_round_trip_preserves_fusions(config: FusionConfig, member: AdapterConfig, seed: int) -> None:
    tree = fusion_tree(config, member, seed)
    theirs, tensors = write_fusion(config, tree, "a,b", member, family=library_family("roberta"), num_layers=4)
    part = write_and_read(FUSION, theirs, tensors, "a,b", own_fusion(config, "ab"), adapter_names=["a", "b"])
    config_read, params, notes = read_fusion(part, [member, member], TRUNK)
    assert (config_read, notes) == (config, [])
    check_same_bits(tree, params)


@settings(max_examples=100, deadline=None)
@given(config=HEADS, task=TASKS, seed=SEEDS)
def test_round_trip_preserves_heads(config: HeadConfig, task: tuple[TaskConfig, tuple[str, ...]], seed: int) -> None:
    about, labels = task
    outputs = {"classification": 3, "regression": 1, "multiple_choice": 1, "span": 2, "multi_label": 3, "tagging": 3}[
        about.kind
    ]
    tree = head_tree(config, about.kind in ("span", "tagging"), outputs, seed)
    theirs, tensors = write_head(config, tree, "h", about, labels, None)
    record = HeadRecord(
        config=config, task=about, labels=labels, metrics={"accuracy": 0.5}, seed=3, max_length=16, text_columns=2
    )
    part = write_and_read(HEAD, theirs, tensors, "h", own_head(record))
    record_read, params = read_head(part, "h", ENCODER)
    assert record_read == record
    assert params["output"]["bias"].shape == (outputs,)
    check_same_bits(tree, params)


@pytest.mark.parametrize(
    ("source", "kept"),
    [("hf:me/mnli", True), ("tfds:glue/mnli", True), ("tfds:/home/me/mnli/1.0.0", False), ("a.csv", False)],
)
def test_exported_task_has_no_local_paths_and_all_splits_of_public_data(source: str, kept: bool) -> None:
    task = TaskConfig(name="mnli", source=source, train="train[:50%]", dev="validation_mismatched")
    expected = task if kept else TaskConfig(name="mnli")
    assert without_paths(task) == expected


def test_temperature_and_scale_are_multiplied_into_the_weights() -> None:
    member, config = AdapterConfig(size=2), FusionConfig(temperature=4.0)
    tree = fusion_tree(config, member, 0)
    settings, tensors = write_fusion(config, tree, "a", member, family=library_family("roberta"), num_layers=4)
    part = write_and_read(FUSION, settings, tensors, "a", own_fusion(config, "f"))
    fusion, params, _ = read_fusion(part, [member], TRUNK)
    assert fusion.temperature == 1.0
    np.testing.assert_array_equal(params["ffn"]["query"]["kernel"], tree["ffn"]["query"]["kernel"] / np.float32(4))
    task = TaskConfig(name="t", kind="regression", scale=5.0)
    head = head_tree(HeadConfig(pooling="first"), False, 1, 1)
    settings, tensors = write_head(HeadConfig(pooling="first"), head, "h", task, (), None)
    record = HeadRecord(
        config=HeadConfig(pooling="first"), task=task, labels=(), metrics={}, seed=0, max_length=16, text_columns=None
    )
    part = write_and_read(HEAD, settings, tensors, "h", own_head(record))
    record_read, params = read_head(part, "h", ENCODER)
    assert record_read.text_columns is None
    assert record_read.task.scale == 1.0
    np.testing.assert_array_equal(params["output"]["kernel"], head["output"]["kernel"] * np.float32(5))


def test_round_trip_preserves_a_fusion_with_its_adapters_and_head(bert: Folders, tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    import_adapterhub(bert.root / "fusion/pfeiffer/safetensors", first, trunk=bert.trunk, name="abc")
    # The head of the same name has precedence.
    import_adapterhub(bert.root / "heads/two_layers/safetensors", first, trunk=bert.trunk, name="abc")
    written = export_adapterhub(first, "abc", tmp_path / "setup")
    assert [part for part, _ in written] == ["adapter a", "adapter b", "adapter c", "fusion abc", "head abc"]
    imported = import_adapterhub(tmp_path / "setup", again, trunk=bert.trunk)
    assert [artifact.name for artifact in imported] == ["a", "b", "c", "abc", "abc"]
    assert store.verify(again) == []
    for kind, name in [("adapters", "a"), ("adapters", "b"), ("adapters", "c"), ("fusion", "abc"), ("heads", "abc")]:
        ours, theirs = (store.read_manifest(folder, kind, name) for folder in (first, again))
        for field in ("config", "digest", "labels", "task", "metrics", "seed", "trunk", "adapters"):
            assert getattr(ours, field) == getattr(theirs, field), (kind, name, field)


def test_fusion_is_exported_with_the_head_that_was_trained_with_it(bert: Folders, tmp_path: Path) -> None:
    """The library's files do not name the fusion, so the head rarely has the same name."""
    setup = bert.root / "fusion/pfeiffer/safetensors"
    imported = import_adapterhub(setup, tmp_path / "first", trunk=bert.trunk, name="abc")
    (head,) = [artifact.name for artifact in imported if artifact.kind == "heads"]
    assert head != "abc"
    written = export_adapterhub(tmp_path / "first", "abc", tmp_path / "setup")
    assert [part for part, _ in written] == ["adapter a", "adapter b", "adapter c", "fusion abc", f"head {head}"]
    import_adapterhub(tmp_path / "setup", tmp_path / "again", trunk=bert.trunk)
    first, again = (store.read_manifest(tmp_path / folder, "heads", head) for folder in ("first", "again"))
    assert (first.digest, first.trained_with) == (again.digest, again.trained_with)
    without = export_adapterhub(tmp_path / "first", "abc", tmp_path / "without", head=None)
    assert [part for part, _ in without] == ["adapter a", "adapter b", "adapter c", "fusion abc"]


def test_one_of_several_heads_is_chosen(bert: Folders, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    imported = import_adapterhub(bert.root / "fusion/pfeiffer/safetensors", folder, trunk=bert.trunk, name="abc")
    (head,) = [artifact.name for artifact in imported if artifact.kind == "heads"]
    loaded = store.load(folder, "heads", head)
    fields = {name: getattr(loaded.manifest, name) for name in ("config", "trunk", "task", "labels", "trained_with")}
    store.save(folder, store.Draft("heads", "second", loaded.params, **fields))
    fields["trained_with"] = {**loaded.manifest.trained_with, "kind": "adapters"}
    store.save(folder, store.Draft("heads", "foreign", loaded.params, **fields))
    names = sorted([head, "second"])
    for chosen, facts in (
        ("", ('2 heads were trained with the fusion "abc"', f"--head ({', '.join(names)}")),
        ("foreign", ('"foreign"', 'fusion "abc"', "--head")),
        ("secnd", ('"secnd"', '"second"')),
    ):
        with pytest.raises(UserError) as raised:
            export_adapterhub(folder, "abc", tmp_path / "setup", head=chosen)
        assert has_facts(str(raised.value), *facts)
    with pytest.raises(UserError, match=r"head itself.*--head=second"):
        export_adapterhub(folder, head, tmp_path / "setup", kind="head", head="second")
    assert not (tmp_path / "setup").exists()
    written = export_adapterhub(folder, "abc", tmp_path / "setup", head="second")
    assert written[-1][0] == "head second"
    # A head with the same name is the default.
    store.save(
        folder, store.Draft("heads", "abc", loaded.params, **{**fields, "trained_with": loaded.manifest.trained_with})
    )
    assert export_adapterhub(folder, "abc", tmp_path / "again")[-1][0] == "head abc"


def test_labels_of_an_exported_head_are_in_the_order_of_its_outputs(bert: Folders, tmp_path: Path) -> None:
    """The library's ``get_labels`` lists them in the order of the file."""
    import_adapterhub(bert.root / "heads/two_layers/safetensors", tmp_path / "store", trunk=bert.trunk, name="head")
    head = store.load(tmp_path / "store", "heads", "head")
    labels = ("neutral", "entailment", "contradiction")[: len(head.manifest.labels)]
    changed = {"config": head.manifest.config, "task": head.manifest.task, "labels": labels}
    store.save(tmp_path / "other", store.Draft("heads", "head", head.params, trunk=bert.trunk.identity(), **changed))
    export_adapterhub(tmp_path / "other", "head", tmp_path / "exported")
    config = json.loads((tmp_path / "exported" / "head_config.json").read_text())["config"]
    assert list(config["label2id"].items()) == [(label, index) for index, label in enumerate(labels)]


def test_artifacts_without_a_counterpart_in_the_library_are_refused(bert: Folders, tmp_path: Path) -> None:
    identity = bert.trunk.identity()

    def refused(message: str, kind: str, config: dict[str, Any], **more: Any) -> None:
        store.save(
            tmp_path, store.Draft(kind, "x", {"a": np.zeros(1, np.float32)}, config=config, trunk=identity, **more)
        )
        with pytest.raises(UserError, match=message):
            export_adapterhub(tmp_path, "x", tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []
        store_folder = tmp_path / kind / "x"
        for path in sorted(store_folder.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        store_folder.rmdir()

    refused(r"LayerNorms.*adapter\.layer_norms", "adapters", dataclasses.asdict(AdapterConfig(layer_norms=True)))
    refused("kind pal", "adapters", {"kind": "pal"})
    with pytest.raises(UserError, match="gs://bucket/out"):
        export_adapterhub(tmp_path, "x", "gs://bucket/out")
    members = [{"name": f"{number}{'n' * 90}", "sha256": "0" * 64} for number in range(3)]
    refused(r"3 adapters.*255", "fusion", dataclasses.asdict(FusionConfig()), adapters=members)
    with pytest.raises(UserError, match=r"pruned.*fusion\.kept"):
        fusion_settings(FusionConfig(kept=(((0,), (0,)),)), "a,b")
    task = dataclasses.asdict(TaskConfig(name="t", kind="multiple_choice"))
    head = {**dataclasses.asdict(HeadConfig(pooling="first")), "num_outputs": 1, "max_length": 8}
    refused("--num_choices", "heads", head, task=json.loads(json.dumps(task)))
    head = {**head, "hidden_layers": 1, "activation": "relu"}
    refused("one activation", "heads", head, task=json.loads(json.dumps(dataclasses.asdict(TaskConfig(name="t")))))


@pytest.mark.parametrize(
    ("kind", "num_choices"), [("classification", 3), ("multiple_choice", 0), ("multiple_choice", 3)]
)
def test_number_of_choices_must_suit_the_head(kind: Any, num_choices: int) -> None:
    task = TaskConfig(name="t", kind=kind)
    with pytest.raises(UserError, match=r"--num_choices"):
        write_head(HeadConfig(pooling="first"), {}, "scores", task, ("a", "b"), num_choices)


@pytest.mark.parametrize("name", ["a.b", "train", "type", "_modules"])
def test_names_that_pytorch_refuses_are_refused(bert: Folders, tmp_path: Path, name: str) -> None:
    draft = store.Draft("adapters", name, {"a": np.zeros(1, np.float32)}, config={}, trunk=bert.trunk.identity())
    store.save(tmp_path / "store", draft)
    with pytest.raises(UserError, match=f'"{name}"'):
        export_adapterhub(tmp_path / "store", name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_head_of_another_trunk_is_not_exported(bert: Folders, tmp_path: Path) -> None:
    other = dataclasses.replace(bert.trunk, sha256="0" * 64)
    import_adapterhub(bert.root / "adapters/pfeiffer/safetensors", tmp_path / "store", trunk=bert.trunk)
    import_adapterhub(bert.root / "heads/two_layers/safetensors", tmp_path / "store", trunk=other, name="a")
    written = export_adapterhub(tmp_path / "store", "a", tmp_path / "out")
    assert written == [("adapter a", tmp_path / "out")]
    assert not (tmp_path / "out/head_config.json").exists()


def test_unsupported_head_can_be_left_out(
    bert: Folders, tmp_path: Path, tiny_trunk: Trunk, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make(tiny_trunk, AdapterConfig(size=4))
    pooled = dataclasses.replace(model.model, head=HeadConfig(pooling="mean"))
    dataclasses.replace(model, model=pooled).renamed("a").save(tmp_path / "store")
    with pytest.raises(UserError, match=r"uses the mean.*head=None"):
        export_adapterhub(tmp_path / "store", "a", tmp_path / "out")
    arguments = ["export", "adapterhub", "a", f"--store={tmp_path / 'store'}", f"--output={tmp_path / 'out'}"]
    assert main(arguments) == 2
    capsys.readouterr()
    assert main([*arguments, "--no_head"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out'}: adapter a\n"
    assert not (tmp_path / "out/head_config.json").exists()
