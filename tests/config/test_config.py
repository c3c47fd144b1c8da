"""Invalid configs are refused with errors that name the setting, and valid ones survive a JSON round trip."""

import json
from typing import Any

import jax
import numpy as np
import pytest
from facts import has_facts
from hypothesis import given
from hypothesis import strategies as st

from afjax.config.adapters import ADAPTER_PRESETS, Adapter, AdapterConfig, LhucConfig, PalConfig, TopFfnConfig
from afjax.config.experiment import ExperimentConfig, SourceConfig
from afjax.config.from_dict import from_dict, to_dict
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.methods import FusionMethod, Method, check_partition
from afjax.config.tasks import SpanConfig, TaskConfig
from afjax.config.training import MeshConfig, SamplingConfig, TrainConfig
from afjax.config.values import check_name, check_seed
from afjax.errors import UserError

TASK = TaskConfig(name="rte")


def message(make: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(UserError) as raised:
        make(*args, **kwargs)
    return str(raised.value)


# Checks in the dataclasses.


@pytest.mark.parametrize(
    ("kwargs", "facts"),
    [
        ({"size": 0}, ("adapter.size is 0;", "at least 1.")),
        ({"reduction_factor": 0.0}, ("adapter.reduction_factor is 0.0;", "above 0.")),
        ({"reduction_factor": float("nan")}, ("adapter.reduction_factor is nan;", "above 0.")),
        ({"init_scale": -0.1}, ("adapter.init_scale is -0.1;", "finite", "at least 0.")),
        ({"init_scale": float("nan")}, ("adapter.init_scale is nan;", "finite", "at least 0.")),
        ({"scaling": float("inf")}, ("adapter.scaling is inf;", "finite.")),
        ({"layers": ()}, ("adapter.layers is ();", "distinct", "at least 0,", "None")),
        ({"layers": (1, 1)}, ("adapter.layers is (1, 1);", "distinct", "at least 0,", "None")),
        ({"layers": (-1, 1)}, ("adapter.layers is (-1, 1);", "distinct", "at least 0,", "None")),
        (
            {"residual_from": "sum", "pretrained_layer_norm": "after"},
            ('adapter.residual_from="sum" ', 'pretrained_layer_norm "before" or "both"'),
        ),
    ],
)
def test_adapter_config_checks(kwargs: dict[str, Any], facts: tuple[str, ...]) -> None:
    assert has_facts(message(AdapterConfig, **kwargs), *facts)


@pytest.mark.parametrize(
    ("kwargs", "facts"),
    [
        ({"temperature": 0.0}, ("fusion.temperature is 0.0;", "finite", "above 0.")),
        ({"temperature": float("nan")}, ("fusion.temperature is nan;", "finite", "above 0.")),
        ({"dropout": 1.0}, ("fusion.dropout is 1.0;", "at least 0 ", "below 1.")),
        ({"init_scale": -1.0}, ("fusion.init_scale is -1.0;", "finite", "at least 0.")),
        ({"value_init_scale": -1.0}, ("fusion.value_init_scale is -1.0;", "finite", "at least 0.")),
        ({"regularization": -1.0}, ("fusion.regularization is -1.0;", "finite", "at least 0.")),
    ],
)
def test_fusion_config_checks(kwargs: dict[str, Any], facts: tuple[str, ...]) -> None:
    assert has_facts(message(FusionConfig, **kwargs), *facts)


def test_head_config_checks() -> None:
    assert has_facts(message(HeadConfig, dropout=1.5), "head.dropout is 1.5;", "at least 0 ", "below 1.")


@pytest.mark.parametrize(
    ("kwargs", "facts"),
    [
        *(
            ({field: -1.0}, (f"train.{field} is -1.0;", "finite", "at least 0."))
            for field in ("learning_rate", "epochs", "weight_decay", "clip_norm")
        ),
        ({"learning_rate": float("inf")}, ("train.learning_rate is inf;", "finite", "at least 0.")),
        ({"batch_size": 0}, ("train.batch_size is 0;", "at least 1.")),
        ({"max_length": 3}, ("train.max_length is 3;", "at least 4.")),
        *(
            ({field: -1}, (f"train.{field} is -1;", "at least 0."))
            for field in ("max_steps", "eval_every", "patience", "checkpoint_every")
        ),
        ({"warmup": 1.0}, ("train.warmup is 1.0;", "at least 0 ", "below 1.")),
        ({"adam_b1": 1.0}, ("train.adam_b1 is 1.0;", "at least 0 ", "below 1.")),
        ({"adam_b2": -0.1}, ("train.adam_b2 is -0.1;", "at least 0 ", "below 1.")),
        ({"adam_epsilon": 0.0}, ("train.adam_epsilon is 0.0;", "finite", "above 0.")),
        ({"buckets": (8, 129)}, ("train.buckets is (8, 129);", "from 1 to max_length=128.")),
        ({"buckets": (0,)}, ("train.buckets is (0,);", "from 1 to max_length=128.")),
    ],
)
def test_train_config_checks(kwargs: dict[str, Any], facts: tuple[str, ...]) -> None:
    assert has_facts(message(TrainConfig, **kwargs), *facts)


@pytest.mark.parametrize(
    ("kwargs", "facts"),
    [
        ({"recipe": "fusion"}, ("fusion recipe", "config.sources: ", "{task, train}")),
        (
            {"recipe": "fusion", "sources": (SourceConfig(task=TASK), SourceConfig(task=TASK))},
            ("config.sources ", "two tasks", "rte;"),
        ),
        (
            {"recipe": "fusion", "sources": (SourceConfig(task=TASK),), "fused": ("rta",)},
            ('config.fused names "rta"', "sources: rte", 'Did you mean "rte"?'),
        ),
        ({"partition": "top_k"}, ('partition="top_k" ', "top_k=0: ", "above 0")),
        ({"partition": "top_k", "top_k": -1}, ('partition="top_k" ', "top_k=-1: ", "above 0")),
        ({"top_k": -1}, ('partition="adapter" ', "top_k=-1: ", '"top_k"')),
        (
            {"recipe": "fusion", "sources": (SourceConfig(task=TASK),), "fused": ("rte", "rte")},
            ("config.fused is ('rte', 'rte');", "once"),
        ),
        ({"top_k": 2}, ('partition="adapter" ', "top_k=2: ", '"top_k"')),
    ],
)
def test_experiment_config_checks(kwargs: dict[str, Any], facts: tuple[str, ...]) -> None:
    assert has_facts(message(ExperimentConfig, task=TASK, **kwargs), *facts)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a\\b", "a,b", "a:b", " a", "a\n", "a\0b"])
def test_names_unusable_as_folders_or_keys_are_refused(name: str) -> None:
    assert f'task name "{name}" ' in message(check_name, name, "task")
    assert message(TaskConfig, name=name)


@pytest.mark.parametrize("name", ["rte", "RTE-2", "a_b", "v1.0", "größe", "with space"])
def test_valid_names_are_accepted(name: str) -> None:
    check_name(name, "task")


# Values derived from config fields.


def test_experiments_name_their_results() -> None:
    assert ExperimentConfig(task=TASK).artifact_name(TASK) == "rte"
    fusion = {"task": TASK, "recipe": "fusion", "sources": (SourceConfig(task=TASK),)}
    assert ExperimentConfig(**fusion).artifact_name(TASK) == "rte-fusion"
    assert ExperimentConfig(**fusion, name="mine").artifact_name(TASK) == "mine"


def test_main_metric_depends_on_the_task() -> None:
    assert TASK.main_metric == "accuracy"
    assert TaskConfig(name="sts", kind="regression").main_metric == "pearson"
    assert TaskConfig(name="cola", metric="matthews").main_metric == "matthews"


def test_lengths_are_sorted_up_to_max_length() -> None:
    assert TrainConfig().lengths == (32, 64, 96, 128)
    assert TrainConfig(max_length=4).lengths == (1, 2, 3, 4)
    assert TrainConfig(buckets=(100, 16, 16)).lengths == (16, 100, 128)


def test_bottleneck_sizes() -> None:
    assert AdapterConfig().bottleneck_size(768) == 48
    assert AdapterConfig(reduction_factor=0.5).bottleneck_size(768) == 1536
    assert AdapterConfig(reduction_factor=1000.0).bottleneck_size(768) == 1
    assert AdapterConfig(size=7).bottleneck_size(768) == 7


def test_slots_are_in_forward_order() -> None:
    assert AdapterConfig().slots == ("ffn",)
    assert AdapterConfig(position="attention").slots == ("attention",)
    assert ADAPTER_PRESETS["houlsby"].slots == ("attention", "ffn")


# Building configs from nested mappings.

MINIMAL = {"task": {"name": "rte"}}


def test_defaults_come_from_the_dataclasses() -> None:
    assert from_dict(ExperimentConfig, MINIMAL) == ExperimentConfig(task=TASK)


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        ({"tsak": {}}, ("config.tsak ", 'Did you mean "task"?', "recipe, trunk, trunk_dtype, task,")),
        ({"train": {"learn_rate": 1}}, ("config.train.learn_rate ", 'Did you mean "learning_rate"?')),
        ({"qqqqq": 1}, ("config.qqqqq ", "config takes: recipe,")),
        ({"task": {}}, ("config.task.name is missing",)),
        ({"task": "rte"}, ("config.task is 'rte';", "mapping")),
        ({"seed": "1"}, ("config.seed is '1';", "type int.")),
        ({"seed": 1.0}, ("config.seed is 1.0;", "type int.")),
        ({"seed": True}, ("config.seed is True;", "type int.")),
        ({"seed": None}, ("config.seed is None;", "type int.")),
        ({"scan_layers": 1}, ("config.scan_layers is 1;", "type bool.")),
        ({"train": {"learning_rate": "1e-4"}}, ("config.train.learning_rate is '1e-4';", "type float.")),
        ({"train": {"learning_rate": False}}, ("config.train.learning_rate is False;", "type float.")),
        ({"train": {"buckets": "8"}}, ("config.train.buckets is '8';", "list")),
        ({"train": {"buckets": {"8": 8}}}, ("config.train.buckets is {'8': 8};", "list")),
        ({"train": {"buckets": 8}}, ("config.train.buckets is 8;", "list")),
        ({"train": {"buckets": [8, "9"]}}, ("config.train.buckets[1] is '9';", "type int.")),
        ({"adapter": {"size": 1.5}}, ("config.adapter.size is 1.5;", "type int.")),
        ({"sources": [{"task": {"nam": 1}}]}, ("config.sources[0].task.nam ", 'Did you mean "name"?')),
        (
            {"partition": "adaptor"},
            (
                'config.partition is "adaptor";',
                "adapter, adapter+trunk, fusion, head, full, layernorm, top_k. ",
                'Did you mean "adapter"?',
            ),
        ),
        (
            {"task": {"name": "a", "metric": "acuracy"}},
            (
                'config.task.metric is "acuracy";',
                "accuracy, f1, macro_f1, matthews, pearson, spearman, exact_match, micro_f1, average_precision. ",
                'Did you mean "accuracy"?',
            ),
        ),
        ({"adapter": {"activation": ["relu"]}}, ("config.adapter.activation is \"['relu']\";", "relu,")),
    ],
)
def test_errors_name_the_field_and_the_allowed_values(values: dict[str, Any], facts: tuple[str, ...]) -> None:
    assert has_facts(message(from_dict, ExperimentConfig, {**MINIMAL, **values}), *facts)


def test_integers_are_accepted_as_floats() -> None:
    rate = from_dict(TrainConfig, {"learning_rate": 1}).learning_rate
    assert rate == 1.0
    assert isinstance(rate, float)


def test_errors_start_with_the_name_given_by_the_caller() -> None:
    assert message(from_dict, HeadConfig, {"x": 1}, 'the config of head "rte"').startswith('the config of head "rte".x')


# Converting configs to mappings.


def optional(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


positive = st.floats(1e-6, 1e6)
rates = st.floats(0, 0.99)
adapters = st.builds(
    AdapterConfig,
    position=st.sampled_from(["attention", "ffn", "both"]),
    pretrained_layer_norm=st.sampled_from(["before", "both"]),
    residual_from=st.sampled_from(["sublayer", "sum", "input"]),
    reduction_factor=positive,
    size=optional(st.integers(1, 99)),
    layer_norms=st.booleans(),
    layers=optional(st.lists(st.integers(0, 30), min_size=1, unique=True).map(tuple)),
)
trains = st.builds(
    TrainConfig,
    learning_rate=positive,
    buckets=st.lists(st.integers(1, 128), max_size=3).map(tuple),
    warmup=rates,
    dropout=st.booleans(),
)
tasks = st.builds(
    TaskConfig,
    name=st.sampled_from(["rte", "cb", "größe"]),
    labels=st.lists(st.text(min_size=1).filter(str.strip), max_size=3, unique=True).map(tuple),
    metric=st.sampled_from(["", "f1"]),
)
modules = st.sampled_from(
    [PalConfig(size=24, layers=(1, 0)), LhucConfig(), TopFfnConfig(hidden_sizes=(3, 4)), *ADAPTER_PRESETS.values()]
)
sources = st.builds(SourceConfig, task=tasks, train=trains)
kept = st.sampled_from([None, (((0, 1), (2, 1)),)])
recipes = st.one_of(
    st.fixed_dictionaries({"task": tasks}),
    st.fixed_dictionaries(
        {
            "recipe": st.just("fusion"),
            "task": tasks,
            "sources": st.lists(sources, min_size=1, max_size=3, unique_by=lambda source: source.task.name).map(tuple),
        }
    ),
    st.fixed_dictionaries(
        {
            "recipe": st.sampled_from(["multitask", "sequential"]),
            "tasks": st.lists(tasks, min_size=1, max_size=3, unique_by=lambda task: task.name).map(tuple),
            "sampling": st.builds(SamplingConfig, steps_per_epoch=st.integers(1, 9)),
        }
    ),
)
experiments = st.builds(
    lambda recipe, **values: ExperimentConfig(**recipe, **values),
    recipe=recipes,
    seed=st.integers(0, 2**32 - 1),
    adapter=st.one_of(adapters, modules),
    fusion=st.builds(FusionConfig, dropout=optional(rates), temperature=positive, kept=kept),
    head=st.builds(HeadConfig, pooler=st.sampled_from(["head", "trunk"]), dropout=optional(rates)),
    train=trains,
)


@given(experiments)
def test_from_dict_inverts_to_dict_through_json(config: ExperimentConfig) -> None:
    assert from_dict(ExperimentConfig, json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize("name", ADAPTER_PRESETS)
def test_presets_round_trip_through_json(name: str) -> None:
    preset = ADAPTER_PRESETS[name]
    assert from_dict(Adapter, json.loads(json.dumps(to_dict(preset)))) == preset


# Values passed from Python.


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TaskConfig(name="t", kind="clasification"), ("task.kind", "clasification", 'mean "classification"?')),
        (lambda: TaskConfig(name="t", metric="acuracy"), ("task.metric", 'mean "accuracy"?')),
        (lambda: TaskConfig(name=3), ("task.name", "3", "str")),
        (lambda: TaskConfig(name="t", labels="ab"), ("task.labels", "'ab'", "list")),
        (lambda: TaskConfig(name="t", labels={"a", "b"}), ("task.labels", "list")),
        (lambda: FusionMethod(adapters={"a", "b"}, store="s"), ("method.adapters", "list")),
        (lambda: FusionMethod(adapters=None, store="s"), ("method.adapters", "None", "list")),
        (lambda: FusionMethod(adapters="ab", store="s"), ("method.adapters", "'ab'", "list")),
        (lambda: TaskConfig(name="t", scale="5"), ("task.scale", "'5'", "float")),
        (lambda: TaskConfig(name="t", span=3), ("task.span", "3")),
        (lambda: TrainConfig(max_steps=1e23), ("train.max_steps", "1e+23", "int")),
        (lambda: TrainConfig(max_steps=10**23), ("train.max_steps", str(10**23), str(2**31 - 1))),
        (lambda: TrainConfig(batch_size=True), ("train.batch_size", "True", "int")),
        (lambda: TrainConfig(dropout=1), ("train.dropout", "1", "bool")),
        (lambda: TrainConfig(learning_rate="1e-3"), ("train.learning_rate", "float")),
        (lambda: TrainConfig(learning_rate=10**400), ("train.learning_rate", "too large")),
        (lambda: TrainConfig(batch_size=10**5000), ("train.batch_size", str(2**31 - 1))),
        (lambda: TrainConfig(buckets=(8, 16.5)), ("train.buckets[1]", "16.5")),
        (lambda: TrainConfig(prng="philox"), ("train.prng", "philox", "rbg, threefry2x32")),
        (lambda: SpanConfig(doc_stride=1.5), ("span.doc_stride", "1.5", "int")),
        (lambda: SamplingConfig(sampler="anealed"), ("sampling.sampler", 'mean "annealed"?')),
        (lambda: MeshConfig(fsdp="2"), ("mesh.fsdp", "'2'", "int")),
        (lambda: SourceConfig(task="rte"), ("source.task", "'rte'")),
        (lambda: AdapterConfig(activation="rellu"), ("adapter.activation", 'mean "relu"?')),
        (lambda: AdapterConfig(size=100_000_000_000), ("adapter.size", "100000000000", str(2**31 - 1))),
        (lambda: AdapterConfig(layers=(0, 10**10)), ("adapter.layers[1]", str(10**10))),
        (lambda: PalConfig(num_heads="12"), ("adapter.num_heads", "'12'")),
        (lambda: TopFfnConfig(hidden_sizes=3), ("adapter.hidden_sizes", "3", "list")),
        (lambda: FusionConfig(value="no"), ("fusion.value", "'no'", "bool")),
        (lambda: HeadConfig(pooler="haed"), ("head.pooler", 'mean "head"?')),
        (lambda: ExperimentConfig(task=TASK, adapter="pfeiffer"), ("config.adapter", "'pfeiffer'")),
        (lambda: ExperimentConfig(task=TASK, train=TaskConfig(name="t")), ("config.train", "TaskConfig")),
        (lambda: ExperimentConfig(task=TASK, seed=2**32), ("seed", str(2**32), str(2**32 - 1))),
        (lambda: ExperimentConfig(task=TASK, seed=-1), ("seed", "-1")),
        (lambda: ExperimentConfig(task=TASK, seed=int("9" * 23)), ("seed", "9" * 23)),
    ],
)
def test_values_from_python_are_checked_like_config_files(make: Any, words: tuple[str, ...]) -> None:
    told = message(make)
    for word in words:
        assert word in told


def test_values_from_python_are_converted_like_a_config_file() -> None:
    config = TrainConfig(epochs=3, batch_size=np.int64(8), buckets=[16, 32], learning_rate=np.float32(0.5))
    assert config == TrainConfig(epochs=3.0, batch_size=8, buckets=(16, 32), learning_rate=0.5)
    assert [type(value) for value in (config.epochs, config.batch_size, config.buckets)] == [float, int, tuple]
    assert hash(config) == hash(TrainConfig(epochs=3.0, batch_size=8, buckets=(16, 32), learning_rate=0.5))
    task = TaskConfig(name="t", kind="span", span={"doc_stride": 64})
    assert task.span == SpanConfig(doc_stride=64)
    assert has_facts(message(TaskConfig, name="t", kind="span", span={"stride": 64}), "task.span.stride ", "known")


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_accepted_seeds_have_distinct_keys(impl: str) -> None:
    keys = {}
    for seed in (0, 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1):
        check_seed(seed)
        keys[jax.random.key_data(jax.random.key(seed, impl=impl)).tobytes()] = seed
    assert len(keys) == 6


@pytest.mark.parametrize("seed", [-1, 2**32, 2**63, pytest.param(10**5000, id="huge"), 1.0, True, "0", None])
def test_seeds_without_a_unique_key_are_refused(seed: Any) -> None:
    assert str(2**32 - 1) in message(check_seed, seed)


@pytest.mark.parametrize(
    ("epochs", "steps_per_epoch", "expected"),
    [(0.07, 100, 7), (1.1, 10, 11), (0.55, 100, 55), (0.07, 101, 8), (1e-7, 10, 1), (3, 5, 15)],
)
def test_number_of_steps_is_the_decimal_product_rounded_up(epochs: float, steps_per_epoch: int, expected: int) -> None:
    assert TrainConfig(epochs=epochs).num_steps(steps_per_epoch) == expected


def test_step_count_above_the_device_counter_is_refused() -> None:
    assert TrainConfig(epochs=2.5).num_steps(3) == 8
    assert TrainConfig(epochs=2.5, max_steps=5).num_steps(3) == 5
    assert TrainConfig(epochs=0.0).num_steps(3) == 1
    for epochs in (1e12, 1e300, 1.7e308):
        assert str(epochs) in message(TrainConfig(epochs=epochs).num_steps, 3)


@pytest.mark.parametrize("partition", ["adaptor", "", None, 3])
def test_unknown_partitions_are_refused(partition: Any) -> None:
    assert "adapter+trunk" in message(check_partition, partition, AdapterConfig())


@pytest.mark.parametrize("adapter", [AdapterConfig(layer_norms=True), {"kind": "bottleneck", "layer_norms": True}])
def test_layer_norms_cannot_be_trained_twice(adapter: Any) -> None:
    with pytest.raises(UserError, match="layer_norms"):
        Method(partition="adapter+trunk", adapter=adapter)


def test_preset_name_in_place_of_an_adapter_config_is_explained() -> None:
    with pytest.raises(UserError) as refused:
        Method(adapter="lora")  # type: ignore[arg-type]
    assert has_facts(str(refused.value), "'lora'", 'ADAPTER_PRESETS["lora"]')
    with pytest.raises(UserError, match='Did you mean "houlsby"'):
        Method(adapter="houlsbi")  # type: ignore[arg-type]
