"""Everything through a real proxy, which alone knows the name of the service."""

from __future__ import annotations

import json
import os
import ssl
import uuid
from typing import Any
from unittest.mock import patch
from urllib.parse import quote
from urllib.request import ProxyHandler, build_opener

from sandboxes import AsyncClient, TerminalExit, TransportError

from .async_support import AsyncCase
from .support import PATIENCE, image

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


def proxied(tls: bool, password: str | None = None) -> str:
    """The URL of the proxy, which has TLS itself or not."""
    scheme, _, rest = os.environ["PROXY_TLS_URL" if tls else "PROXY_URL"].partition("://")
    return f"{scheme}://{os.environ['PROXY_USER']}:{quote(password or os.environ['PROXY_PASSWORD'], safe='')}@{rest}"


def counts(host: str) -> dict[str, int]:
    """What the proxy has seen of a host."""
    with build_opener(ProxyHandler({})).open(f"{os.environ['PROXY_URL']}/counts?host={host}", timeout=PATIENCE) as answer:
        return json.load(answer)


class AsyncProxied(AsyncCase):
    def setUp(self) -> None:
        self.host = f"{uuid.uuid4()}.sandbox.test"
        kept = {name: value for name, value in os.environ.items() if name.upper() not in VARIABLES}
        variables = patch.dict(os.environ, {**kept, "SSL_CERT_FILE": os.environ["PROXY_CA"]}, clear=True)
        variables.start()
        self.addCleanup(variables.stop)

    async def use(self, client: AsyncClient) -> None:
        """Requests of every kind."""
        async with client, await client.create(image()) as sandbox:
            async with await sandbox.commands.start("echo one; read x; echo two$x", stdin=True) as command:
                seen = ""
                async for output in command:  # which comes while the command waits
                    seen += output.text
                    if seen == "one\n":
                        await command.stdin.write(b"3\n")
                self.assertEqual(seen, "one\ntwo3\n")
            content = os.urandom(3 << 20)
            await sandbox.files.write("/tmp/file", content)
            self.assertEqual(await sandbox.files.read("/tmp/file"), content)
            terminal = await sandbox.terminals.create("sh")
            async with terminal.attach() as attachment:
                await attachment.send("exit 7\n")
                codes = [event.exit_code async for event in attachment if isinstance(event, TerminalExit)]
            self.assertEqual(codes, [7])

    async def test_everything(self) -> None:
        for scheme, tls in (("http", False), ("https", False), ("http", True), ("https", True)):
            host = f"{scheme}-{tls}-{self.host}".lower()
            with self.subTest(scheme=scheme, tls=tls), patch.dict(os.environ, {f"{scheme.upper()}_PROXY": proxied(tls)}):
                await self.use(AsyncClient(f"{scheme}://{host}"))
            seen = counts(host)
            self.assertEqual((seen["refused"], seen["leaked"]), (0, 0))
            self.assertGreaterEqual(seen["connects"], 1)  # the WebSocket is one of them
            self.assertEqual(seen["requests"] > 5, scheme == "http", seen)

    async def test_the_option_wins(self) -> None:
        with patch.dict(os.environ, {"HTTP_PROXY": "http://127.0.0.1:1", "NO_PROXY": "*"}):
            async with AsyncClient(f"http://{self.host}", proxy=proxied(False)) as client:
                await client.version()
        self.assertEqual(counts(self.host)["requests"], 1)
        with patch.dict(os.environ, {"HTTP_PROXY": proxied(False)}):
            async with AsyncClient(f"http://{self.host}", proxy=False) as client:
                with self.assertRaisesRegex(TransportError, f"^http://{self.host} cannot be reached"):
                    await client.version()
        self.assertEqual(counts(self.host)["requests"], 1)

    async def test_all_proxy_and_no_proxy(self) -> None:
        for scheme in ("http", "https"):
            with patch.dict(os.environ, {"all_proxy": proxied(False)}):
                async with AsyncClient(f"{scheme}://{self.host}") as client:
                    await client.version()
        before = counts(self.host)
        self.assertEqual((before["requests"], before["connects"]), (1, 1))
        for no_proxy in ("sandbox.test", "x, .sandbox.test:80", "*"):
            with patch.dict(os.environ, {"HTTP_PROXY": proxied(False), "NO_PROXY": no_proxy}):
                async with AsyncClient(f"http://{self.host}") as client:
                    with self.assertRaisesRegex(TransportError, f"^http://{self.host} cannot be reached"):
                        await client.version()
        with patch.dict(os.environ, {"HTTP_PROXY": "http://127.0.0.1:1"}):
            async with AsyncClient(os.environ["SANDBOX_URL"]) as client:  # on this machine
                await client.version()
        self.assertEqual(counts(self.host), before)

    async def refused(self, url: str, proxy: str, **more: Any) -> str:
        """The error of a request, which has no password and is not tried again."""
        with patch.dict(os.environ, {"ALL_PROXY": proxy}):
            async with AsyncClient(url, **more) as client:
                with self.assertRaises(TransportError) as refused:
                    await client.version()
        self.assertTrue(refused.exception.permanent)
        self.assertNotIn("secret", str(refused.exception) + repr(client))
        return str(refused.exception)

    async def test_a_proxy_that_refuses(self) -> None:
        for scheme, tls in (("http", False), ("https", False), ("http", True), ("https", True)):
            said = await self.refused(f"{scheme}://{self.host}", proxied(tls, "secret"))
            self.assertRegex(said, r"^the proxy https?://127\.0\.0\.1:[0-9]+ of ALL_PROXY refused the request: 407 Proxy "
                                   r"Authentication Required: the user or password in ALL_PROXY is missing or wrong$")
        self.assertEqual(counts(self.host), {"requests": 0, "connects": 0, "refused": 4, "leaked": 0})
        said = await self.refused("https://elsewhere.test", proxied(False))
        self.assertRegex(said, "of ALL_PROXY refused the request: 403 Forbidden$")

    async def test_authorities(self) -> None:
        unknown = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        said = await self.refused(f"https://{self.host}", proxied(False), tls=unknown)
        self.assertRegex(said, f"^https://{self.host} cannot be reached: the certificate of the server is not trusted")
        said = await self.refused(f"https://{self.host}", proxied(True), tls=unknown)
        self.assertRegex(said, "^the proxy https://.* cannot be reached: the certificate of the server is not trusted")
        said = await self.refused(f"http://{self.host}", os.environ["PROXY_URL"].replace("http:", "https:"))
        self.assertRegex(said, "^the proxy https://.* does not speak TLS: the URL should begin with http://")
