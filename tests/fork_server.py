"""Processes for tests, forked from a server that has already done the slow imports."""

import multiprocessing

# The imports of all these processes. They start no JAX backend and no threads except OpenBLAS's,
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
    """Returns the context whose ``Process`` forks; all tests of a pytest process share one server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTS))
    return context
