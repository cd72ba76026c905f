"""Light checks of C++ and CUDA sources and of build flags.

Macros and pasted tokens hide from them; the process boundary must hold what they cannot see.
"""

from __future__ import annotations

import re

from engine.problems.solution import CompileOptions

# What is not closed ends with its line or the text: nothing is scanned twice, however it was written.
_LITERALS = re.compile(
    r"//[^\n]*|/\*.*?(?:\*/|\Z)"
    r"|(?<![A-Za-z0-9_])(?:u8|[uUL])?R\"(?P<tag>[^()\\\s]{0,16})\((?:.*?\)(?P=tag)\"|.*\Z)"
    r"|\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n]){1,8}'",
    re.DOTALL,
)
_INCLUDE = re.compile(
    r"^[ \t]*#[ \t]*(?:include|include_next|import|embed)[ \t]*[<\"]([^>\"\n]*)[>\"]", re.MULTILINE
)
_CALLS = re.compile(
    r"(?<![\w.>])(?:std::|::)?(system|popen|execv[pe]*|execl[pe]*|fork|vfork|dlopen|dlsym|ptrace|mprotect|"
    r"process_vm_\w+|socket|connect|kill|setenv|putenv|unsetenv|posix_spawnp?|pthread_create|_exit|signal|sigaction|"
    r"prctl|syscall|memfd_create|shm_open|unlink|fopen|freopen|PyRun_\w+|PyEval_\w+|PyImport_\w+|Py_CompileString\w*|"
    r"cudaIpc\w+|cuIpc\w+|cudaDeviceSetLimit|cuCtxSetLimit|cudaProfiler\w+)\s*\("
)
# Mentioned, not only called: a pointer to one would do as well. The interpreter's frames, closures, hooks and what
# it calls later; torch's observers of every operator, and operators that are not the kernel's own.
_NAMES = re.compile(
    r"\b_?Py(?:Frame|ThreadState|InterpreterState|Interpreter|Cell|Function|Code|Gen|Traceback|TraceBack|Sys|GC|"
    r"Unstable)_\w+|\bPy_(?:AddPendingCall|AtExit)\b|\bPy(?:Mem|Object)_Set\w*Allocator\b|"
    r"\badd(?:Global|ThreadLocal)Callback\b|\bRecordFunctionCallback\b|\bTORCH_LIBRARY_IMPL\s*\(\s*(?:aten|prims|_)\s*,|"
    r"\b(?:py|pybind11)::(?:exec|eval|eval_file|module_?::import)\b|\bstd::(?:ofstream|fstream|thread|async)\b|"
    r"\.incbin\b|\b__attribute__\s*\(\(\s*(?:constructor|destructor)"
)
_FLAG = re.compile(r"[\w+=.,:/@%^-]+")
_FLAG_DENIED = re.compile(
    r"-fplugin|-specs|-wrapper|-B|--?ccbin|--compiler-bindir|-include|-imacros|-idirafter|-isysroot|-o$|--run|"
    r"--output|-Xlinker|-T|@|-fdump|-save-temps|--keep|-M[DMFGTQ]?|-Wl,(?!-rpath|--no-as-needed|-O|-z,|--as-needed)"
)


def code_of(source: str) -> str:
    """The source without comments and with empty string literals."""
    return _LITERALS.sub(lambda m: '""' if m[0][:1] in '"R' else " ", source)


def refuse_native(path: str, source: str) -> tuple[str, str] | None:
    """(code, detail) if a C++ or CUDA source does what no kernel does."""
    for match in _INCLUDE.finditer(source):
        name = match[1].strip()
        if name.startswith(("/", "~")) or ".." in name.split("/"):
            line = source.count("\n", 0, match.start()) + 1
            return "gate.forbidden-call", f"{path} line {line}: includes {name}, outside its own folder"
    code = code_of(source)
    for pattern in (_CALLS, _NAMES):
        found = pattern.search(code)
        if found:
            line = code.count("\n", 0, found.start()) + 1
            name = found[0].rstrip("( \t\n")
            return "gate.forbidden-call", f"{path} line {line}: {name} is not available to a kernel"
    return None


def refuse_flags(options: CompileOptions | None) -> tuple[str, str] | None:
    """(code, detail) if a build flag names a file, a program or a place to write."""
    if options is None:
        return None
    for flag in (*options.cflags, *options.cuda_cflags, *options.ld_flags):
        odd = not _FLAG.fullmatch(flag) or _FLAG_DENIED.match(flag)
        absolute = flag.startswith("/") or re.match(r"-[IL]\s*/(?!usr/|opt/)", flag)
        if odd or absolute or ".." in flag:
            return "gate.language", f"the compile option {flag[:80]!r} is not available"
    return None


def mentions(source: str, function: str) -> bool:
    """Whether a C++ source names the entry function outside comments (a binding's string counts)."""
    stripped = _LITERALS.sub(lambda m: m[0] if m[0].startswith('"') else " ", source)
    return re.search(rf"\b{re.escape(function)}\b", stripped) is not None
