"""Strategy skills: documents in the open Agent-Skills form, and which of them an agent may use.

A skill is a folder ``<name>/SKILL.md`` (YAML frontmatter, then Markdown) with an optional ``recipes/`` folder.
A skill of the same name in the user's own folder replaces the shipped one. A skill that cannot be read is reported
beside the others, never fatal. The meta-skill ``playbook-index`` carries the machine-read eligibility map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from engine.decoding import MissingFile, parse_yaml, read_text, read_yaml
from engine.errors import BadInput
from engine.paths import config_dir
from engine.records import DeviceFacts
from engine.resources import resource_dir

if TYPE_CHECKING:
    from engine.problems.model import Problem

INDEX = "playbook-index"
MAP_FILE = "eligibility.yaml"
CPU_LANGUAGES = ("pytorch",)


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """One document. ``capability`` is the (lowest, highest) compute capability, ``None`` where unlimited."""

    name: str
    description: str
    folder: str
    body: str
    kernel_types: tuple[str, ...] = ("any",)
    languages: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu", "cuda")
    capability: tuple[tuple[int, int] | None, tuple[int, int] | None] = (None, None)
    operators: tuple[str, ...] = ()  # the reference must contain one of these operator groups
    meta: bool = False
    playbook: bool = False  # chosen by a person only
    recipes: tuple[str, ...] = ()  # folders below ``recipes/``

    def recipe_folder(self, recipe: str) -> Path:
        return Path(self.folder) / "recipes" / recipe


class BrokenSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A skill or recipe that could not be used, and the one line that says why."""

    name: str
    path: str
    why: str


class EligibilityMap(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """``order``: strategies per kernel type, best first. ``requires``: conditions beyond a skill's own."""

    order: dict[str, tuple[str, ...]] = {}
    requires: dict[str, Requirement] = {}


class Requirement(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    devices: tuple[str, ...] | None = None
    kernel_types: tuple[str, ...] | None = None
    operators: tuple[str, ...] | None = None


class SkillSet(msgspec.Struct, frozen=True, kw_only=True):
    """Readable skills by name, the broken ones, and the order in which strategies suit a kernel type."""

    skills: dict[str, Skill]
    broken: tuple[BrokenSkill, ...] = ()
    order: dict[str, tuple[str, ...]] = {}

    def strategies(self, kernel_type: str) -> list[Skill]:
        """Strategy skills (no meta-skill, no playbook), those best for ``kernel_type`` first."""
        order = self.order.get(kernel_type) or self.order.get("any") or ()
        rank = {name: index for index, name in enumerate(order)}
        usable = [s for s in self.skills.values() if not s.meta and not s.playbook]
        return sorted(usable, key=lambda s: (rank.get(s.name, len(rank)), s.name))


class Traced(Protocol):
    """What eligibility needs of a traced reference: the names of its operators."""

    @property
    def operators(self) -> Sequence[Any]: ...


OPERATOR_GROUPS: dict[str, tuple[str, ...]] = {
    "matmul": (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "matmul",
        "linear",
        "einsum",
        "scaled_mm",
        "scaled_dot_product",
        "conv",
    ),
    "reduction": ("sum", "mean", "amax", "max", "softmax", "logsumexp", "norm", "var"),
}


def skill_dirs() -> list[Path]:
    """Where skills are looked for; a later folder overrides an earlier one."""
    return [resource_dir("skills"), config_dir() / "skills"]


def load_skills(dirs: Iterable[Path] | None = None) -> SkillSet:
    """Read every ``<dir>/<name>/SKILL.md``. Never raises for what is in a folder: that is ``broken``."""
    skills: dict[str, Skill] = {}
    broken: list[BrokenSkill] = []
    for folder in skill_dirs() if dirs is None else dirs:
        for entry in _entries(folder, broken):
            try:
                skills[entry.name] = read_skill(entry)
            except BadInput as error:
                broken.append(BrokenSkill(name=entry.name, path=str(entry), why=error.message))
            except OSError as error:
                broken.append(_unreadable(entry, error))
    mapping = EligibilityMap()
    try:
        mapping = _read_map(skills.get(INDEX))
    except BadInput as error:
        broken.append(BrokenSkill(name=INDEX, path=error.where, why=error.message))
    return SkillSet(
        skills={name: _restricted(skill, mapping.requires.get(name)) for name, skill in skills.items()},
        broken=tuple(broken),
        order=mapping.order,
    )


def _entries(folder: Path, broken: list[BrokenSkill]) -> list[Path]:
    try:
        if not folder.is_dir():
            return []
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError as error:
        broken.append(_unreadable(folder, error))
        return []


def _unreadable(path: Path, error: OSError) -> BrokenSkill:
    return BrokenSkill(name=path.name, path=str(path), why=f"{path}: cannot be read ({error.strerror})")


def read_skill(folder: Path) -> Skill:
    """Raises :class:`BadInput` naming the file and the field."""
    path = folder / "SKILL.md"
    try:
        text = read_text(path)
    except MissingFile:
        raise BadInput("no SKILL.md", where=str(folder), fix="add one, or remove the folder") from None
    header, body = _split_frontmatter(text, path)
    name, description = _text_field(header, "name", path), _text_field(header, "description", path)
    if name != folder.name:
        raise BadInput(
            f"name is {name!r}", where=str(path), fix=f"the folder is called {folder.name!r}: use one name"
        )
    metadata = header.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise BadInput("metadata is not a mapping", where=str(path))
    recipes = folder / "recipes"
    found = sorted(p.name for p in recipes.iterdir() if (p / "recipe.yaml").is_file()) if recipes.is_dir() else []
    return Skill(
        name=name,
        description=" ".join(description.split()),
        folder=str(folder),
        body=body.strip(),
        kernel_types=_words(metadata, "kernel-types", path) or ("any",),
        languages=_words(metadata, "languages", path),
        devices=_words(metadata, "devices", path) or ("cpu", "cuda"),
        capability=(
            _capability(metadata, "min-capability", path),
            _capability(metadata, "max-capability", path),
        ),
        operators=_words(metadata, "operators", path),
        meta=_flag(metadata.get("meta")),
        playbook=_flag(metadata.get("playbook")),
        recipes=tuple(found),
    )


def eligible(skill: Skill, kernel_type: str, device: DeviceFacts, graph: Traced | None = None) -> tuple[bool, str]:
    """Whether an agent may use ``skill`` here, and why (not). ``graph`` is a traced reference, if there is one."""
    if skill.meta:
        return False, "a meta-skill informs every agent and is no strategy of its own"
    if "any" not in skill.kernel_types and kernel_type not in skill.kernel_types:
        return False, f"is for {', '.join(skill.kernel_types)}; this kernel is {kernel_type}"
    if device.kind not in skill.devices:
        return False, f"is for {', '.join(skill.devices)} devices; this one is {device.kind}"
    if device.kind == "cpu" and skill.languages and not set(skill.languages) & set(CPU_LANGUAGES):
        return False, f"its languages ({', '.join(skill.languages)}) need a GPU"
    lowest, highest = skill.capability
    if lowest or highest:
        if device.compute_capability is None:
            return False, "needs a GPU of known compute capability"
        if lowest and device.compute_capability < lowest:
            have = _dotted(device.compute_capability)
            return False, f"needs compute capability {_dotted(lowest)}; {device.name} has {have}"
        if highest and device.compute_capability > highest:
            return False, f"is for compute capability up to {_dotted(highest)}; {device.name} is newer"
    if skill.operators and graph is not None and not any(uses(graph, group) for group in skill.operators):
        return False, f"the reference has no {' or '.join(skill.operators)} operator"
    return True, f"fits {kernel_type} on {device.kind}"


def eligibility_for(problem: Problem, device: DeviceFacts) -> Callable[[Skill], tuple[bool, str]]:
    """(skill) → (eligible, why) for a problem on a device, with the kernel type from the definition alone."""
    from engine.tracing.kernel_type import kernel_type_of

    kernel_type = kernel_type_of(problem.definition, None)
    return lambda skill: eligible(skill, kernel_type, device)


def uses(graph: Traced, group: str) -> bool:
    """Whether the traced reference has an operator of ``group`` (a key of ``OPERATOR_GROUPS``)."""
    wanted = OPERATOR_GROUPS.get(group, (group,))
    return any(
        word in f"{getattr(operator, 'kind', '')} {getattr(operator, 'name', operator)}"
        for operator in graph.operators
        for word in wanted
    )


def _restricted(skill: Skill, extra: Requirement | None) -> Skill:
    if extra is None:
        return skill
    return msgspec.structs.replace(
        skill,
        devices=skill.devices if extra.devices is None else extra.devices,
        kernel_types=skill.kernel_types if extra.kernel_types is None else extra.kernel_types,
        operators=skill.operators if extra.operators is None else extra.operators,
    )


def _read_map(index: Skill | None) -> EligibilityMap:
    path = Path(index.folder) / MAP_FILE if index else None
    if path is None or not path.is_file():
        return EligibilityMap()
    return read_yaml(path, EligibilityMap)  # type: ignore[no-any-return]


def _split_frontmatter(text: str, path: Path) -> tuple[dict[str, Any], str]:
    lines = text.lstrip("\ufeff").split("\n")
    if not lines or lines[0].strip() != "---":
        raise BadInput("no YAML frontmatter", where=str(path), fix="start the file with a '---' block")
    end = next((i for i, line in enumerate(lines[1:], 1) if line.strip() == "---"), None)
    if end is None:
        raise BadInput("the frontmatter has no closing '---'", where=str(path))
    what = "frontmatter is not valid YAML"
    header = parse_yaml("\n".join(lines[1:end]), where=str(path), what=what, above=1)
    if not isinstance(header, dict):
        raise BadInput("frontmatter is not a mapping", where=str(path))
    return header, "\n".join(lines[end + 1 :])


def _text_field(header: dict[str, Any], key: str, path: Path) -> str:
    value = header.get(key)
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"frontmatter has no {key!r}", where=str(path), fix=f"add '{key}: …'")
    return value.strip()


def _words(metadata: dict[str, Any], key: str, path: Path) -> tuple[str, ...]:
    """A list, or (the open form allows strings only) words separated by commas or blanks."""
    value = metadata.get(key)
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise BadInput(f"metadata.{key} is neither a list of words nor a string", where=str(path))


def _capability(metadata: dict[str, Any], key: str, path: Path) -> tuple[int, int] | None:
    value = metadata.get(key)
    if value is None:
        return None
    major, _, minor = str(value).partition(".")
    try:
        return int(major), int(minor or 0)
    except ValueError:
        raise BadInput(f"metadata.{key} is {value!r}", where=str(path), fix='write it as "9.0"') from None


def _flag(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.lower() == "true")


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
