"""Processes for tests, forked from a server that has already done the slow imports."""

import multiprocessing

# The server imports these modules before it forks. The imports start no JAX backend, and no threads except OpenBLAS's,
# which OpenBLAS stops before a fork.
IMPORTS = (
    "afjax.cli.main",
    "afjax.train.experiment",
    "afjax.train.multitask",
    "ml_collections",
    "orbax.checkpoint",
    "pytest",
    "sklearn.metrics",
    "transformers",
)


def fork_server() -> multiprocessing.context.ForkServerContext:
    """Returns a context whose ``Process`` is forked from the server.

    All tests of a pytest process share one server.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTS))
    return context
