"""The same screens in a browser on this machine, through textual-serve (an optional extra).

Listens on the loopback only. The address carries a random token, requests must name this host and websockets
must come from the page itself, so neither another site in the browser nor another user who does not know the
token gets in. Read-only unless control is asked for.
"""

from __future__ import annotations

import argparse
import secrets
import shlex
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import BadInput

if TYPE_CHECKING:
    from aiohttp import web

HOSTS = ("localhost", "127.0.0.1")


def serve_app(*, port: int, allow_control: bool, campaign: Path | None) -> None:
    """Serve until interrupted. Raises BadInput when the extra is not installed."""
    server = make_server(port=port, allow_control=allow_control, campaign=campaign)
    server.serve()


def command_line(*, allow_control: bool, campaign: Path | None) -> str:
    """What each browser session runs: one app of its own."""
    words = [sys.executable, "-m", "kernelarc_tui.serve"]
    if allow_control:
        words.append("--control")
    if campaign is not None:
        words += ["--campaign", str(campaign)]
    return shlex.join(words)


def make_server(*, port: int, allow_control: bool, campaign: Path | None, token: str = "") -> Any:
    """A textual-serve server behind the token and the origin check."""
    try:
        from aiohttp import web
        from textual_serve.server import Server
    except ImportError as error:
        raise BadInput("textual-serve is not installed", fix="pip install 'kernelarc-tui[serve]'") from error
    secret = token or secrets.token_urlsafe(24)
    address = f"http://localhost:{port}"

    class LocalServer(Server):  # type: ignore[misc]
        async def _make_app(self) -> web.Application:
            outer = web.Application(middlewares=[_guard(port)])
            outer.add_subapp(f"/{secret}", await super()._make_app())
            return outer

        async def on_startup(self, app: web.Application) -> None:
            mode = "with controls" if allow_control else "read-only"
            print(f"KernelArc, {mode}: {address}/{secret}/\nCtrl+C ends it; campaigns go on", flush=True)

        def initialize_logging(self) -> None:
            """Nothing of a session belongs on the terminal that serves it."""

    command = command_line(allow_control=allow_control, campaign=campaign)
    return LocalServer(command, host="localhost", port=port, title="KernelArc", public_url=address)


def _guard(port: int) -> Any:
    """Middleware: only this host by name, websockets only from our own page, nothing leaves for elsewhere."""
    from aiohttp import web

    hosts = {f"{name}:{port}" for name in HOSTS}
    origins = {f"http://{host}" for host in hosts}
    sockets = " ".join(f"ws://{host}" for host in sorted(hosts))
    policy = (
        f"default-src 'self' http://localhost:{port}; script-src 'self' 'unsafe-inline' http://localhost:{port}; "
        f"style-src 'self' 'unsafe-inline' http://localhost:{port}; img-src 'self' data: http://localhost:{port}; "
        f"connect-src 'self' http://localhost:{port} {sockets}; frame-ancestors 'none'"
    )

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.headers.get("Host") not in hosts:
            raise web.HTTPForbidden(text="this address is for this machine only")
        wants_socket = request.headers.get("Upgrade", "").lower() == "websocket"
        origin = request.headers.get("Origin")
        if (wants_socket or origin is not None) and origin not in origins:
            raise web.HTTPForbidden(text="this page is not ours")
        response = await handler(request)
        if not response.prepared:
            response.headers["Content-Security-Policy"] = policy
            response.headers["Referrer-Policy"] = "no-referrer"
            response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    return guard


def _session(arguments: list[str] | None = None) -> None:
    """One browser session: the app on textual-serve's driver."""
    parser = argparse.ArgumentParser(prog="kernelarc serve session")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--campaign", type=Path)
    options = parser.parse_args(arguments)
    from kernelarc_tui.terminal import prepare

    prepare()
    from kernelarc_tui.app import KernelArcApp

    KernelArcApp(options.campaign, read_only=not options.control).run()


if __name__ == "__main__":
    _session()
