"""Turn a matched recipe and a point of its search space into a solution, and into words."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from engine.problems.solution import CompileOptions, Solution, SolutionSpec, SourceFile
from engine.recipes.match import Fit
from engine.recipes.model import Parameters
from engine.recipes.space import complete

AUTHOR = "kernelarc recipes"


def render(fit: Fit, chosen: Parameters) -> Solution:
    """A complete SOL-ExecBench solution, destination-passing unless the recipe returns its outputs."""
    document = fit.recipe.file
    point = complete(document, chosen, fit.facts)
    source = _template(fit.recipe.template).render(f=fit.facts, p=point, **point)
    cuda = fit.recipe.template_name.endswith(".cu.j2")
    path = "kernel.cu" if cuda else "kernel.py"
    return Solution(
        name=f"{document.name}-{_slug(point)}",
        definition=fit.subject.definition.name,
        author=AUTHOR,
        description=describe(fit, point)[0],
        spec=SolutionSpec(
            languages=list(document.languages),
            entry_point=f"{path}::run",
            destination_passing_style=not document.returns,
            binding="torch" if cuda else None,
            compile_options=CompileOptions(ld_flags=["-lcuda", *document.ld_flags]) if cuda else None,
        ),
        sources=[SourceFile(path=path, content=source)],
    )


def describe(fit: Fit, chosen: Parameters) -> tuple[str, str]:
    """(hypothesis, predicted change) of a point, in words."""
    document = fit.recipe.file
    point = complete(document, chosen, fit.facts)
    texts = (
        _template(text).render(f=fit.facts, p=point, **point) for text in (document.hypothesis, document.predicted)
    )
    hypothesis, predicted = (" ".join(text.split()) for text in texts)
    return hypothesis, predicted


def _slug(point: Parameters) -> str:
    words = [str(v).lower().replace(" ", "") for v in point.values()]
    return "-".join("".join(c for c in w if c.isalnum() or c in "_.") for w in words)[:80] or "default"


@lru_cache(maxsize=256)
def _template(text: str) -> Any:
    """Compiled once: a search renders the same few templates again and again."""
    return _environment().from_string(text)


@lru_cache(maxsize=1)
def _environment() -> Any:
    """Sandboxed: recipes may come from a user's folder. Undefined names are errors; shared macros are ours."""
    from jinja2 import FileSystemLoader, StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    return SandboxedEnvironment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
