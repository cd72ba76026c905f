"""The browser's door: loopback, a token in the address, the origin checked, read-only unless asked."""

from __future__ import annotations

import asyncio
import gc
import json
import socket

import pytest

pytest.importorskip("textual_serve", reason="needs the serve extra: textual-serve")

from aiohttp import ClientSession, WSMsgType, web

from kernelarc_tui.serve import command_line, make_server

TOKEN = "test-token"


@pytest.fixture
async def address(ended):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = make_server(port=port, allow_control=False, campaign=ended, token=TOKEN)
    runner = web.AppRunner(await server._make_app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield f"http://127.0.0.1:{port}"
    await runner.cleanup()
    await asyncio.sleep(0.2)
    gc.collect()  # textual-serve leaves its pipes to the collector, which must run while the loop does


async def test_without_the_token_there_is_nothing(address):
    async with ClientSession() as client:
        for path in ("/", "/ws", "/static/js/textual.js", "/wrong-token/"):
            async with client.get(address + path) as response:
                assert response.status == 404
        async with client.get(f"{address}/{TOKEN}/") as response:
            assert response.status == 200 and "KernelArc" in await response.text()
            assert response.headers["Referrer-Policy"] == "no-referrer"
            assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]


async def test_other_hosts_and_origins_are_turned_away(address):
    async with ClientSession() as client:
        async with client.get(f"{address}/{TOKEN}/", headers={"Host": "evil.example:80"}) as response:
            assert response.status == 403
        for origin in ({}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
            headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
            headers["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
            async with client.get(f"{address}/{TOKEN}/ws", headers={**headers, **origin}) as response:
                assert response.status == 403


async def test_our_own_page_gets_a_read_only_app(address):
    async with (
        ClientSession() as client,
        client.ws_connect(f"{address}/{TOKEN}/ws?width=100&height=30", headers={"Origin": address}) as page,
    ):
        shown = await _until(page, b"read-only")
        assert b"attn_out_proj_residual" in shown
        await page.send_str(json.dumps(["stdin", "d"]))
        await _until(page, b"nothing was sent")


async def _until(page, text: bytes) -> bytes:
    shown = b""
    async with asyncio.timeout(20):
        async for message in page:
            if message.type == WSMsgType.BINARY:
                shown += message.data
                if text in shown:
                    return shown
    raise AssertionError(shown[-500:])


def test_control_is_asked_for_and_paths_are_quoted(tmp_path):
    folder = tmp_path / "a b; rm"
    assert "--control" not in command_line(allow_control=False, campaign=folder)
    assert "--control" in command_line(allow_control=True, campaign=None)
    assert f"'{folder}'" in command_line(allow_control=False, campaign=folder)
