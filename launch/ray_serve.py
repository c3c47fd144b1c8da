"""Serves the adapters of a store with Ray Serve, on the machines of a cluster.

    pip install 'afjax[serve]' 'ray[serve]'
    serve run --app-dir=launch ray_serve:build store=runs/quickstart/store
    serve run --app-dir=launch ray_serve:build store=/shared/store trunk=bert-base-uncased replicas=4 gpus=1

The server listens on http://127.0.0.1:8000 and has the endpoints of `afjax serve`. Ray Serve starts the replicas,
restarts them if they fail, and distributes requests among them; each replica forms its own batches. All replicas read
the same store, so put it on a shared file system or in cloud storage. A replica loads all adapters and fusions at
startup. To serve adapters that were added later, run `serve run` or `serve deploy` again, which replaces the replicas.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict
from ray import serve

from afjax.cli.stored_model import load_recorded_trunk
from afjax.config.server import ServerConfig
from afjax.errors import UserError
from afjax.serve.app import make_app
from afjax.serve.loading import find_artifact, load_routed_model, names_with_heads


class Settings(BaseModel):
    """Command-line arguments, such as ``store=runs/quickstart/store``.

    Attributes:
      store: The store's folder.
      trunk: The trunk, as for ``afjax serve --trunk``. Defaults to the trunk recorded in the store.
      replicas: The number of replicas.
      gpus: The number of GPUs per replica.
      cpus: The number of CPU cores per replica.
      predict_all: Whether to serve ``POST /predict_all``, as with ``afjax serve --predict_all``.
      allowed_hosts: Additional host names to accept in the ``Host`` header, separated by commas.
    """

    model_config = ConfigDict(extra="forbid")

    store: str
    trunk: str = ""
    replicas: int = 1
    gpus: int = 0
    cpus: int = 1
    predict_all: bool = False
    allowed_hosts: str = ""


def build(settings: Settings) -> serve.Application:
    """Builds the application for ``serve run`` and ``serve deploy``."""

    # Replicas cannot import this file, so the function below uses only plain values and installed packages.
    store, trunk = settings.store, settings.trunk
    predict_all = settings.predict_all
    hosts = (*ServerConfig().allowed_hosts, *filter(None, settings.allowed_hosts.split(",")))

    def make_replica() -> Any:
        names, _ = names_with_heads(store)
        if not names:
            raise UserError(f"The store {store} has no adapter with a head; train one first.")
        loaded_trunk = load_recorded_trunk(trunk, store, *find_artifact(store, names[0]))
        model = load_routed_model(store, loaded_trunk, names)
        model.warm_up(all_tasks=predict_all, fusion_attention=True)
        return make_app(model, config=ServerConfig(predict_all=predict_all, allowed_hosts=hosts))

    deployment = serve.deployment(serve.ingress(make_replica)())
    resources = {"num_cpus": settings.cpus, "num_gpus": settings.gpus}
    return deployment.options(
        name="afjax",
        num_replicas=settings.replicas,
        ray_actor_options=resources,
        # Ray Serve queues further requests. A replica's queue holds this many rows, so some requests of many rows get
        # status 429, but a lower limit would make batches of small requests small.
        max_ongoing_requests=ServerConfig().max_queue,
    ).bind()
