"""Checkpoints that cannot be written."""

import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest
from etils import epath

from afjax.errors import UserError
from afjax.train.checkpoints import RunCheckpoints


@pytest.fixture
def limit_file_size() -> Iterator[Callable[[], None]]:
    """Returns a function that lets files grow to at most 1 MB, until the end of the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("error", [None, UserError("the loss is not finite"), KeyboardInterrupt()])
def test_failed_background_save_is_explained_and_does_not_replace_another_error(
    tmp_path: Path, limit_file_size: Callable[[], None], error: BaseException | None
) -> None:
    state = {"kernel": jax.random.normal(jax.random.key(0), (1500, 1000))}

    def save() -> None:
        with RunCheckpoints(epath.Path(tmp_path), {}) as checkpoints:
            checkpoints.save(1, state, state, {})
            checkpoints.wait()
            limit_file_size()
            checkpoints.save(2, state, state, {})
            if error:
                raise error

    with pytest.raises(type(error) if error else UserError) as raised:
        save()
    if error:
        assert raised.value is error
    else:
        assert str(tmp_path) in str(raised.value)
    assert not [thread for thread in threading.enumerate() if type(thread).__module__.startswith("orbax.")]
