"""Colour themes: YAML files that ship with KernelArc and the user's own, checked, with semantic variables.

A theme names a few base colours and, where it wants, the colours of meanings (``verdict-keep``, ``agent-1`` …).
What it leaves out is derived from the base colours, so a theme of five lines works.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import msgspec
from textual.color import Color
from textual.theme import Theme

from engine.decoding import read_yaml
from engine.errors import BadInput
from engine.paths import config_dir
from engine.resources import resource_dir

DEFAULT_THEME = "arc"
ANSI_THEME = "terminal"
BASE_COLORS = (
    "background",
    "surface",
    "panel",
    "foreground",
    "primary",
    "secondary",
    "accent",
    "success",
    "warning",
    "error",
)
AGENT_COLORS = 8
MEANINGS = (
    "muted",
    "faint",
    "rule",
    "rule-focus",
    "cursor",
    "verdict-keep",
    "verdict-accept",
    "verdict-revert",
    "verdict-reject",
    "verdict-error",
    *(f"agent-{index}" for index in range(1, AGENT_COLORS + 1)),
)


class DiffColors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    added: str = ""
    removed: str = ""


class ThemeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a theme file may say. ``name`` is lower-case words joined by hyphens."""

    name: str
    dark: bool = True
    ansi: bool = False
    colors: dict[str, str]
    variables: dict[str, str] = {}
    diff: DiffColors = DiffColors()


def user_theme_dir() -> Path:
    return config_dir() / "themes"


def theme_files() -> dict[str, Path]:
    """Every theme file by its stem; the user's folder overrides the shipped one."""
    found: dict[str, Path] = {}
    for folder in (resource_dir("themes"), user_theme_dir()):
        if folder.is_dir():
            for path in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
                found[path.stem] = path
    return found


def load_theme(path: Path) -> Theme:
    """Read and check one theme file. Raises BadInput naming file, field and fix."""
    return _theme(read_yaml(path, ThemeFile, fix="see themes/arc.yaml for every key"), path)


def load_themes() -> tuple[list[Theme], list[str]]:
    """All usable themes, and one line for each broken file."""
    themes: dict[str, Theme] = {}
    broken: list[str] = []
    for path in theme_files().values():
        try:
            theme = load_theme(path)
        except BadInput as error:
            broken.append(error.message)
        else:
            themes[theme.name] = theme
    return list(themes.values()), broken


def _theme(spec: ThemeFile, path: Path) -> Theme:
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", spec.name):
        raise BadInput(f"name {spec.name!r}", where=str(path), fix="use lower-case words joined by hyphens")
    _known(spec.colors, BASE_COLORS, "colors", path)
    _known(spec.variables, MEANINGS, "variables", path)
    for needed in ("background", "foreground", "primary"):
        if needed not in spec.colors:
            raise BadInput(f"colors.{needed} is missing", where=str(path))
    named = {**spec.colors, **spec.variables, "diff-added": spec.diff.added, "diff-removed": spec.diff.removed}
    for key, value in named.items():
        if value:
            _color(value, key, path)
    base = _base(spec.colors)
    variables = {**_derived(base, ansi=spec.ansi), **spec.variables}
    for key, value in (("diff-added", spec.diff.added), ("diff-removed", spec.diff.removed)):
        if value:
            variables[key] = value
    return Theme(
        name=spec.name,
        dark=spec.dark,
        ansi=spec.ansi,
        boost="ansi_default" if spec.ansi else None,
        variables={**variables, **_widget_variables(variables, base, ansi=spec.ansi)},
        **base,  # type: ignore[arg-type]
    )


def _known(given: dict[str, str], allowed: tuple[str, ...], section: str, path: Path) -> None:
    for key in given:
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(allowed)}"
            raise BadInput(f"{section}.{key} is unknown", where=str(path), fix=hint)


def _color(value: str, key: str, path: Path) -> Color:
    from textual.color import ColorParseError

    try:
        return Color.parse(value)
    except ColorParseError as error:
        raise BadInput(f"{key}: {value!r} is not a colour", where=str(path), fix="write #rrggbb") from error


def _base(colors: dict[str, str]) -> dict[str, str]:
    primary, background = colors["primary"], colors["background"]
    fallback = {
        "surface": background,
        "panel": background,
        "secondary": primary,
        "accent": primary,
        "success": "ansi_green" if background.startswith("ansi") else "#7ec699",
        "warning": "ansi_yellow" if background.startswith("ansi") else "#e0af68",
        "error": "ansi_red" if background.startswith("ansi") else "#f2777a",
    }
    return {**fallback, **colors}


def _derived(base: dict[str, str], *, ansi: bool) -> dict[str, str]:
    """Colours of meanings for a theme that does not name them."""

    def mix(name: str, amount: float) -> str:
        """``name`` faded towards the background."""
        if ansi:
            return base[name]
        return Color.parse(base[name]).blend(Color.parse(base["background"]), amount).hex6

    agents = ("primary", "warning", "success", "secondary", "error", "accent", "foreground", "primary")
    return {
        "muted": mix("foreground", 0.4),
        "faint": mix("foreground", 0.65),
        "rule": mix("foreground", 0.8),
        "rule-focus": base["accent"],
        "cursor": mix("primary", 0.75),
        "verdict-keep": base["success"],
        "verdict-accept": base["primary"],
        "verdict-revert": base["warning"],
        "verdict-reject": base["error"],
        "verdict-error": base["secondary"],
        **{f"agent-{index}": base[name] for index, name in enumerate(agents, 1)},
        "diff-added": mix("success", 0.8),
        "diff-removed": mix("error", 0.8),
    }


def fallback_variables(base: dict[str, str], *, ansi: bool) -> dict[str, str]:
    """Meanings for a theme that is not one of our files."""
    if not (base.get("background") and base.get("foreground") and base.get("primary")):
        base = {
            **base,
            "background": "#121212",
            "foreground": "#e0e0e0",
            "primary": base.get("primary") or "#6cb6ff",
        }
    return _derived(_base({name: value for name, value in base.items() if value}), ansi=ansi)


def _widget_variables(variables: dict[str, str], base: dict[str, str], *, ansi: bool) -> dict[str, str]:
    """Textual's own variable names, so that inputs, scrollbars and the palette follow the theme."""
    rule, focus = variables["rule"], variables["rule-focus"]
    widgets = {
        "border": focus,
        "border-blurred": rule,
        "block-cursor-background": base["primary"],
        "block-cursor-foreground": "ansi_black" if ansi else base["background"],
        "block-cursor-text-style": "none",
        "scrollbar": rule,
        "scrollbar-hover": variables["faint"],
        "scrollbar-active": focus,
        "scrollbar-background": base["background"],
        "scrollbar-background-hover": base["background"],
        "scrollbar-background-active": base["background"],
        "scrollbar-corner-color": base["background"],
        "input-cursor-text-style": "reverse",
    }
    if ansi:
        widgets |= {
            "ansi-background": "ansi_black",
            "ansi-foreground": "ansi_white",
            "input-cursor-background": "ansi_black",
            "input-cursor-foreground": "ansi_bright_white",
            "input-selection-background": "ansi_bright_blue",
            "input-selection-foreground": "ansi_black",
            "screen-selection-background": "ansi_bright_blue",
            "screen-selection-foreground": "ansi_black",
        }
    return widgets
