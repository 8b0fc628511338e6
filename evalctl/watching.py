"""Looking at a work_dir again and again, and judging beats by their change between looks, on the looker's own clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import structs

from evalctl.state import AT_WORK, DaemonView, State, read_state
from shared.clock import Clock
from shared.layout import WorkDir

MISSED = 3  # intervals without a new beat after which something is amiss


class Beats:
    """When each daemon's beat was last seen to change. Pure: `now` is a monotonic time."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}  # by boot_id: seq, and when it was new

    def look(self, state: State, now: float) -> State:
        """The state with `beat_seconds` told of each daemon that beats."""
        inferd = tuple(self._timed(view, now) for view in state.inferd)
        return structs.replace(state, inferd=inferd, evald=self._timed(state.evald, now))

    def _timed(self, view: DaemonView, now: float) -> DaemonView:
        if not view.boot_id or view.state not in AT_WORK:
            return view
        seq, since = self._seen.get(view.boot_id, (None, now))
        if seq != view.seq:
            since = now
        self._seen[view.boot_id] = (view.seq, since)
        return structs.replace(view, beat_seconds=round(now - since, 3))


def is_silent(view: DaemonView) -> bool:
    """Whether it was watched long enough to say that it should have beaten by now."""
    return view.beat_seconds is not None and view.beat_seconds > MISSED * max(view.interval, 1.0)


def states(work: WorkDir, clock: Clock, wait: Callable[[], object], *, watch: bool) -> Iterator[State]:
    """What stands; with `watch` again and again, until both daemons have ended. A look that fails is passed over.

    Raises WorkDirError, and OSError when not even the first look succeeds.
    """
    beats = Beats()
    state: State | None = None
    while True:
        try:
            state = beats.look(read_state(work, clock.time()), clock.monotonic())
        except OSError:
            if state is None:
                raise
        else:
            yield state
            ended = all(view.state in ("finished", "aborted", "gone") for view in (*state.inferd, state.evald))
            if ended or not watch:
                return
        wait()
