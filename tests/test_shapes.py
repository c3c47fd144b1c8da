"""Public functions annotate the shapes of their arrays, and tests check these annotations."""

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError
from shape_checker import MODULES, has_array_type

import afjax
from afjax.adapters.kinds import init_adapter, layer_params
from afjax.fusion.textbook import textbook_fusion
from afjax.nn.attention import attend_to_tokens
from afjax.nn.layers import dense, gelu, layer_norm
from afjax.nn.pooling import pool
from afjax.tasks.class_loss import weighted_cross_entropy
from afjax.trees import AnyArray, Tree
from afjax.trunk.config import TrunkConfig
from afjax.trunk.slots import Sublayer

X, MASK = jnp.ones((2, 5, 8)), jnp.ones((2, 5), bool)
SHORT_MASK = MASK[:, :4]


def all_modules() -> list[ModuleType]:
    """Returns the modules in ``MODULES``, including modules in packages."""
    modules = [importlib.import_module(name) for name in MODULES]
    for package in list(modules):
        for info in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{package.__name__}."):
            modules.append(importlib.import_module(info.name))
    return modules


def signatures(module: ModuleType) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the name and annotations of each public function, method and dataclass in a module."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value):
            if dataclasses.is_dataclass(value):
                yield name, vars(value).get("__annotations__", {})
            methods = {method: vars(value)[method] for method in vars(value)}
        else:
            methods = {"": value}
        for method, function in methods.items():
            function = inspect.unwrap(function.fget if isinstance(function, property) else function)
            if inspect.isfunction(function) and (method == "__call__" or not method.startswith("_")):
                yield f"{name}.{method}".strip("."), function.__annotations__


def has_bare_array(annotation: Any) -> bool:
    """Whether an annotation contains an array without a shape.

    ``Mapping[str, AnyArray]`` is allowed, because the arrays of a batch have different shapes. The annotations inside a
    ``Callable`` are not checked.
    """
    origin = get_origin(annotation)
    if has_array_type(annotation) and not get_args(annotation):
        return False
    if annotation in (jax.Array, np.ndarray):
        return True
    if origin is Callable or annotation == Mapping[str, AnyArray]:
        return False
    return any(map(has_bare_array, get_args(annotation)))


def test_every_array_of_a_public_function_has_a_shape() -> None:
    annotations = {
        f"{module.__name__}.{function}: {argument}": annotation
        for module in all_modules()
        for function, hints in signatures(module)
        for argument, annotation in hints.items()
    }
    assert [name for name, annotation in annotations.items() if has_bare_array(annotation)] == []
    assert sum(map(has_array_type, annotations.values())) > 200


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (jax.Array, True),
        (np.ndarray | None, True),
        (tuple[int, jax.Array], True),
        (dict[str, np.ndarray], True),
        (Mapping[str, AnyArray], False),
        (Callable[[jax.Array], jax.Array], False),
        (inspect.unwrap(pool).__annotations__["mask"], False),
        (str | None, False),
    ],
)
def test_bare_arrays_are_found(annotation: Any, expected: bool) -> None:
    assert has_bare_array(annotation) == expected


@pytest.mark.parametrize("module", all_modules(), ids=lambda module: module.__name__)
def test_module_is_checked(module: ModuleType) -> None:
    # The tests import these modules with jaxtyping's import hook (see shape_checker.py).
    assert type(module.__loader__).__module__.startswith("jaxtyping")


def attend(mask: Any) -> Any:
    scores, values = jnp.ones((2, 2, 5, 5)), jnp.ones((2, 2, 5, 4))
    return attend_to_tokens(scores, values, mask=mask, head_size=4, dropout_rate=0.0, key=None)


def run_pal(mask: Any) -> Any:
    config = afjax.PalConfig(size=4, num_heads=2)
    sizes = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}
    trunk = TrunkConfig(family="bert", vocab_size=30, max_positions=16, type_vocab_size=2, **sizes)
    params = layer_params(init_adapter(jax.random.key(0), config, trunk), config, 0)
    return afjax.pal(params, X, mask, config)


def weighted_loss(labels: Any) -> Any:
    return weighted_cross_entropy(jnp.ones((2, 3)), labels, jnp.ones(2), np.ones(3), 0.0)


@pytest.mark.parametrize(
    ("function", "right", "wrong", "name"),
    [
        (attend, MASK, SHORT_MASK, "mask"),
        (attend, MASK, MASK.astype(jnp.int32), "mask"),
        (run_pal, np.ones((2, 5), np.int32), SHORT_MASK, "mask"),
        (lambda mask: pool(X, mask, "mean"), np.asarray(MASK), MASK[:1], "mask"),
        (lambda x: dense({"kernel": jnp.ones((8, 3))}, x), X[0, 0], jnp.ones((), jnp.float32), "x"),
        (gelu, X.astype(jnp.bfloat16), MASK, "x"),
        (weighted_loss, jnp.array([0, 2]), jnp.array([0, 1, 2]), "labels"),
        (
            lambda x: Sublayer(output=x, residual=X, norm=gelu, layer_input=X, mask=MASK, attention_dropout=0.0),
            X,
            X[:, :1],
            "residual",
        ),
    ],
)
def test_wrong_shapes_and_dtypes_are_refused(function: Callable[[Any], Any], right: Any, wrong: Any, name: str) -> None:
    function(right)
    for checked in (function, jax.jit(function)):
        with pytest.raises(TypeCheckError, match=f"parameter '{name}'"):
            checked(wrong)


def fusion_params() -> Tree:
    square = {"kernel": np.eye(8, dtype=np.float32), "bias": np.zeros(8, np.float32)}
    return {"query": square, "key": square, "value": {"kernel": square["kernel"]}}


def test_results_are_checked() -> None:
    # A tree's leaves are not annotated, so only the result has the wrong shape.
    params = fusion_params()
    params["value"] = {"kernel": jnp.ones((8, 4))}
    with pytest.raises(TypeCheckError, match="return value"):
        textbook_fusion(params, jnp.ones((2, 3, 8)), jnp.ones((2, 8)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("axes", [(), (2,), (2, 3)])
@pytest.mark.parametrize("make", [np.ones, jnp.ones])
def test_arrays_of_all_kinds_are_accepted(make: Any, axes: tuple[int, ...], dtype: str) -> None:
    x, outputs = make((*axes, 8), jnp.dtype(dtype)), make((*axes, 3, 8), jnp.dtype(dtype))
    config = afjax.AdapterConfig(size=2)
    down = {"kernel": np.ones((8, 2), np.float32), "bias": np.zeros(2, np.float32)}
    adapter = {"down": down, "up": {"kernel": np.ones((2, 8), np.float32), "bias": np.zeros(8, np.float32)}}
    assert afjax.bottleneck(adapter, x, config).shape == x.shape
    for fused, attention in (
        afjax.fuse(fusion_params(), [adapter] * 3, x, [config] * 3),
        textbook_fusion(fusion_params(), outputs, x, key=jax.random.PRNGKey(0), dropout_rate=0.5),
    ):
        assert (fused.shape, attention.shape) == (x.shape, (*axes, 3))
        assert isinstance(fused, jax.Array)
        assert isinstance(attention, jax.Array)


def test_stacked_layers_are_accepted() -> None:
    norms = {"scale": jnp.ones((4, 8)), "bias": jnp.zeros((4, 8))}
    normalized = jax.vmap(lambda params, x: layer_norm(params, x, 1e-6))(norms, jnp.ones((4, 2, 5, 8)))
    assert normalized.shape == (4, 2, 5, 8)
