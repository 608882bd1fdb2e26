"""The five exercises of the mesh lab, one module each."""

from labkit.exercises.mesh_setup import axes, divide, received, replicated, smallest

EXERCISES = tuple(module.EXERCISE for module in (replicated, received, axes, divide, smallest))
