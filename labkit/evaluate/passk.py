"""pass@k without bias, its intervals, averages over families, and the difference of two results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np

from labkit.errors import LabError

Interval = tuple[float, float]


def pass_at_k(samples: int, passes: int, k: int) -> float:
    """The chance that one of `k` samples passes, estimated without bias from `passes` among `samples`.

    ``1 - C(n - c, k) / C(n, k)``, as a product; Chen et al. 2021, arXiv 2107.03374.

    Raises:
        LabError: fewer samples than `k`, or more passes than samples.
    """
    if not (1 <= k <= samples and 0 <= passes <= samples):
        raise LabError(
            f"pass@{k} cannot be estimated from {passes} passes among {samples} samples.",
            hint="Draw at least k samples of each problem.",
        )
    if samples - passes < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(samples - passes + 1, samples + 1))


def wilson(share: float, trials: float, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share of independent trials; Wilson 1927. Never empty, also at 0 and 1.

    Args:
        share: passes by trials, 0 to 1.
        trials: their number; may be an effective one, as in `macro_interval`.
        confidence: of the interval.
    """
    if trials <= 0:
        return (0.0, 1.0)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return (min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


def macro_average(by_family: Mapping[str, Sequence[float]]) -> float:
    """The mean over families of the mean over a family's problems."""
    return float(np.mean([np.mean(values) for values in by_family.values()]))


def macro_interval(by_family: Mapping[str, Sequence[float]], confidence: float = 0.95) -> Interval:
    """An interval for `macro_average` of passes and fails: Wilson's, with the effective number of problems.

    That number is ``F**2 / sum(1 / n_f)`` for F families of n_f problems (Kish's design effect of unequal weights).
    Unlike a bootstrap it does not shrink to nothing where all problems fail.
    """
    effective = len(by_family) ** 2 / sum(1 / len(values) for values in by_family.values())
    return wilson(macro_average(by_family), effective, confidence)


def bootstrap(
    values: Sequence[float] | Mapping[str, Sequence[float]],
    *,
    seed: int = 0,
    rounds: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """A percentile interval of the mean, problems drawn with replacement; Efron 1979.

    Args:
        values: one value a problem, so that all samples of a problem stay together; a mapping from family to values
            draws within each family and takes the macro average.
        seed: of the draws.
        rounds: number of draws.
        confidence: of the interval.
    """
    groups = list(values.values()) if isinstance(values, Mapping) else [values]
    rng = np.random.default_rng(seed)
    total = np.zeros(rounds)
    for group in groups:
        array = np.asarray(group, dtype=float)
        total += array[rng.integers(len(array), size=(rounds, len(array)))].mean(axis=1)
    low, high = np.quantile(total / len(groups), [(1 - confidence) / 2, (1 + confidence) / 2])
    return (float(low), float(high))
