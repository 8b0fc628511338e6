"""`evalctl serve-model`: the embedded model alone, for suites of `type = "openai"` to ask."""

from __future__ import annotations

from typing import Any

import click

from inferd.local_model import serve
from shared.config import ModelConfig
from shared.daemon import StopSignal


def serve_until_stopped(options: dict[str, Any]) -> None:
    stop = StopSignal()
    stop.install()
    with serve(ModelConfig(abbr="local", type="local", options=options), stop=stop.event) as server:
        click.echo(f"serving on {server.base_url} until Ctrl-C; in a suite:")
        click.echo(f'[[models]]\nabbr = "local"\nbase_url = "{server.base_url}"\nmax_workers = 2')
        stop.event.wait()
