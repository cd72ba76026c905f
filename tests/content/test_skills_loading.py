"""Skills: documents that load or say why not, a user's folder that overrides, eligibility with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.recipes.model import load_recipes
from engine.records import DeviceFacts
from engine.resources import resource_dir
from engine.skills import eligible, load_skills
from tests.content.helpers import A100, CPU, H200

STRATEGIES = {
    "vendor-library",
    "memory-layout",
    "operator-fusion",
    "tiling-pipelining",
    "precision-formats",
    "algorithmic-restructuring",
    "launch-overhead",
    "native-tensor-core",
}


def write_skill(folder: Path, name: str, header: str, body: str = "Text.") -> Path:
    path = folder / name / "SKILL.md"
    path.parent.mkdir(parents=True)
    path.write_text(f"---\n{header}\n---\n{body}\n")
    return path


def test_the_shipped_skills_load_and_every_one_has_a_text() -> None:
    found = load_skills([resource_dir("skills")])
    assert found.broken == ()
    assert {s.name for s in found.strategies("gemm")} == STRATEGIES
    assert all(len(s.body) > 200 and s.description for s in found.skills.values())


def test_strategies_come_in_the_order_of_the_eligibility_map() -> None:
    found = load_skills([resource_dir("skills")])
    assert found.strategies("norm")[0].name == "operator-fusion"
    assert found.strategies("gemm")[0].name == "vendor-library"
    assert {s.name for s in found.strategies("a type nobody listed")} == STRATEGIES


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("name: broken", "no 'description'"),
        ("name: other\ndescription: d", "the folder is called 'broken'"),
        ("name: broken\ndescription: [unclosed", "line"),
        ("name: broken\ndescription: d\nmetadata: {min-capability: ninety}", 'write it as "9.0"'),
        ("- a list", "not a mapping"),
        ("name: broken\ndescription: d\nsince: 2026-13-45", "line 4: '2026-13-45' cannot be read as timestamp"),
        (f"name: broken\ndescription: {'[' * 5000}", "nest"),
        ("name: broken\ndescription: 2026-01-01", "no 'description'"),
    ],
)
def test_a_broken_skill_is_reported_and_hurts_no_other(tmp_path: Path, header: str, why: str) -> None:
    write_skill(tmp_path, "broken", header)
    write_skill(tmp_path, "sound", "name: sound\ndescription: d")
    found = load_skills([tmp_path])
    assert set(found.skills) == {"sound"}
    (broken,) = found.broken
    assert broken.name == "broken" and why in broken.why and "SKILL.md" in broken.why


def test_a_folder_that_cannot_be_looked_into_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skill(tmp_path, "closed", "name: closed\ndescription: d")
    write_skill(tmp_path, "sound", "name: sound\ndescription: d")
    (tmp_path / "closed" / "recipes").mkdir()
    looked = Path.iterdir

    def iterdir(path: Path) -> object:
        if path.parent.name == "closed":
            raise PermissionError(13, "Permission denied")
        return looked(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    found = load_skills([tmp_path])
    assert set(found.skills) == {"sound"}
    assert [(b.name, "Permission denied" in b.why) for b in found.broken] == [("closed", True)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("since: 2026-13-45", "recipe.yaml: is not valid YAML (line"),
        ("min-capability: ninety", 'write it as "9.0"'),
        ("parameters: {a: {kind: int, low: 0, high: 8, step: 0}}", "step is 0"),
        ("parameters: {a: {kind: int, low: 0, high: 1000000000000}}", "more than 4096 values"),
    ],
)
def test_a_broken_recipe_is_reported_and_hurts_no_other(tmp_path: Path, line: str, why: str) -> None:
    write_skill(tmp_path, "mine", "name: mine\ndescription: d")
    for name, more in (("sound", ""), ("broken", line)):
        folder = tmp_path / "mine" / "recipes" / name
        folder.mkdir(parents=True)
        (folder / "kernel.py.j2").write_text("def run(x): return x\n")
        (folder / "recipe.yaml").write_text(
            f"name: {name}\nfamily: f\nkernel-types: [any]\nlanguages: [pytorch]\nrule: reference\n"
            f"description: d\nhypothesis: h\npredicted: p\n{more}\n"
        )
    recipes, broken = load_recipes(load_skills([tmp_path]))
    assert [recipe.file.name for recipe in recipes] == ["sound"]
    assert [(b.name, why in b.why) for b in broken] == [("mine/broken", True)]


def test_a_folder_without_a_document_and_a_folder_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert [b.name for b in load_skills([tmp_path, tmp_path / "none"]).broken] == ["empty"]


def test_the_users_skill_replaces_the_shipped_one(tmp_path: Path) -> None:
    write_skill(tmp_path, "operator-fusion", "name: operator-fusion\ndescription: mine", "My own text.")
    found = load_skills([resource_dir("skills"), tmp_path])
    assert found.skills["operator-fusion"].body == "My own text."
    assert found.skills["memory-layout"].body != ""


def test_words_may_be_a_list_or_the_open_forms_string(tmp_path: Path) -> None:
    write_skill(tmp_path, "one", "name: one\ndescription: d\nmetadata: {kernel-types: 'gemm, norm moe'}")
    assert load_skills([tmp_path]).skills["one"].kernel_types == ("gemm", "norm", "moe")


@pytest.mark.parametrize(
    ("name", "kernel_type", "device", "fits", "why"),
    [
        ("operator-fusion", "norm", CPU, True, "fits"),
        ("native-tensor-core", "gemm", CPU, False, "devices"),
        ("native-tensor-core", "gemm", A100, False, "needs compute capability 9.0"),
        ("native-tensor-core", "gemm", H200, True, "fits"),
        ("native-tensor-core", "norm", H200, False, "this kernel is norm"),
        ("playbook-index", "gemm", H200, False, "meta-skill"),
        ("hopper-bf16-gemm", "gemm", DeviceFacts(kind="cuda", name="?"), False, "known compute capability"),
    ],
)
def test_eligibility_says_why(name: str, kernel_type: str, device: DeviceFacts, fits: bool, why: str) -> None:
    skill = load_skills([resource_dir("skills")]).skills[name]
    assert eligible(skill, kernel_type, device)[0] is fits
    assert why in eligible(skill, kernel_type, device)[1]


def test_an_operator_that_a_skill_needs_is_looked_for_in_the_trace() -> None:
    class Graph:
        operators = ("add.Tensor", "mean.dim")

    skill = load_skills([resource_dir("skills")]).skills["native-tensor-core"]
    assert eligible(skill, "moe", H200, Graph()) == (False, "the reference has no matmul operator")
