"""Whether a dotted name, an assignment target or a call is refused: the gate's rules over resolved names. Pure."""

from __future__ import annotations

import re
import sys
from functools import lru_cache

from engine.guard.gate_names import TYPE_OF
from engine.guard.gate_tables import DENIED, FORBIDDEN_ATTRIBUTES, TABLES
from engine.text import is_secret_name

Refusal = tuple[str, str]  # (code, what is wrong and why)

_STDLIB = frozenset(sys.stdlib_module_names)
_PATHS = re.compile(r"/(?:proc|sys|dev|etc|root|home|run|var|boot|tmp)(?:/[\w.*{}-]{0,64}){0,16}")
_FORMAT_REACH = re.compile(r"\{[^{}]{0,200}[.\[]_{0,1}_\w")
_IDENTIFIER_PATH = re.compile(r"[\w.]{1,200}")
_HINTS = {"sys.path": "; leave it out: the candidate's own folder is searched already"}
ACCESSORS = frozenset({"__getattribute__", "__setattr__", "__delattr__"})
_WRITES = frozenset("wax+")
_OPENERS = frozenset({"bz2.BZ2File", "gzip.GzipFile", "lzma.LZMAFile"})


@lru_cache(maxsize=8192)
def refuse_dotted(target: str) -> Refusal | None:
    """Why ``target`` (such as ``torch.serialization.os.system``) may not be used, or ``None``."""
    if target == TYPE_OF or target.startswith(TYPE_OF + "."):
        return None
    parts = target.split(".")
    prefixes = [".".join(parts[: i + 1]) for i in range(len(parts))]
    for prefix, part in zip(prefixes[1:], parts[1:], strict=True):
        if part.lstrip("_") in TABLES.reexported and prefix not in TABLES.reexport_fine:
            return "gate.forbidden-name", f"{prefix} is the module {part} reached through another one"
    for prefix in reversed(prefixes):
        if prefix in TABLES.permitted:
            return None
        if prefix in DENIED:
            return "gate.forbidden-name", f"{prefix} is not available: {DENIED[prefix]}"
    for prefix, member in zip(prefixes, parts[1:], strict=False):
        allowed = TABLES.allowed_only.get(prefix)
        if (
            allowed is not None
            and member not in allowed
            and not (member.startswith("__") and member.endswith("__"))
        ):
            hint = _HINTS.get(f"{prefix}.{member}", "")
            return "gate.forbidden-call", f"{prefix}.{member} is not available to a kernel{hint}"
    if "__dict__" in parts[1:]:
        return "gate.forbidden-name", f"{target} reaches into a module"
    if parts[0] in _STDLIB and any(p.startswith("_") and not p.endswith("__") for p in parts[1:]):
        return "gate.forbidden-name", f"{target} is a private part of the standard library"
    return _refuse_torch(parts) if parts[0] == "torch" else None


def _refuse_torch(parts: list[str]) -> Refusal | None:
    if len(parts) > 2 and parts[1] in ("fx", "jit", "utils"):
        private = next((p for p in parts[2:] if p.startswith("_") and not p.endswith("__")), None)
        if private is not None and private not in ("_pytree", "_triton", "_config", "_foreach_utils"):
            return "gate.forbidden-name", f"{'.'.join(parts)} is a private part of torch.{parts[1]}"
    if len(parts) < 3 or not parts[1].startswith("_") or parts[1].startswith("__"):
        return None
    if parts[1] not in TABLES.torch_private:
        return "gate.forbidden-name", f"{'.'.join(parts[:3])} is a private part of torch"
    if parts[1] == "_C" and not parts[2].startswith(TABLES.torch_c):
        return "gate.forbidden-name", f"{'.'.join(parts[:3])} is a private part of torch"
    return None


def refuse_import(target: str) -> Refusal | None:
    """The same for an import statement, under its own code."""
    found = refuse_dotted(target)
    return None if found is None else ("gate.forbidden-import", found[1])


def refuse_attribute(name: str) -> Refusal | None:
    """Attributes that are refused on any object."""
    why = FORBIDDEN_ATTRIBUTES.get(name)
    return None if why is None else ("gate.forbidden-name", f".{name}: {why}")


def refuse_attribute_text(name: str) -> Refusal | None:
    """The same for a name that is text: nothing would judge what the method that it looks up is given."""
    if name in ACCESSORS:
        return "gate.obfuscation", f"{name} is looked up as a value; call it directly"
    return refuse_attribute(name)


def refuse_attribute_path(path: str) -> Refusal | None:
    """The same for a dotted path that is looked up on an unknown object (``attrgetter("a.b")``)."""
    for part in path.split("."):
        found = refuse_attribute_text(part)
        if found is not None:
            return found
        if part.lstrip("_") in TABLES.reexported or part == "system":
            return "gate.forbidden-name", f"the attribute path {path!r} leads to {part}"
    return None


def refuse_store(target: str, attribute: str) -> Refusal | None:
    """Assigning ``attribute`` on what resolves to ``target``: only configuration flags may be set."""
    if target == TYPE_OF or target.startswith(TYPE_OF + "."):
        return "gate.monkey-patch", f"changes {attribute} on a class that is not its own"
    full = f"{target}.{attribute}"
    if attribute == "fp32_precision" and not full.startswith(TABLES.precision_owners):
        return "gate.global-precision", f"sets {full} for the whole process; cast the operands instead"
    if full.startswith(TABLES.flags) and not any(p in TABLES.flags_denied for p in full.split(".")):
        return None
    return "gate.monkey-patch", f"changes {full}, which is not its own; define a function of your own instead"


def refuse_precision(value: str | None) -> Refusal | None:
    """The process-wide precision of float32 products may go down to TF32, by its written-out name.

    Below that every product of the process is a bfloat16 one, the harness's and the library's own included: who
    has found a product that tolerates it casts that product's operands.
    """
    if value in ("highest", "high"):
        return None
    told = "a computed value" if value is None else repr(value)
    return "gate.global-precision", f"sets the precision of every product to {told}; cast the operands instead"


def refuse_environment_read(name: str | None) -> Refusal | None:
    if name is not None and is_secret_name(name):
        return "gate.forbidden-name", f"reads {name}, which looks like a secret"
    return None


def refuse_environment_write(name: str | None) -> Refusal | None:
    """Library tuning variables of the candidate's own process may be set, by their written-out name."""
    if name is None:
        return "gate.forbidden-call", "sets an environment variable whose name is computed"
    if name.startswith(TABLES.env_writable) and not name.startswith(TABLES.env_denied):
        return None
    return "gate.forbidden-call", f"sets the environment variable {name}"


def refuse_open_mode(mode: str | None, *, given: bool) -> Refusal | None:
    if given and mode is None:
        return "gate.forbidden-call", "opens a file with a computed mode"
    if mode is not None and _WRITES & set(mode):
        return "gate.forbidden-call", f"opens a file for writing (mode {mode!r})"
    return None


def is_opener(target: str) -> bool:
    """Whether a resolved name opens the file that it is given first, in the mode that it is given second."""
    return target.endswith(".open") or target in _OPENERS


def refuse_path(path: str | None) -> Refusal | None:
    if path is not None and _PATHS.fullmatch(path):
        return "gate.forbidden-call", f"opens {path}, outside its own folder"
    return None


def refuse_text(text: str) -> Refusal | None:
    """String constants that reach into objects when they are formatted."""
    if "{" in text and "__" in text and _FORMAT_REACH.search(text) and ".__" in text:
        return "gate.obfuscation", "a format string looks up private attributes"
    return None


def refuse_library(texts: list[str]) -> Refusal | None:
    """``torch.library`` calls that would replace an operator of torch itself."""
    for text in texts:
        if text in ("aten", "prim", "prims", "quantized", "_") or text.startswith(
            ("aten::", "prim::", "prims::", "quantized::")
        ):
            return "gate.monkey-patch", f"registers an implementation for torch's own operators ({text})"
    return None


def sensitive(text: str, table: frozenset[str]) -> bool:
    """Whether a string, or a part of a dotted one, is telling as an attribute name."""
    if not _IDENTIFIER_PATH.fullmatch(text):
        return False
    return any(part in table for part in text.split("."))
