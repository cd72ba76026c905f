"""Profiles on demand: what one candidate's kernels do on the GPU, for a person and for the next prompt.

A profile is advice, never a measurement that a verdict rests on: most of it is its own process's word.
The door is :func:`engine.profile.run.profile_solution`; :mod:`engine.profile.campaign` stores the result.
"""
