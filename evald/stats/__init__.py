"""What scores say of a model, how sure that is, and whether two models differ. Pure; never NaN or infinite: what can't
be told is None. docs/statistics.md has the formulas and their sources.

    means         mean, standard error (clustered), interval of one model's scores; means over datasets
    paired        two models over the docs of one dataset that both have
    overall       the same over several datasets
    corpus        the same for values that are no mean of scores, such as corpus BLEU
    significance  p-values and quantiles in closed form: McNemar, Holm, Student's t
    draws         the random numbers of all resampling, the same on every machine
"""

from evald.stats.means import (
    Clusters,
    Estimate,
    Interval,
    Moments,
    bounds,
    interval,
    macro_mean,
    mean_se,
    micro_mean,
    proportion_interval,
    weighted_mean,
    wilson,
)

__all__ = [
    "Clusters",
    "Estimate",
    "Interval",
    "Moments",
    "bounds",
    "interval",
    "macro_mean",
    "mean_se",
    "micro_mean",
    "proportion_interval",
    "weighted_mean",
    "wilson",
]
