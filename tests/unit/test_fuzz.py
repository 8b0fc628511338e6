"""Every reader of a file that others write, given damaged ones: a short form of `scripts/fuzz`."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.fuzz import run
from tests.fuzz.mutations import inputs
from tests.fuzz.readers import READERS, Reader


def test_no_damaged_file_crashes_a_reader_or_holds_it_up(tmp_path: Path) -> None:
    """2,000 inputs: each is read, or refused with an error of ours."""
    found = run.fuzz(2000, tmp_path)
    assert found.count >= 2000
    assert not found.faults


def test_a_sound_file_is_read(tmp_path: Path) -> None:
    """Or the mutations would all be of what is refused at its first byte."""
    for reader in READERS:
        path = tmp_path / reader.name / reader.path
        path.parent.mkdir(parents=True)
        path.write_bytes(reader.seeds[0])
        reader.read(tmp_path / reader.name)


def test_faults_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that crashes on a byte, and one that hangs: both are told, with the input."""

    def crash(folder: Path) -> None:
        json.loads((folder / "f").read_bytes())

    def hang(folder: Path) -> None:
        while (folder / "f").exists():
            pass

    readers = (Reader("crash", (b"{}",), "f", crash), Reader("hang", (b"{}",), "f", hang))
    monkeypatch.setattr(run, "READERS", readers)
    monkeypatch.setattr(run, "SECONDS", 0.05)
    found = run.fuzz(10, tmp_path)
    assert any(fault.startswith("crash: JSONDecodeError") for fault in found.faults)
    assert any(fault.startswith("hang: Hung") for fault in found.faults)


def test_the_same_seed_gives_the_same_inputs() -> None:
    made = [[inputs(READERS[0].seeds, rng) for _ in range(50)] for rng in (random.Random(3), random.Random(3))]
    assert made[0] == made[1]
    assert len(set(made[0])) > 25
