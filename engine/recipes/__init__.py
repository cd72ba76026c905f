"""Offline proposals: parametrised kernel sources, matched to a problem by its traced dataflow, never by a name.

Door: :func:`engine.recipes.model.load_recipes`, :func:`engine.recipes.match.match_all`,
:func:`engine.recipes.render.render`.
"""
