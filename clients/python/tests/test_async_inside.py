"""What is done inside of a sandbox, against a real service."""

from __future__ import annotations

import hashlib
import io
import os
import random
import uuid
from typing import BinaryIO, cast

from sandboxes import (
    APIError,
    AsyncAttachment,
    AsyncClient,
    AsyncSandbox,
    CommandFailed,
    NotFoundError,
    Output,
    ProtocolError,
    StreamError,
    TerminalExit,
    TerminalOutput,
    TerminalReplay,
    Upload,
)

from .async_support import AsyncCase
from .support import CuttingProxy, create_sandbox, delete_sandbox, image

shared = ""


class Broken:
    """A source that cannot be read."""

    def read(self, size: int = -1) -> bytes:
        """Fails."""
        raise OSError("the source is broken")


def setUpModule() -> None:
    global shared
    shared = create_sandbox()


def tearDownModule() -> None:
    delete_sandbox(shared)


class AsyncInside(AsyncCase):
    async def sandbox(self, url: str | None = None) -> AsyncSandbox:
        """The sandbox that all tests here share."""
        client = AsyncClient(url)
        self.addAsyncCleanup(client.aclose)
        return await client.get(shared)

    async def test_commands(self) -> None:
        commands, out, err = (await self.sandbox()).commands, list[str](), list[str]()
        result = await commands.run("pwd; echo $A; id -u; echo oops >&2; exit 3", cwd="/tmp", envs={"A": "b c"}, uid=1000,
                                    on_stdout=out.append, on_stderr=err.append)
        self.assertEqual((result.stdout, result.stderr, result.exit_code), ("/tmp\nb c\n1000\n", "oops\n", 3))
        self.assertEqual(("".join(out), "".join(err)), (result.stdout, result.stderr))
        with self.assertRaises(CommandFailed):
            result.check()
        odd = await commands.run(r"printf 'a\n\n\377\n\n end'")
        self.assertEqual(odd.check().stdout_bytes, b"a\n\n\xff\n\n end")
        late = await commands.run("sleep 100", timeout=0.2)
        self.assertEqual((late.exit_code, late.error), (None, "CommandTimeoutError"))
        with self.assertRaises(APIError):
            await commands.run("true", cwd="/no/such/folder")

    async def test_out_of_memory(self) -> None:
        async with AsyncClient() as client, await client.create(image(), memory="64Mi") as sandbox:
            result = await sandbox.commands.run("awk 'BEGIN { x = \"x\"; while (1) x = x x }'")
            self.assertEqual((result.exit_code, result.reason), (137, "OOM_KILLED"))
            with self.assertRaisesRegex(CommandFailed, "memory ran out") as caught:
                result.check()
            self.assertEqual((caught.exception.exit_code, caught.exception.reason), (137, "OOM_KILLED"))
            self.assertEqual([status.reason for status in await sandbox.commands.list()], ["OOM_KILLED"])
            self.assertIsNone((await sandbox.commands.run("kill -9 $$")).reason)

    async def test_stdin(self) -> None:
        commands = (await self.sandbox()).commands
        data = os.urandom(1 << 20)
        digest = hashlib.sha256(data).hexdigest() + "  -\n"
        self.assertEqual((await commands.run("sha256sum", stdin=data)).stdout, digest)
        self.assertEqual((await commands.run("sha256sum", stdin=io.BytesIO(data))).stdout, digest)
        self.assertEqual((await commands.run("cat", stdin="ä€")).stdout, "ä€")
        self.assertEqual((await commands.run("cat", stdin="")).stdout, "")
        self.assertEqual((await commands.run("cat")).stdout, "")
        command = await commands.start('while read line; do echo "<$line>"; done', stdin=True)
        for line in ("one", "two"):
            await command.stdin.write(line + "\n")
            async for output in command:
                self.assertEqual(output.data, f"<{line}>\n".encode())
                break
        again = await commands.connect(command.id)  # goes on where the other one stopped
        await again.stdin.aclose()
        await again.stdin.aclose()
        with self.assertRaises(BrokenPipeError):
            await again.stdin.write("more")
        self.assertEqual((await command.wait()).stdout, "<one>\n<two>\n")
        # A command that reads no further ends all the same; a source that fails ends its command.
        with open("/dev/zero", "rb") as endless:
            self.assertEqual((await commands.run("head -c 3 | wc -c", stdin=endless)).stdout.strip(), "3")
        with self.assertRaisesRegex(OSError, "the source is broken"):
            await commands.run("cat; sleep 1000", stdin=cast(BinaryIO, Broken()))

    async def test_stdin_across_cuts(self) -> None:
        data = os.urandom(2 << 20)
        started = await (await self.sandbox()).commands.start("sha256sum", stdin=True)
        with CuttingProxy(seed=6, least=0, most=60) as proxy:
            commands = (await self.sandbox(proxy.url)).commands
            stdin = (await commands.connect(started.id)).stdin
            proxy.cutting = True
            for start in range(0, len(data), 100_000):
                await stdin.write(data[start : start + 100_000])
            proxy.lost = 1
            await stdin.aclose()
            self.assertGreater(proxy.cuts, 1)
        self.assertEqual((await started.wait()).stdout, hashlib.sha256(data).hexdigest() + "  -\n")

    async def test_started_commands(self) -> None:
        commands = (await self.sandbox()).commands
        async with await commands.start("echo one; read line </dev/zero; sleep 100") as command:
            async for output in command:
                self.assertEqual(output, Output("stdout", b"one\n"))
                break
            self.assertTrue((await command.status()).running)
            await command.interrupt()
            self.assertNotEqual((await command.wait()).exit_code, 0)

        background = await commands.start("echo one; until test -e /tmp/go; do sleep 0.05; done; echo two", background=True)
        connected = await commands.connect(background.id)
        async for output in connected:
            self.assertEqual(output.text, "one\n")
            break
        logs = await background.logs()
        self.assertEqual((logs.text, logs.cursor), ("one\n", 0))
        listed = await commands.list(running=True)
        self.assertEqual([(c.id, c.cwd) for c in listed if c.id == background.id], [(background.id, "/")])
        await commands.run("touch /tmp/go")
        self.assertEqual((await connected.wait()).stdout, "one\ntwo\n")
        self.assertEqual((await background.wait()).exit_code, 0)
        self.assertEqual((await background.logs(logs.cursor)).text, "two\n")
        self.assertNotIn(background.id, [c.id for c in await commands.list(running=True)])
        self.assertIn(background.id, [c.id for c in await commands.list()])
        with self.assertRaises(NotFoundError):
            await commands.connect("no-such-command")

    async def test_files(self) -> None:
        files, folder = (await self.sandbox()).files, f"/tmp/{uuid.uuid4()}"
        data = random.Random(1).randbytes(300_000)
        await files.write(f"{folder}/a b.bin", data, mode="640")
        await files.write(f"{folder}/c.bin", io.BytesIO(data))
        await files.write_all([Upload(path=f"{folder}/d.txt", data="one two"), Upload(path=f"{folder}/e/f.txt", data=b"")])
        self.assertEqual(await files.read(f"{folder}/a b.bin"), data)
        self.assertEqual(await files.read(f"{folder}/c.bin", start=1000, end=2000), data[1000:2000])
        with self.assertRaises(ProtocolError):
            await files.read(f"{folder}/c.bin", limit=1000)
        info = await files.info(f"{folder}/a b.bin")
        self.assertEqual((info.size, info.mode, info.type), (len(data), 640, "file"))
        self.assertEqual(len(await files.infos([f"{folder}/c.bin", f"{folder}/d.txt"])), 2)
        await files.replace(f"{folder}/d.txt", "two", "three")
        self.assertEqual(await files.read_text(f"{folder}/d.txt"), "one three")
        await files.move(f"{folder}/d.txt", f"{folder}/g.txt")
        await files.make_directory(f"{folder}/h", mode="0700")
        await files.set_permissions(f"{folder}/g.txt", mode="600", owner="1000")
        self.assertEqual((await files.info(f"{folder}/g.txt")).owner, "1000")
        names = [entry.path.removeprefix(folder) for entry in await files.list(folder)]
        self.assertEqual(names, ["/a b.bin", "/c.bin", "/e", "/g.txt", "/h"])
        self.assertEqual([entry.path for entry in await files.search(folder, "f*")], [f"{folder}/e/f.txt"])
        await files.delete(f"{folder}/g.txt")
        self.assertFalse(await files.exists(f"{folder}/g.txt"))
        await files.delete_directory(folder)
        self.assertFalse(await files.exists(folder))
        with self.assertRaises(NotFoundError) as missing:
            await files.read(folder)
        self.assertEqual(missing.exception.code, "FILE_NOT_FOUND")

    async def test_watch(self) -> None:
        files, folder = (await self.sandbox()).files, f"/tmp/{uuid.uuid4()}"
        await files.make_directory(folder)
        async with files.watch(folder) as events:
            self.assertEqual((await events.__anext__()).type, "ready")
            await files.write(f"{folder}/new", "x")
            async for event in events:
                if event.path == f"{folder}/new":
                    break
            await files.delete_directory(folder)
            async for event in events:
                pass  # the stream ends with the folder

    async def test_download_with_cuts(self) -> None:
        data = random.Random(2).randbytes(1 << 20)
        await (await self.sandbox()).files.write("/tmp/download", data)
        with CuttingProxy(seed=2, least=20_000, most=80_000) as proxy:
            sandbox = await self.sandbox(proxy.url)
            proxy.cutting = True
            self.assertEqual(await sandbox.files.read("/tmp/download"), data)
            self.assertGreater(proxy.cuts, 10)

    async def test_streams_that_cannot_be_resumed(self) -> None:
        with CuttingProxy(seed=3, least=600, most=700) as proxy:
            sandbox = await self.sandbox(proxy.url)
            await sandbox.files.make_directory("/tmp/watched")
            proxy.cutting = True
            with self.assertRaises(StreamError) as cut:
                async for event in sandbox.files.watch("/tmp/watched"):
                    await (await self.sandbox()).files.write(f"/tmp/watched/{event.timestamp}", "x")
            self.assertIn("/tmp/watched", str(cut.exception))

    async def seen(self, viewer: AsyncAttachment, wanted: bytes) -> None:
        """Reads what the terminal shows until there is something."""
        shown = b""
        async for event in viewer:
            if isinstance(event, TerminalReplay):
                shown = b""
            elif isinstance(event, TerminalOutput):
                shown += event.data
            if wanted in shown:
                return
        self.fail(f"the terminal ended without {wanted!r}: {shown!r}")

    async def test_terminals(self) -> None:
        terminals = (await self.sandbox()).terminals
        terminal = await terminals.create("sh", ["-i"], envs={"A": "B"}, rows=30, cols=90)
        async with terminal.attach() as viewer:
            await viewer.send("echo $A-$((6 * 7))\n")
            await self.seen(viewer, b"B-42\r\n")
            await viewer.resize(31, 91)
        self.assertIn(terminal.id, [info.id for info in await terminals.list()])
        async with (await terminals.connect(terminal.id)).attach() as again:
            await self.seen(again, b"B-42\r\n")  # replayed
            info = await terminal.info()
            self.assertEqual((info.rows, info.cols, info.running), (31, 91, True))
            await again.send(b"exit 5\n")
            last = [event async for event in again][-1]
            self.assertEqual(last, TerminalExit(5))
        other_user = await terminals.create("sh", ["-c", "id -u"], uid=1000)
        async with other_user.attach() as viewer:
            await self.seen(viewer, b"1000\r\n")
        limited = await terminals.create("sleep", ["1000"], timeout=0.5)
        async with limited.attach() as viewer:
            self.assertEqual([event async for event in viewer][-1], TerminalExit(None))
        other = await terminals.create()
        await other.delete()
        async with other.attach() as viewer:
            self.assertIsInstance([event async for event in viewer][-1], TerminalExit)

    async def test_terminal_that_is_cut_off(self) -> None:
        with CuttingProxy(seed=4, least=400, most=2000) as proxy:
            terminals = (await self.sandbox(proxy.url)).terminals
            proxy.cutting = False
            terminal = await terminals.create("sh", ["-c", "seq 1 2000; sleep 100"])
            proxy.cutting = True
            async with terminal.attach() as viewer:
                async for _ in viewer:
                    if proxy.cuts >= 3:
                        break
                proxy.cutting = False
                await self.seen(viewer, b"\r\n1999\r\n2000\r\n")
            await terminal.delete()

    async def test_network(self) -> None:
        async with AsyncClient() as client, await client.create(image()) as sandbox:
            network = sandbox.network
            await network.allow("example.com")
            policy = await network.deny("10.0.0.0/8")
            self.assertEqual([(rule.action, rule.target) for rule in policy.egress or []],
                             [("deny", "10.0.0.0/8"), ("allow", "example.com")])
            policy = await network.delete_rules("example.com")
            self.assertEqual(len(policy.egress or []), 1)
            await sandbox.commands.run("nc -w 1 10.1.2.3 80 </dev/null")
            async with network.watch_decisions() as decisions:
                self.assertEqual((await decisions.__anext__()).target, "10.1.2.3")
            self.assertEqual([decision.action for decision in await network.decisions()], ["deny"])
            proposal = await network.proposal()
            self.assertEqual(proposal.default_action, "deny")
            self.assertEqual(await network.set_policy(proposal), await network.policy())


class AsyncCells(AsyncCase):
    async def test_out_of_memory(self) -> None:
        async with AsyncClient() as client, await client.create(os.environ["SANDBOX_CODE_IMAGE"], memory="512Mi") as sandbox:
            died = await sandbox.code.run("x = bytearray(2 << 30)")
            self.assertEqual((died.reason, died.error and died.error.name), ("OOM_KILLED", "KernelDied"))
            following = await sandbox.code.run("6 * 7")
            self.assertEqual((following.text, following.reason), ("42", None))

    async def test_code(self) -> None:
        async with AsyncClient() as client, await client.create(os.environ["SANDBOX_CODE_IMAGE"]) as sandbox:
            code, out, results = sandbox.code, list[str](), list[str | None]()
            context = await code.create_context("python")
            await code.run("x = 41", context=context)
            done = await code.run("import sys\nprint('a'); print('b', file=sys.stderr)\nx + 1", context=context.id,
                                  on_stdout=out.append, on_result=lambda result: results.append(result.text))
            self.assertEqual((done.text, done.stdout, done.stderr, done.error, done.count), ("42", "a\n", "b\n", None, 2))
            self.assertEqual((out, results), (["a\n"], ["42"]))
            picture = await code.run("from IPython.display import Image\nImage(data=b'\\x89PNG\\r\\n\\x1a\\n' + bytes(20))", context=context)
            self.assertEqual((picture.results[0].png or b"")[:4], b"\x89PNG")
            raised = await code.run("1 / 0", context=context)
            assert raised.error is not None
            self.assertEqual(raised.error.name, "ZeroDivisionError")
            self.assertTrue(raised.error.traceback)
            self.assertEqual((await code.run("print(40 + 2)", language="python")).stdout, "42\n")

            async with await code.start("print('begun', flush=True)\nimport time; time.sleep(1000)", context=context) as cell:
                printed = b""  # the kernel may send the line and its end in two messages
                async for output in cell:
                    assert isinstance(output, Output)
                    self.assertEqual(output.stream, "stdout")
                    printed += output.data
                    if printed.endswith(b"\n"):
                        break
                self.assertEqual(printed, b"begun\n")
                await cell.interrupt()
                error = (await cell.wait()).error
                self.assertEqual(error and error.name, "KeyboardInterrupt")
                again = await (await code.connect(cell.id)).wait()
                self.assertEqual(again.stdout, "begun\n")
            await code.interrupt(context)
            contexts = {item.id: item.default for item in await code.list_contexts("python")}
            self.assertIsNone(contexts.pop(context.id))
            self.assertEqual(list(contexts.values()), [True])  # that of the cell which named none
            self.assertEqual((await code.get_context(context.id)).language, "python")
            await code.delete_context(context)
            await code.delete_contexts("python")
            with self.assertRaises(NotFoundError):
                await code.get_context(context.id)
