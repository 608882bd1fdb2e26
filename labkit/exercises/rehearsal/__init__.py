"""The five exercises of the rehearsal lab, one module each."""

from labkit.exercises.rehearsal import buckets, diagnosis, peak, remedy, utilisation

EXERCISES = tuple(module.EXERCISE for module in (utilisation, diagnosis, peak, remedy, buckets))
