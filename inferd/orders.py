"""What inferd does at a command (`shared.control`), on the dispatcher's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from inferd.dispatcher import Dispatcher
from inferd.progress import Lane
from shared.config import InferConfig, ModelConfig, Suite, default_max_workers
from shared.control import Refused
from shared.errors import UsageError
from shared.heartbeat import HeartbeatWriter
from shared.records import Command
from shared.reload import INFER_FIXED, Change, merge


class Orders:
    """options: what wins over the suite's [infer]. check_limits: raises UsageError where so many calls can't be."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        suite: Suite,
        options: dict[str, Any],
        beat: HeartbeatWriter,
        check_limits: Callable[[Sequence[Lane]], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._options = options
        self._beat = beat
        self._check_limits = check_limits
        self._config = msgspec.structs.replace(suite.infer, **options)
        self._limits = {model.abbr: ceiling(model, self._config) for model in suite.models}

    def obey(self, command: Command) -> str:
        """What was done. Raises Refused."""
        match command.command:
            case "pause":
                return self._pause(command)
            case "resume":
                return self._resume()
            case "cancel":
                by = f"cancelled by {command.by}" + (f": {command.reason}" if command.reason else "")
                return self._cancel(command, by)
            case "retune":
                if command.max_workers is None:
                    raise Refused("no max_workers was given")
                return self._retune(command.model, command.max_workers)
            case other:
                raise Refused(f"inferd knows no command {other}")

    def apply(self, suite: Suite) -> Change:
        """Take over what changed in the suite since it was read last. Raises Refused; then nothing has changed."""
        wanted = msgspec.structs.replace(suite.infer, **self._options)
        config, change = merge(self._config, wanted, INFER_FIXED)
        limits = {model.abbr: ceiling(model, config) for model in suite.models}
        moved = {abbr: limit for abbr, limit in limits.items() if limit != self._limits.get(abbr)}
        self._set_limits(moved)
        self._config, self._limits = config, limits
        self._dispatcher.reconfigure(config)
        self._beat.set_interval(config.heartbeat_interval)
        told = {name: value for name, value in change.changed.items() if name != "max_workers"}
        told |= {f"max_workers of {abbr}": limit for abbr, limit in moved.items()}
        return Change(told, change.restart)

    def _pause(self, command: Command) -> str:
        if self._dispatcher.paused:
            raise Refused("it is paused already")
        self._dispatcher.paused = True
        self._beat.set_state("paused", f"paused by {command.by}")
        return "nothing new is sent"

    def _resume(self) -> str:
        if not self._dispatcher.paused:
            raise Refused("it isn't paused")
        self._dispatcher.paused = False
        self._beat.set_state("running")
        return "sends again"

    def _cancel(self, command: Command, reason: str) -> str:
        if not self._dispatcher.cancel(command.model, command.dataset, reason):
            raise Refused("nothing of this pair is left to do here")
        return "asks nothing more of it; what is in flight ends and is kept"

    def _retune(self, model: str, limit: int) -> str:
        names = [lane.model.abbr for lane in self._dispatcher.lanes]
        if model and model not in names:
            raise Refused(f"no such model here: {model}")
        chosen = [model] if model else names
        before = {lane.model.abbr: lane.permits.limit for lane in self._dispatcher.lanes}
        if all(before[name] == limit for name in chosen):
            raise Refused(f"max_workers is {limit} already")
        self._set_limits(dict.fromkeys(chosen, limit))
        return "max_workers " + ", ".join(f"of {name}: {before[name]} -> {limit}" for name in chosen)

    def _set_limits(self, limits: dict[str, int]) -> None:
        lanes = [lane for lane in self._dispatcher.lanes if lane.model.abbr in limits]
        before = [lane.permits.limit for lane in lanes]
        for lane in lanes:
            lane.permits.limit = limits[lane.model.abbr]
        try:
            self._check_limits(self._dispatcher.lanes)
        except UsageError as error:
            for lane, limit in zip(lanes, before, strict=True):
                lane.permits.limit = limit
            raise Refused(str(error)) from None
        for lane in lanes:
            lane.workers.resize(lane.permits.limit)


def ceiling(model: ModelConfig, config: InferConfig) -> int:
    """How many requests of a model may be in flight, by the suite."""
    return model.max_workers or config.max_workers or default_max_workers()
