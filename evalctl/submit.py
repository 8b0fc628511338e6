"""Putting a suite into a work_dir: checked, frozen, planned. Starts nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from evald.faults import dataset_faults, task_fault
from inferd.adapters import cannot, model_faults
from inferd.local_model import with_identities
from shared import claims
from shared.atomic import make_folder, remove, replace
from shared.clock import SystemClock
from shared.config import ModelConfig, SelectConfig, Suite
from shared.errors import UsageError
from shared.layout import WorkDir
from shared.plan import make_plan
from shared.records import Plan, RequestType
from shared.suite import freeze, parse_suite, read_suite, with_paths, with_selection

ALL = SelectConfig()
PATIENCE = 10.0  # seconds to wait for somebody else's planning


def check(
    path: Path,
    paths: Mapping[str, Path] | None = None,
    select: SelectConfig = ALL,
    *,
    env: Mapping[str, str] = os.environ,
    check_env: bool = True,
) -> tuple[Suite, str]:
    """The suite in `path` and its text, frozen; or all that can be known to be wrong with it, its adapters and metrics
    included, in one SuiteError.

    paths: files to read datasets from instead of their own, by abbr. select: the part of the suite that is meant.
    """
    text: bytes | str = read_suite(path)
    if paths:
        text = with_paths(text, paths)
    if select != ALL:
        text = with_selection(text, select)
    folder = path.absolute().parent
    env_seen = env if check_env else None
    suite = parse_suite(text, str(path), folder, env_seen, model_faults=model_faults, dataset_faults=dataset_faults)
    return suite, freeze(text, folder)


def submit(
    path: Path,
    work: WorkDir,
    paths: Mapping[str, Path] | None = None,
    select: SelectConfig = ALL,
    *,
    check_env: bool = True,
) -> Plan:
    """Freeze the suite into the work_dir and plan it. What an earlier suite left there is reused where it still fits.

    Raises SuiteError; then the work_dir is as it was. Raises UsageError when an inferd is at work there.
    """
    suite, text = check(path, paths, select, check_env=check_env)
    return put(work, with_identities(suite), text, cannot)


def put(work: WorkDir, suite: Suite, text: str, cannot: Callable[[ModelConfig, RequestType], str | None]) -> Plan:
    """Plan the suite, which is sound, in the work_dir, and freeze its text there. cannot: see `make_plan`.

    Raises SuiteError and UsageError as `submit` does.
    """
    make_folder(work.root)
    # An inferd that starts meanwhile waits for this claim, and reads suite and plan under it.
    claim = claims.take(work.plan_claim, timeout=PATIENCE)
    if claim is None:
        raise UsageError(f"{work}: {claims.owner(work.plan_claim)} is planning here: try again when it has ended")
    with claim:
        for path in work.inferd_claims():
            if claims.held(path):
                raise UsageError(
                    f"{work}: inferd is at work here ({claims.owner(path)}): "
                    f"watch it with `evalctl status -w {work} --watch`, or stop it before a suite is submitted"
                )
        plan = make_plan(work, suite, text.encode(), SystemClock(), fault=task_fault, cannot=cannot)
        replace(work.suite, text.encode())
        for beat in work.infer_heartbeats():
            remove(beat)  # of an inferd that has ended: whoever waits for the next one shall not take it for that one's
    return plan
