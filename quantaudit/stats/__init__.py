"""Paired statistics with error control: estimates by cluster, three-way decisions, corrections and power.

Read `clustered` first, then `statistic`, `decide` and `multiplicity`. Every difference is damage-oriented: positive
means that lo is worse.
"""

from quantaudit.stats.clustered import ALPHA, MIN_CLUSTERS, estimate_mean
from quantaudit.stats.contrast import estimate_contrast
from quantaudit.stats.decide import decide, decide_exact, withhold
from quantaudit.stats.floor import FLOOR_FACTOR, respect_floor
from quantaudit.stats.multiplicity import adjust_benjamini_hochberg, adjust_holm, combine, correct_rejections
from quantaudit.stats.power import POWER, minimum_detectable_effect, num_to_admit, num_to_reject
from quantaudit.stats.proportion import estimate_flips, mcnemar_exact, zero_flip_bound
from quantaudit.stats.sample import Sample, gather

__all__ = [
    "ALPHA",
    "FLOOR_FACTOR",
    "MIN_CLUSTERS",
    "POWER",
    "Sample",
    "adjust_benjamini_hochberg",
    "adjust_holm",
    "combine",
    "correct_rejections",
    "decide",
    "decide_exact",
    "estimate_contrast",
    "estimate_flips",
    "estimate_mean",
    "gather",
    "mcnemar_exact",
    "minimum_detectable_effect",
    "num_to_admit",
    "num_to_reject",
    "respect_floor",
    "withhold",
    "zero_flip_bound",
]
