"""A thousand cut connections, and every byte as it was written."""

from __future__ import annotations

from sandboxes import AsyncClient

from .async_support import AsyncCase, together
from .support import CuttingProxy, image

CUTS = 1000
AT_ONCE = 8
COMMAND = r"""i=0; while test $i -lt 400; do echo "line $i"; printf 'e\n\n\377\376 %d' $i >&2; i=$((i + 1)); done; exit 7"""


def written() -> tuple[bytes, bytes]:
    """What the command writes."""
    return (b"".join(b"line %d\n" % i for i in range(400)), b"".join(b"e\n\n\xff\xfe %d" % i for i in range(400)))


class AsyncCuts(AsyncCase):
    async def test_a_thousand_cuts(self) -> None:
        with CuttingProxy(seed=5, least=600, most=3000) as proxy:
            async with AsyncClient(proxy.url) as client, await client.create(image()) as sandbox:
                async def stream() -> None:
                    while proxy.cuts < CUTS:
                        out, err = bytearray(), bytearray()
                        async with await sandbox.commands.start(COMMAND) as command:
                            async for output in command:
                                (out if output.stream == "stdout" else err).extend(output.data)
                            result = await command.wait()
                        self.assertEqual((bytes(out), bytes(err)), written())
                        self.assertEqual((result.stdout_bytes, result.stderr_bytes, result.exit_code), (*written(), 7))

                proxy.cutting = True
                await together([stream] * AT_ONCE)
                proxy.cutting = False
        self.assertGreaterEqual(proxy.cuts, CUTS)
