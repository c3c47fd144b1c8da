"""``afjax serve``: answers HTTP requests."""

import argparse
from typing import Any

from afjax.cli.parsers import add_command, add_trunk_flag

EXAMPLE = """\
examples:
  afjax serve --store=runs/quickstart/store
  afjax serve --store=store --adapters=reviews,topics --port=8080 --resident=64
  curl -s http://127.0.0.1:8000/predict -H 'Content-Type: application/json' \\
      -d '{"rows": [{"adapter": "reviews", "text": "A fine film."}]}'

Needs the extra "serve": pip install 'afjax[serve]'. The page / tries adapters on a text. POST /predict predicts rows,
each with the adapter, fusion or head that it names. With --predict_all, POST /predict_all predicts each row with
several of them, or with all. GET /adapters lists them, and PUT and DELETE /adapters/NAME add and remove one.
GET /healthz and GET /metrics (Prometheus) are for monitoring. The server has no authentication. It only listens on this
machine, unless --host says otherwise: then use a proxy with authentication."""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(commands, "serve", "answer HTTP requests", EXAMPLE, run=_run)
    parser.add_argument("--store", required=True, help="the store's folder, or gs://...")
    add_trunk_flag(parser)
    parser.add_argument(
        "--adapters",
        default="",
        metavar="NAME,NAME",
        help="adapters, fusions and heads to serve (all adapters and fusions with a head)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on, 0 for a free one (8000)")
    parser.add_argument(
        "--allowed_hosts",
        default="",
        metavar="NAME,NAME",
        help="names in the Host header (localhost, 127.0.0.1, ::1 and --host)",
    )
    parser.add_argument("--resident", type=int, help="adapters on the device at once; others wait in memory (all)")
    parser.add_argument("--batch_sizes", default="1,8,32", metavar="N,N", help="rows that a batch can have (1,8,32)")
    parser.add_argument(
        "--predict_all", action="store_true", help="answer POST /predict_all; this takes longer to compile"
    )
    parser.add_argument("--max_wait_ms", type=float, default=2.0, help="longest wait for rows of other requests (2)")
    parser.add_argument(
        "--max_queue", type=int, default=1024, help="rows that may wait; more get the status 429 (1024)"
    )


def _run(arguments: argparse.Namespace) -> int:
    from afjax.cli.server import serve

    serve(arguments)
    return 0
