"""Processes for tests, forked from a server that has done the imports, which take seconds."""

import multiprocessing

# What any of the processes needs. Importing these starts no thread and no JAX backend, so that a fork is safe.
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
    """The context whose ``Process`` forks; all tests of a pytest process share one server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTS))
    return context
