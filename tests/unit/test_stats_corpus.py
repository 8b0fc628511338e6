"""Errors and p-values of corpus values: published ones for BLEU, and that resamples of two models are paired."""

from __future__ import annotations

import bz2
import json
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from evald.stats.corpus import CorpusBootstrap, compared, paired_p_values, spread
from evald.stats.draws import Floats, signs, unit_keys

BASE = "newstest2017.LIUM-NMT.4900.en-de"
BOOTSTRAP = "paired_bootstrap_p_vs_LIUM-NMT (Moses, BLEU tokenize=none, 2000 samples, tol 1e-2)"
RANDOMIZATION = "approx_randomization_p (multeval, BLEU / TER, tol 1e-2 on BLEU)"


def bleu_of(sums: Floats) -> Floats:
    """BLEU in [0, 1] of sums (answer length, target length, 4 counts of matches, 4 of n-grams)."""
    lengths = np.minimum(0.0, 1 - sums[..., 1] / sums[..., 0])
    return np.asarray(np.exp(lengths + np.log(sums[..., 2:6] / sums[..., 6:10]).mean(axis=-1)))


def test_published_p_values_of_wmt17(evaldata: Path) -> None:
    """All 15 systems against LIUM-NMT: Moses' paired bootstrap and multeval's approximate randomization of BLEU, to the
    tolerance that sacrebleu's own tests allow of them, 0.01. 10,000 draws, since 2,000 leave 0.01 of noise of their own
    at p = 0.25. (multeval's of TER: test_metrics_published.py.)
    """
    folder = evaldata / "sacrebleu_wmt17"
    expected = json.loads((folder / "EXPECTED.json").read_text("utf-8"))
    with bz2.open(folder / "wmt17_en_de_systems.jsonl.bz2", "rt", encoding="utf-8") as file:
        *systems, reference = [json.loads(line) for line in file]
    metric = BLEU(tokenize="none", force=True, references=[reference["lines"]])
    statistics = {
        system["name"]: np.array(metric._extract_corpus_statistics(system["lines"], None), np.float64)
        for system in systems
    }
    others = [name for name in statistics if name != BASE]
    assert len(others) == 15
    found = paired_p_values("wmt17", statistics[BASE], [statistics[name] for name in others], bleu_of, 10_000)
    assert {name: one.p_bootstrap for name, one in zip(others, found, strict=True)} == pytest.approx(
        expected[BOOTSTRAP], abs=1e-2
    )
    published = {name: p for name, (p, _) in expected[RANDOMIZATION].items()}
    assert {name: one.p_randomization for name, one in zip(others, found, strict=True)} == pytest.approx(
        published, abs=1e-2
    )


class Ratio:
    """A value that is no mean: matches over lengths."""

    last: tuple[float, ...] = ()

    def values(self, sums: Floats) -> Floats:
        return np.asarray(sums[:, 0] / sums[:, 1])


def rows(seed: int, n: int) -> Floats:
    keys = unit_keys(f"{seed}", np.arange(n, dtype=np.int64))
    length = 6.0 + (signs(keys, 4) > 0).sum(axis=0)
    matches = np.minimum(length, (signs(keys, 68, 0)[64:] > 0).sum(axis=0) + 1.0)
    return np.stack([matches, length], axis=1)


def resampled(table: Floats, clusters: list[str] | None = None, draws: int = 1000) -> Floats:
    ratio = Ratio()
    bootstrap = CorpusBootstrap("d", ratio, draws)
    for doc_id, row in enumerate(table.tolist()):
        ratio.last = tuple(row)
        bootstrap.add(doc_id, clusters[doc_id] if clusters else "")
    return bootstrap.values()


def test_the_error_of_a_ratio() -> None:
    """The bootstrap's standard error is that of the delta method; its interval holds the value."""
    table = rows(1, 500)
    told = spread(resampled(table))
    ratio = table[:, 0].sum() / table[:, 1].sum()
    residual = (table[:, 0] - ratio * table[:, 1]) / table[:, 1].mean()
    assert told is not None
    assert told.stderr == pytest.approx(residual.std(ddof=1) / np.sqrt(500), rel=0.1)
    assert told.interval is not None
    assert told.interval.low < ratio < told.interval.high


def test_resamples_of_two_models_are_paired() -> None:
    """Though each is resampled by itself: models that differ on few segments have a difference that is known far better
    than either value; and the same answers give the same resamples to the bit.
    """
    table = rows(1, 500)
    better = table.copy()
    better[:40, 0] = np.minimum(better[:40, 0] + 1, better[:40, 1])
    one, two = resampled(better), resampled(table)
    assert (resampled(table) == two).all()
    values = [part[:, 0].sum() / part[:, 1].sum() for part in (better, table)]
    found = compared(values[0], values[1], one, two, 500)
    own = spread(one)
    assert found is not None
    assert own is not None
    assert found.difference == values[0] - values[1]
    assert found.stderr is not None
    assert found.p_bootstrap is not None
    assert found.stderr < 0.6 * own.stderr
    assert found.interval is not None
    assert found.interval.low > 0
    assert found.p_bootstrap < 0.01
    back = compared(values[1], values[0], two, one, 500)
    assert back is not None
    assert (back.difference, back.p_bootstrap) == (-found.difference, found.p_bootstrap)


def test_clusters_and_repeats_are_drawn_as_a_whole() -> None:
    """Copies of segments as clusters are no surer than the segments themselves."""
    table = rows(2, 200)
    single = spread(resampled(table))
    copied = spread(resampled(np.repeat(table, 4, axis=0), [f"c{n // 4}" for n in range(800)]))
    wrong = spread(resampled(np.repeat(table, 4, axis=0)))
    assert single is not None
    assert copied is not None
    assert wrong is not None
    assert copied.stderr == pytest.approx(single.stderr, rel=0.1)
    assert wrong.stderr < 0.6 * single.stderr
    ratio = Ratio()
    repeats = CorpusBootstrap("d", ratio)
    for doc_id, row in enumerate(table.tolist()):
        ratio.last = tuple(row)
        for _ in range(4):
            repeats.add(doc_id, "")
    assert (repeats.values() == resampled(table)).all()


def test_too_little_to_resample() -> None:
    """Nothing, one segment, or segments that are all alike: no interval out of nothing, and draws that drew nothing are
    left out instead of counting as 0.
    """
    assert len(resampled(np.zeros((0, 2)))) == 0
    assert spread(np.zeros(0)) is None
    one = resampled(np.array([[3.0, 4.0]]))
    assert np.isnan(one).mean() == pytest.approx(np.exp(-1), abs=0.05)
    told = spread(one)
    assert told is not None
    assert (told.stderr, told.interval) == (0.0, None)
    same = compared(0.75, 0.75, one, one, 1)
    assert same is not None
    assert (same.difference, same.p_bootstrap, same.interval) == (0.0, 1.0, None)
    assert compared(0.5, 0.5, one, one[:10], 1) is None


@pytest.mark.parametrize("docs", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("clustered", [False, True])
def test_few_docs_are_never_highly_significant(docs: int, clustered: bool) -> None:
    """Of one doc, or one cluster, nothing can be told: no p, no error. Of more no p is below what exchanging so many
    units could show at best, as a clear difference of two docs is by chance in one of two.
    """
    table = rows(3, docs * (6 if clustered else 1))
    clusters = [f"c{n // 6}" for n in range(len(table))] if clustered else None
    worse = table * [0.0, 1.0]
    values = [part[:, 0].sum() / part[:, 1].sum() for part in (table, worse)]
    found = compared(values[0], values[1], resampled(table, clusters), resampled(worse, clusters), docs)
    assert found is not None
    assert found.difference > 0.1
    if docs == 1:
        assert (found.stderr, found.interval, found.p_bootstrap) == (None, None, None)
    else:
        assert found.p_bootstrap is not None
        assert found.p_bootstrap >= 2.0 ** (1 - docs)
