"""The shipped skills: complete, in the open form, and agreeing with the eligibility map."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from engine.problems.solution import CPP_LANGUAGES, PYTHON_LANGUAGES
from engine.records import DeviceFacts
from engine.resources import resource_dir
from engine.skills import eligible, load_skills

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
META = {"playbook-index", "memory-protocol", "benchmark-protocol"}
FOLDERS = sorted(path.parent for path in resource_dir("skills").glob("*/SKILL.md"))
GPU = {
    "h200": DeviceFacts(kind="cuda", name="H200", compute_capability=(9, 0)),
    "b200": DeviceFacts(kind="cuda", name="B200", compute_capability=(10, 0)),
    "a100": DeviceFacts(kind="cuda", name="A100", compute_capability=(8, 0)),
    "rtx5090": DeviceFacts(kind="cuda", name="RTX 5090", compute_capability=(12, 0)),
    "cpu": DeviceFacts(kind="cpu", name="CPU"),
}


def test_all_are_there_and_readable() -> None:
    found = load_skills([resource_dir("skills")])
    assert found.broken == ()
    assert {name for name, s in found.skills.items() if not s.meta and not s.playbook} == STRATEGIES
    assert {name for name, s in found.skills.items() if s.meta} == META
    assert found.skills["hopper-bf16-gemm"].playbook


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_open_form(folder: Path) -> None:
    """https://agentskills.io: name as the folder, a description of at most 1,024 characters, known keys."""
    _, head, body = (folder / "SKILL.md").read_text(encoding="utf-8").split("---\n", 2)
    header = yaml.safe_load(head)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", header["name"]) and header["name"] == folder.name
    assert 40 < len(header["description"]) <= 1024
    assert set(header) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert set(header["metadata"].get("languages", [])) <= {*PYTHON_LANGUAGES, *CPP_LANGUAGES}
    assert len(body.splitlines()) < 500


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_strategy_says_when_how_and_how_it_fails(name: str) -> None:
    body = load_skills().skills[name].body
    for part in ("## When it pays, when it does not", "## Failure modes", "## Measure"):
        assert part in body


@pytest.mark.parametrize(
    ("skill", "kernel_type", "device", "expected"),
    [
        ("native-tensor-core", "gemm", "h200", True),
        ("native-tensor-core", "attention", "b200", True),
        ("native-tensor-core", "gemm", "a100", False),
        ("native-tensor-core", "gemm", "rtx5090", False),
        ("native-tensor-core", "norm", "h200", False),
        ("native-tensor-core", "gemm", "cpu", False),
        ("hopper-bf16-gemm", "gemm", "h200", True),
        ("hopper-bf16-gemm", "gemm", "b200", False),
        ("operator-fusion", "norm", "cpu", True),
        ("operator-fusion", "anything", "h200", True),
        ("memory-protocol", "gemm", "h200", False),
    ],
)
def test_who_may_use_what(skill: str, kernel_type: str, device: str, expected: bool) -> None:
    found, why = eligible(load_skills().skills[skill], kernel_type, GPU[device])
    assert found is expected, why


def test_the_map_names_only_strategies_that_exist_and_may_be_used() -> None:
    found = load_skills()
    for kernel_type, order in found.order.items():
        assert len(set(order)) == len(order) and set(order) <= STRATEGIES
        if kernel_type != "any":
            for name in order:
                kinds = found.skills[name].kernel_types
                assert "any" in kinds or kernel_type in kinds, f"{name} for {kernel_type}"


def test_the_curriculum_goes_from_naive_to_scheduling_in_dependency_order() -> None:
    body = load_skills().skills["hopper-bf16-gemm"].body
    tiers = re.split(r"^## Tier \d — ", body, flags=re.MULTILINE)[1:]
    assert len(tiers) == 10
    for tier in (" ".join(tier.split()) for tier in tiers):
        assert "*Prerequisites*" in tier and "*Targets*" in tier and "*Fails by*" in tier


def test_numbers_in_the_curriculum_add_up() -> None:
    """The plain arithmetic that the text states, computed."""
    body = load_skills().skills["hopper-bf16-gemm"].body
    assert 227 * 1024 == 232_448 and "232,448" in body
    entry = 65536 // 384 // 8 * 8
    assert entry == 168 and 24 + 2 * 240 == 40 + 2 * 232 == 3 * entry == 504
    assert 65536 // 512 == 128 and 32 + 3 * 160 == 4 * 128
    for n, bytes_per_cycle in ((64, 128), (128, 96), (256, 80)):
        assert (64 * 16 * 2 + n * 16 * 2) / (n / 2) == bytes_per_cycle
    assert 227 * 1024 // (32 * 1024) == 7 and 227 * 1024 // (48 * 1024) == 4
