"""Search spaces: inactive parameters collapse, restrictions refuse with their reason, files say what is wrong."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.errors import BadInput
from engine.recipes.model import Parameter, RecipeFile, Restriction, read_recipe
from engine.recipes.space import complete, every_point, obstacle, random_points, starting_points, violation

FILE = RecipeFile(
    name="r",
    family="f",
    kernel_types=("gemm",),
    languages=("triton",),
    rule="any",
    description="d",
    hypothesis="h",
    predicted="p",
    parameters={
        "tile": Parameter(kind="log", low=16, high=128, default=64),
        "split": Parameter(kind="int", low=1, high=3, default=1),
        "reduce": Parameter(choices=("atomic", "second"), default="second", when="split > 1"),
    },
    restrictions=(Restriction(expr="tile * split <= f.limit", why="too much shared memory"),),
    points=({"tile": 128, "split": 3}, {"tile": 32, "split": 2, "reduce": "atomic"}),
)


def test_values_of_the_three_kinds() -> None:
    assert FILE.parameters["tile"].values() == (16, 32, 64, 128)
    assert FILE.parameters["split"].values() == (1, 2, 3)


def test_an_inactive_parameter_takes_its_default() -> None:
    assert complete(FILE, {"split": 1, "reduce": "atomic"}, {"limit": 999})["reduce"] == "second"
    assert complete(FILE, {"split": 2, "reduce": "atomic"}, {"limit": 999})["reduce"] == "atomic"


def test_a_restriction_refuses_with_its_reason() -> None:
    point = complete(FILE, {"tile": 128, "split": 3}, {})
    assert violation(FILE, point, {"limit": 100}) == "too much shared memory"
    assert violation(FILE, point, {"limit": 384}) is None
    assert "outside" in (violation(FILE, {**point, "tile": 100}, {"limit": 999}) or "")


def test_declared_points_come_first_then_the_default_and_only_legal_ones() -> None:
    points = starting_points(FILE, {"limit": 100})
    assert points == [
        {"tile": 32, "split": 2, "reduce": "atomic"},
        {"tile": 64, "split": 1, "reduce": "second"},
    ]


def test_enumeration_is_distinct_and_legal() -> None:
    points = every_point(FILE, {"limit": 128})
    assert len(points) == len({tuple(p.values()) for p in points}) > 4
    assert all(p["tile"] * p["split"] <= 128 for p in points)


def test_random_points_follow_the_generator_alone() -> None:
    first = random_points(FILE, {"limit": 128}, random.Random(3))
    second = random_points(FILE, {"limit": 128}, random.Random(3))
    assert [next(first) for _ in range(9)] == [next(second) for _ in range(9)]


def test_a_space_without_a_legal_point_names_the_obstacle() -> None:
    assert obstacle(FILE, {"limit": 1}) == "too much shared memory"
    assert obstacle(FILE, {"limit": 64}) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"languages": "[fortran]"}, "'fortran' is not a SOL-ExecBench language"),
        ({"parameters": "{a: {kind: real, low: 0, high: 1}}"}, "kind is 'real'"),
        ({"parameters": "{a: {choices: [1, 2], default: 3}}"}, "default is not one of its values"),
        ({"points": "[{b: 1}]"}, "points[0]: b=1 is outside the search space"),
        ({"surprise": "1"}, "surprise"),
        ({"name": "other"}, "the folder is called 'mine'"),
    ],
)
def test_a_recipe_file_that_is_wrong_says_where(tmp_path: Path, change: dict[str, str], why: str) -> None:
    fields = {
        "name": "mine", "family": "f", "kernel-types": "[norm]", "languages": "[triton]", "rule": "rows-triton",
        "description": "d", "hypothesis": "h", "predicted": "p", "parameters": "{a: {choices: [1, 2]}}", **change,
    }  # fmt: skip
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "recipe.yaml").write_text("".join(f"{k}: {v}\n" for k, v in fields.items()))
    (folder / "kernel.py.j2").write_text("def run(): pass\n")
    with pytest.raises(BadInput, match=r"recipe\.yaml") as caught:
        read_recipe(folder, "skill")
    assert why in caught.value.message


def test_a_recipe_without_a_template(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(
        "{name: mine, family: f, kernel-types: [norm], languages: [triton], rule: r, description: d, "
        "hypothesis: h, predicted: p}"
    )
    with pytest.raises(BadInput, match="no source template"):
        read_recipe(folder, "skill")
