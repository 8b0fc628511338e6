"""Logs: JSON lines in a file under logs/, and a readable line on a terminal. Nothing else prints from a daemon."""

from __future__ import annotations

import logging
import logging.handlers
import sys
from pathlib import Path
from typing import Any

import structlog

from shared.atomic import make_folder

MAX_BYTES = 64 << 20
BACKUPS = 4


def configure(daemon: str, file: Path | None, *, run: str = "", verbose: bool = False, quiet: bool = False) -> Any:
    """Set up logging for one process and return its logger. file: where the JSON lines go; None for nowhere. run: the
    work_dir's name, in each of its lines.

    On stderr stand readable lines, from `info` up (`debug` with verbose, `warning` with quiet). A log file that can't
    be opened or written to never stops the daemon: what it says goes to stderr.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        # The filter comes first: a line that nobody reads costs next to nothing.
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    who = {"daemon": daemon, "run": run} if run else {"daemon": daemon}

    def of_others(_: object, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {**who, **line}

    root = logging.getLogger()
    root.handlers.clear()
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    console = logging.StreamHandler(sys.stderr)
    console.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, of_others],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0),
            ],
        )
    )
    if quiet:
        console.setLevel(logging.WARNING)
    root.addHandler(console)
    logging.raiseExceptions = False
    if file is not None:
        try:
            make_folder(file.parent)
            handler = logging.handlers.RotatingFileHandler(
                file, maxBytes=MAX_BYTES, backupCount=BACKUPS, encoding="utf-8", delay=True
            )
        except OSError as error:
            structlog.get_logger().warning("no log file", path=str(file), error=str(error))
        else:
            handler.setFormatter(
                structlog.stdlib.ProcessorFormatter(
                    foreign_pre_chain=[*shared, of_others],
                    processors=[
                        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                        structlog.processors.format_exc_info,
                        structlog.processors.JSONRenderer(),
                    ],
                )
            )
            root.addHandler(handler)
    for chatty in ("watchdog", "filelock"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return structlog.get_logger(daemon).bind(**who)
