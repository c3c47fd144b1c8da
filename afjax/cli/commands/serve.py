"""``afjax serve``: serves predictions over HTTP."""

import argparse
from typing import Any

from afjax.cli.parsers import add_command, add_store_flag, add_trunk_flag

EXAMPLE = """\
examples:
  afjax serve --store=runs/quickstart/store
  afjax serve --store=store --adapters=reviews,topics --port=8080 --resident=64
  curl -s http://127.0.0.1:8000/predict -H 'Content-Type: application/json' \\
      -d '{"rows": [{"adapter": "reviews", "text": "A fine film."}]}'

This needs the extra "serve": pip install 'afjax[serve]'. The page / is a form for trying adapters on a text. POST
/predict predicts rows, each with the adapter, fusion or head that it names. With --predict_all, POST /predict_all
predicts each row with several or all adapters. GET /adapters lists the adapters, and PUT and DELETE /adapters/NAME add
and remove one. GET /healthz and GET /metrics (Prometheus) are for monitoring. The server has no authentication and only
listens on this machine by default. If you change --host, use an authenticating proxy."""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(commands, "serve", "serve predictions over HTTP", EXAMPLE, run=_run)
    add_store_flag(parser)
    add_trunk_flag(parser)
    parser.add_argument(
        "--adapters",
        default="",
        metavar="NAME,NAME",
        help="adapters, fusions and heads to serve (all adapters and fusions that have a head)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on, 0 for a free one (8000)")
    parser.add_argument(
        "--allowed_hosts",
        default="",
        metavar="NAME,NAME",
        help="allowed names in the Host header (localhost, 127.0.0.1, ::1 and --host)",
    )
    parser.add_argument(
        "--resident",
        type=int,
        help="maximum number of adapters of each form on the device; the rest stay in host memory (all)",
    )
    parser.add_argument("--batch_sizes", default="1,8,32", metavar="N,N", help="batch sizes to compile (1,8,32)")
    parser.add_argument(
        "--predict_all", action="store_true", help="enable POST /predict_all, which takes longer to compile"
    )
    parser.add_argument(
        "--max_wait_ms",
        type=float,
        default=2.0,
        help="maximum milliseconds that a row waits for rows of other requests (2)",
    )
    parser.add_argument(
        "--max_queue",
        type=int,
        default=1024,
        help="maximum number of sequences in each queue; further requests get status 429 (1024)",
    )


def _run(arguments: argparse.Namespace) -> None:
    from afjax.cli.server import serve

    serve(arguments)
