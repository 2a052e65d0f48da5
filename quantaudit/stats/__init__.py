"""Paired statistics with error control: estimates by cluster, three-way decisions, corrections and power.

Read `clustered` first, then `statistic`, `decide` and `multiplicity`. Every difference is damage-oriented: positive
means that lo is worse. Beyond the planned sample: `sequential` may be looked at after every cluster, `tails` and
`simultaneous` bound the worst probes and the worst slice, `dose_response` doubts a ladder that falls, `judge_error`
undoes what a fallible judge does to a rate.
"""

from quantaudit.stats.betting import Claim, fewest_clusters
from quantaudit.stats.bootstrap import BoundRule, bootstrap_contrast
from quantaudit.stats.clustered import ALPHA, MIN_CLUSTERS, estimate_mean
from quantaudit.stats.contrast import estimate_contrast
from quantaudit.stats.decide import decide, decide_exact, withhold
from quantaudit.stats.dose_response import Dose, DoseResponse, judge_dose_response
from quantaudit.stats.equivalence import Equivalence, assess_equivalence
from quantaudit.stats.flip_evidence import FlipCounts, FlipPlan, FlipRates, flip_log_evidence, plan_flips
from quantaudit.stats.floor import FLOOR_FACTOR, respect_floor
from quantaudit.stats.judge_error import LabelledSet, correct_difference, correct_rate
from quantaudit.stats.multiplicity import adjust_benjamini_hochberg, adjust_holm, combine, correct_rejections
from quantaudit.stats.power import POWER, minimum_detectable_effect, num_to_admit, num_to_reject
from quantaudit.stats.proportion import estimate_flips, exact_zero_flip_bound, mcnemar_exact, zero_flip_bound
from quantaudit.stats.sample import Sample, gather
from quantaudit.stats.sequential import Beyond, SequentialRun, SequentialTest, order_by_name, run_sequentially
from quantaudit.stats.simultaneous import SliceBounds, Weights, WorstSlice, compare_slices
from quantaudit.stats.tails import estimate_cvar, estimate_quantile

__all__ = [
    "ALPHA",
    "FLOOR_FACTOR",
    "MIN_CLUSTERS",
    "POWER",
    "Beyond",
    "BoundRule",
    "Claim",
    "Dose",
    "DoseResponse",
    "Equivalence",
    "FlipCounts",
    "FlipPlan",
    "FlipRates",
    "LabelledSet",
    "Sample",
    "SequentialRun",
    "SequentialTest",
    "SliceBounds",
    "Weights",
    "WorstSlice",
    "adjust_benjamini_hochberg",
    "adjust_holm",
    "assess_equivalence",
    "bootstrap_contrast",
    "combine",
    "compare_slices",
    "correct_difference",
    "correct_rate",
    "correct_rejections",
    "decide",
    "decide_exact",
    "estimate_contrast",
    "estimate_cvar",
    "estimate_flips",
    "estimate_mean",
    "estimate_quantile",
    "exact_zero_flip_bound",
    "fewest_clusters",
    "flip_log_evidence",
    "gather",
    "judge_dose_response",
    "mcnemar_exact",
    "minimum_detectable_effect",
    "num_to_admit",
    "num_to_reject",
    "order_by_name",
    "plan_flips",
    "respect_floor",
    "run_sequentially",
    "withhold",
    "zero_flip_bound",
]
