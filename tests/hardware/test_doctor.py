"""``doctor``: each check says what is, what it means and what to do; it never raises and never shows a secret."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine.hardware import checks
from engine.hardware.checks import Check
from engine.hardware.doctor import examine
from engine.hardware.facts import CudaProbe, Gpu
from engine.model_keys import dotenv_file, missing_key

GPU = Gpu(index=0, name="NVIDIA H200", uuid="u", memory_bytes=141 << 30, compute_capability=[9, 0])


def named(found: list[Check], name: str) -> Check:
    return next(check for check in found if check.name == name)


def test_everything_is_looked_at_and_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_BASE", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-very-secret-value")
    found = examine()
    names = {check.name for check in found}
    assert {"python", "torch", "cpu", "nvml", "cupti", "c++ compiler", "nvcc", "ptrace scope", "sqlite"} <= names
    assert {"state folder", "lock folder", "runtime folder", "api keys", "terminal"} <= names
    assert any(name.startswith("sandbox") for name in names)
    assert {check.status for check in found} <= {"ok", "warn", "fail", "absent"}
    text = msgspec.json.encode(found).decode()
    assert "ANTHROPIC_API_KEY" in text and "very-secret" not in text
    assert all("\n" not in check.detail + check.fix for check in found)


def test_looking_imports_neither_torch_nor_a_driver() -> None:
    code = (
        "import sys\nfrom engine.hardware.doctor import examine\nexamine()\n"
        "print([m for m in ('torch', 'litellm', 'textual') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_gpu_without_a_cuda_torch_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "torch_has_cuda", lambda: False)
    found = checks.gpus(CudaProbe(devices=[GPU]))
    assert (found[0].name, found[0].status) == ("cuda:0", "ok")
    assert "141 GiB" in found[0].detail and "9.0" in found[0].detail
    assert found[1].status == "warn"
    assert checks.gpus(CudaProbe(error="no CUDA driver"))[0].status == "absent"


def test_what_a_gpu_box_lacks_is_a_warning_and_elsewhere_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(stem: str) -> None:
        raise OSError("none")

    monkeypatch.setattr(checks, "package_version", lambda name: None)
    monkeypatch.setattr(checks, "find", missing)
    with_gpu, without = CudaProbe(devices=[GPU]), CudaProbe(error="none")
    assert (checks.cupti(with_gpu).status, checks.cupti(without).status) == ("warn", "absent")
    assert (checks.nvml(None, None, with_gpu).status, checks.nvml(None, None, without).status) == (
        "warn",
        "absent",
    )
    assert checks.nvml("580.1", ["GPU-1"], with_gpu).status == "ok"
    assert checks.torch().status == "fail"


def test_a_box_without_any_sandbox_is_told_what_that_means() -> None:
    found = checks.sandbox({"bubblewrap": "off: not installed", "namespaces": "off: EPERM"})
    assert named(found, "sandbox").status == "warn" and "read your files" in named(found, "sandbox").detail
    assert all(check.status != "warn" for check in checks.sandbox({"bubblewrap": "on"}))
    assert checks.sandbox(None)[0].status == "warn"


@pytest.mark.parametrize(("scope", "status"), [("0", "warn"), ("1", "ok"), (None, "absent")])
def test_ptrace_scope(tmp_path: Path, scope: str | None, status: str) -> None:
    path = tmp_path / "ptrace_scope"
    if scope is not None:
        path.write_text(scope + "\n")
    assert checks.ptrace(path).status == status


def test_an_old_sqlite_is_named_with_its_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 40, 1))
    assert "WAL-reset" in checks.sqlite().detail
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 51, 3))
    assert "WAL-reset" not in checks.sqlite().detail
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 30, 0))
    assert checks.sqlite().status == "fail"


def test_a_network_home_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELARC_HOME", str(tmp_path / "not" / "there" / "yet"))
    assert checks.state_folder().status in ("ok", "warn")
    monkeypatch.setattr(checks, "file_system_of", lambda folder: "nfs4")
    found = checks.state_folder()
    assert found.status == "warn" and "local disk" in found.fix and "nfs4" in found.detail


def test_the_nearest_mount_names_the_file_system(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:5 / /home rw shared:1 - nfs4 server:/home rw\n"
        "3 2 0:6 / /home/me/my\\040disk rw - fuse.sshfs x rw\nbroken line\n"
    )
    for folder, kind in (
        ("/var/lib", "ext4"),
        ("/home/me", "nfs4"),
        ("/home/me/my disk/x", "fuse.sshfs"),
        ("/homework", "ext4"),
    ):
        assert checks.file_system_of(Path(folder), table) == kind
    assert checks.file_system_of(Path("/"), tmp_path / "none") == ""


def test_a_runtime_folder_of_somebody_else_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kernelarc").mkdir(mode=0o755)
    (tmp_path / "kernelarc").chmod(0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found = checks.runtime_folder()
    assert found.status == "fail" and "0700" in found.detail


def test_keys_are_named_and_never_shown() -> None:
    found = checks.keys({"OPENAI_API_KEY": "sk-secret", "GROQ_API_KEY": "", "HOME": "/root"})
    assert found.detail == "OPENAI_API_KEY"
    assert checks.keys({}).status == "absent"


ANSWERS = {
    "/v1/models": (200, b'{"data": [{"id": "qwen3"}, {"id": "b\\u001b[31mad"}]}'),
    "/odd/models": (200, b"<html>"),
}


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = ANSWERS.get(self.path, (404, b"{}"))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    running = http.server.HTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()


def test_a_model_server_is_asked_for_its_models(server: str) -> None:
    found = checks.endpoint(f"{server}/v1/")
    assert found.status == "ok" and "2 models (qwen3, bad)" in found.detail
    assert "HTTP 404" in checks.endpoint(f"{server}/nope").detail
    assert "not as an OpenAI API" in checks.endpoint(f"{server}/odd").detail


@pytest.mark.parametrize(
    "base", ["http://127.0.0.1:9/v1", "not a url", "ftp://x", "http://user:hunter22@127.0.0.1:9"]
)
def test_a_model_server_that_is_not_there_is_a_warning(base: str) -> None:
    found = checks.endpoint(base, timeout_s=1.0)
    assert found.status == "warn" and "hunter22" not in found.detail and "\n" not in found.detail


@pytest.mark.parametrize(
    ("environ", "tty", "status", "words"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}, True, "ok", "truecolor"),
        ({"TERM": "tmux-256color", "TMUX": "x", "LANG": "en_US.UTF-8"}, True, "ok", "256 colours, 80x24, tmux"),
        ({"TERM": "linux", "LANG": "de_DE.utf8"}, True, "ok", "16 colours"),
        ({"TERM": "xterm-256color", "NO_COLOR": "1", "LANG": "C.UTF-8"}, True, "ok", "no colour"),
        ({"TERM": "xterm", "LANG": "C"}, True, "warn", "locale C"),
        ({"TERM": "dumb", "LANG": "C.UTF-8"}, True, "absent", "plain text"),
        ({"TERM": "xterm"}, False, "absent", "plain text"),
    ],
)
def test_terminals(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], tty: bool, status: str, words: str
) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 24)))
    found = checks.terminal(environ, tty)
    assert found.status == status and words in found.detail


def test_a_home_that_cannot_be_made_names_the_variable_and_not_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELARC_HOME", "/proc/nope")
    found = checks.state_folder()
    assert found.status == "fail" and "/proc/nope cannot be" in found.detail
    assert "KERNELARC_HOME" in found.fix


@pytest.mark.parametrize(
    ("model", "api_base", "environ", "missing"),
    [
        ("openai/gpt-5", None, {}, "OPENAI_API_KEY"),
        ("openai/gpt-5", None, {"OPENAI_API_KEY": "x"}, ""),
        ("gpt-5", None, {"ANTHROPIC_API_KEY": "x"}, "OPENAI_API_KEY"),
        ("anthropic/claude-sonnet-4-5", None, {}, "ANTHROPIC_API_KEY"),
        ("gemini/gemini-2.5-pro", None, {"GOOGLE_API_KEY": "x"}, ""),
        ("openai/qwen3", "http://localhost:8000/v1", {}, ""),
        ("openai/qwen3@http://localhost:8000/v1", None, {}, ""),
        ("bedrock/anthropic.claude", None, {}, ""),  # finds its credentials in other ways, too
        ("nobody-knows/x", None, {}, ""),
        ("anthropic/claude-sonnet-4-5", None, {"ANTHROPIC_AUTH_TOKEN": "x"}, ""),
        ("claude-sonnet-4-5", None, {"ANTHROPIC_FEDERATION_RULE_ID": "x"}, ""),
        ("openai/gpt-5", None, {"OPENAI_IDENTITY_TOKEN_FILE": "/x"}, ""),
        ("openai/gpt-5", None, {"OPENAI_API_BASE": "http://box"}, "OPENAI_API_KEY"),  # its client insists on one
        ("deepseek/chat", None, {"DEEPSEEK_API_BASE": "http://box"}, ""),
        ("together_ai/x", None, {"TOGETHER_AI_API_BASE": "http://box"}, ""),
        ("deepseek/chat", None, {"GROQ_API_BASE": "http://box"}, "DEEPSEEK_API_KEY"),
        ("openai/gpt-5", None, {"USE_LITELLM_PROXY": "True"}, ""),
        ("azure/gpt-5", None, {"AZURE_AD_TOKEN": "x"}, ""),
        ("vertex_ai/gemini-2.5-pro", None, {"GOOGLE_APPLICATION_CREDENTIALS": "/x"}, ""),
    ],
)
def test_a_models_key_is_missed_only_where_it_is_needed(
    model: str, api_base: str | None, environ: dict[str, str], missing: str
) -> None:
    assert missing_key(model, api_base, environ) == missing


def test_a_key_in_the_env_file_that_litellm_reads_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "project" / ".venv" / "lib" / "litellm"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    monkeypatch.syspath_prepend(package.parent)
    (tmp_path / ".env").write_text("OPENAI_API_KEY=x\n")
    assert missing_key("groq/x", None, {}, dotenv=dotenv_file({})) == "GROQ_API_KEY"
    (tmp_path / "project" / ".env").write_text("export GROQ_API_KEY=x\n")  # the nearest one is read
    assert missing_key("groq/x", None, {}, dotenv=dotenv_file({})) == ""
    assert missing_key("openai/x", None, {}, dotenv=dotenv_file({})) == "OPENAI_API_KEY"
    assert dotenv_file({"LITELLM_MODE": "PRODUCTION"}) == ""
    (tmp_path / "project" / ".env").write_text("USE_LITELLM_PROXY=true\n")
    assert missing_key("openai/x", None, {}, dotenv=dotenv_file({})) == ""
