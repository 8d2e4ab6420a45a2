"""Many samples as few: means over equal stretches of time, so that a month fits a page and a glance."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from provisioner.simulator.results import Sample


def thinned(samples: Sequence[Sample], most: int) -> list[Sample]:
    """At most ``most`` samples, each the mean over its stretch and set to its beginning; few stay as they are."""
    if len(samples) <= most:
        return list(samples)
    start_s, end_s = samples[0].at_s, samples[-1].at_s
    stretch_s = (end_s - start_s) / most or 1.0
    stretches: dict[int, list[Sample]] = {}
    for sample in samples:
        stretches.setdefault(min(most - 1, int((sample.at_s - start_s) / stretch_s)), []).append(sample)
    return [_mean(start_s + n * stretch_s, together) for n, together in sorted(stretches.items())]


def sites(samples: Sequence[Sample]) -> list[str]:
    """Those that held anything, the largest holder first."""
    held: dict[str, float] = {}
    for sample in samples:
        for site, gpus in sample.by_site.items():
            held[site] = held.get(site, 0.0) + gpus
    return sorted((site for site in held if held[site] > 0), key=lambda site: (-held[site], site))


def _mean(at_s: float, samples: Sequence[Sample]) -> Sample:
    return Sample(
        at_s=at_s,
        jobs_waiting=round(fmean(sample.jobs_waiting for sample in samples)),
        jobs_running=round(fmean(sample.jobs_running for sample in samples)),
        gpus_held=fmean(sample.gpus_held for sample in samples),
        gpus_busy=fmean(sample.gpus_busy for sample in samples),
        gpus_owner=fmean(sample.gpus_owner for sample in samples),
        by_site={site: fmean(s.by_site.get(site, 0.0) for s in samples) for site in sites(samples)},
    )
