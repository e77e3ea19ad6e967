"""Hundreds of cut connections, and every byte as it was written; failures of a scripted service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from typing import Any, cast
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit

from sandboxes import (
    AsyncClient,
    AsyncSandbox,
    ConflictError,
    NotFoundError,
    ProtocolError,
    SandboxFailed,
    SnapshotFailed,
    StreamError,
)

from .async_support import RUN, AsyncCase, interrupt, together
from .support import PATIENCE, CuttingProxy, Exchange, ScriptedService, described, image, snapshot_of

CUTS = 1000 if os.environ.get("TEST_LONG") else 300
AT_ONCE = 8
COMMAND = r"""i=0; while test $i -lt 400; do echo "line $i"; printf 'e\n\n\377\376 %d' $i >&2; i=$((i + 1)); done; exit 7"""


PIPED = """
import sys
from sandboxes import AsyncClient

class Source:
    def read1(self, size):
        print("reads", flush=True)
        return sys.stdin.buffer.read1(size)

    read = read1

async def main():
    async with AsyncClient(sys.argv[1]) as client:
        sandbox = await client.get("box")
        print((await sandbox.commands.run("true", stdin=Source())).exit_code, flush=True)

"""


def written() -> tuple[bytes, bytes]:
    """What the command writes."""
    return (b"".join(b"line %d\n" % i for i in range(400)), b"".join(b"e\n\n\xff\xfe %d" % i for i in range(400)))


class AsyncCuts(AsyncCase):
    async def test_hundreds_of_cuts(self) -> None:
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


class AsyncFailures(AsyncCase):
    async def scripted(self, service: ScriptedService) -> AsyncSandbox:
        """The sandbox of a scripted service."""
        client = AsyncClient(service.url)
        self.addAsyncCleanup(client.aclose)
        return await client.get("box")

    async def followed(self, printed: bytes, kept: bytes | None, states: list[str],
                       tail: int | None = None) -> bytes:
        """What a followed log gives that ends after what was printed, as when the service stops.

        Its sandbox has these states one after another, "" while the service is away, and then a log.
        """
        def script(exchange: Exchange) -> None:
            if "follow=true" in exchange.path:
                exchange.stream(200, "text/plain", printed)
            elif "/logs" in exchange.path and kept is not None:
                exchange.stream(200, "text/plain", kept)
            elif "/logs" in exchange.path:
                exchange.answer(409, {"code": "CONFLICT", "message": "the log is lost"})
            elif state := (states.pop(0) if states[1:] else states[0]):
                exchange.answer(200, described(state))
            else:
                exchange.answer(503, {"code": "SERVICE_UNAVAILABLE", "message": "it is stopping"})

        with ScriptedService(script) as service:
            sandbox = await self.scripted(service)
            return b"".join([piece async for piece in sandbox.logs(follow=True, tail=tail)])

    async def test_the_log_of_a_command_says_what_is_missing(self) -> None:
        headers = {"EXECD-COMMANDS-TAIL-CURSOR": "0"}

        def script(exchange: Exchange) -> None:
            if exchange.path.endswith("/logs"):
                exchange.stream(200, "text/plain", b"one\n", headers=headers)
            elif "/command/" in exchange.path:
                exchange.answer(200, {"id": "c", "content": "seq 2000000000", "running": True, "exit_code": None,
                                      "started_at": "2026-01-02T15:04:05Z", "finished_at": None})
            else:
                exchange.answer(200, described("Running"))

        with ScriptedService(script) as service:
            command = await (await self.scripted(service)).commands.connect("c")
            self.assertEqual(await command.logs(), ("one\n", 0, 0))
            headers["EXECD-COMMANDS-DROPPED-BYTES"] = "4096"
            self.assertEqual(await command.logs(), ("one\n", 0, 4096))
            headers["EXECD-COMMANDS-DROPPED-BYTES"] = "many"
            with self.assertRaises(ProtocolError):
                await command.logs()

    async def test_followed_logs_end_with_their_service(self) -> None:
        many = b"".join(b"line %d\n" % i for i in range(1000))
        for printed, kept, tail, want in [
            (b"a\n", b"a\nb\n", None, b"a\nb\n"),
            (b"", b"a\n", None, b"a\n"),
            (b"a\n", b"a\n", None, b"a\n"),
            (b"first\n" + many, many, None, b"first\n" + many),
            (b"a" * 100_000, b"a" * (64 << 10), None, b"a" * 100_000),
            (b"b\n", b"a\nb\n", 1, b"b\n"),
            (b"a\n", None, None, b"a\n"),
        ]:
            with self.subTest(printed=printed[:9], tail=tail):
                states = ["Running", "Running", "", "Stopping", "Terminated"]
                self.assertEqual(await self.followed(printed, kept, states, tail), want)
        states = ["Running", *[""] * 6, "Terminated"]  # for longer than one request is repeated
        self.assertEqual(await self.followed(b"a\n", b"a\nb\n", states), b"a\nb\n")

    async def test_followed_logs_with_a_gap(self) -> None:
        many = b"".join(b"line %d\n" % i for i in range(1000))
        for printed, kept, tail in [
            (b"", many, None),
            (b"line 999\n", many, None),
            (b"line 0\n", many[:-1], None),  # 1000 lines, too
            (many, many + b"more\n", None),
            (b"a\n", b"b\nc\n", None),
            (b"b\n", b"a\nb\nc\n", 1),
        ]:
            with self.subTest(printed=printed[:9], tail=tail), self.assertRaises(StreamError):
                await self.followed(printed, kept, ["Running", "Failed"], tail)
        with patch("sandboxes._logs.SETTLED", 0.2), self.assertRaisesRegex(StreamError, "Running"):
            await self.followed(b"a\n", b"a\n", ["Running"])

    async def created(self, *, answered: bool, key: str | None = None) -> list[str]:
        """What is sent by a create that is interrupted before its answer, or later."""
        waits, requests = threading.Event(), list[str]()

        def script(exchange: Exchange) -> None:
            requests.append(f"{exchange.command} {exchange.path}")
            if exchange.command == "DELETE":
                exchange.send_response(204)
                exchange.end_headers()
            elif exchange.command == "POST" and (answered or requests[1:]):
                keys.add(exchange.headers["Idempotency-Key"])
                exchange.answer(202, described("Pending"))
            elif exchange.command == "POST" or "/events" in exchange.path:
                keys.add(exchange.headers["Idempotency-Key"] or "")
                waits.set()
                threading.Event().wait(PATIENCE)
            else:
                exchange.answer(200, described("Pending"))

        keys = set[str]()
        with ScriptedService(script) as service:
            async with AsyncClient(service.url) as client:
                await interrupt(lambda: client.create("x", timeout=60, entrypoint=["x"],
                                                      idempotency_key=key), waits)
        self.assertEqual(len(keys - {""}), 1)
        return requests

    async def test_interrupted_creates_leave_nothing(self) -> None:
        for answered in (False, True):
            with self.subTest(answered=answered):
                requests = await self.created(answered=answered)
                self.assertEqual(requests[-1], "DELETE /v1/sandboxes/box")
                requests = await self.created(answered=answered, key="mine")  # which finds it again
                self.assertNotIn("DELETE /v1/sandboxes/box", requests)

    async def test_a_write_that_was_given_up(self) -> None:
        """What was sent of it is not taken for the bytes of the next one."""
        for takes in (0, 2, 6):
            text, waits, over = bytearray(), threading.Event(), threading.Event()

            def script(exchange: Exchange, takes: int = takes, text: bytearray = text,
                       waits: threading.Event = waits, over: threading.Event = over) -> None:
                if not exchange.path.partition("?")[0].endswith("/stdin"):
                    return exchange.answer(200, {"id": "c"} if exchange.command == "POST" else described("Running"))
                query = parse_qs(urlsplit(exchange.path).query)
                hangs = not waits.is_set()
                body = exchange.body[: takes if hangs else 4]  # a pipe with little room
                text.extend(body[len(text) - int(query["offset"][0]) :])
                if hangs:
                    waits.set()
                    over.wait(PATIENCE)
                else:
                    exchange.answer(200, {"offset": len(text), "closed": "end" in query})

            with self.subTest(takes=takes), ScriptedService(script) as service:
                sandbox = await self.scripted(service)
                command = await sandbox.commands.start("cat", background=True, stdin=True)
                await interrupt(lambda: command.stdin.write(b"first\n"), waits)
                await command.stdin.write(b"other\n")
                self.assertEqual(text, b"first\nother\n")
                await command.stdin.aclose()
                over.set()

    async def test_a_source_that_waits_does_not_hold_the_end_of_the_program(self) -> None:
        reads = threading.Event()

        def script(exchange: Exchange) -> None:
            if exchange.path.endswith("/command"):  # the stream is cut, and resumed
                exchange.stream(200, "text/event-stream", headers={"X-Command-ID": "c"})
            elif exchange.path.endswith("/stream"):
                reads.wait(PATIENCE)
                exchange.events({"type": "execution_complete", "timestamp": 1, "exit_code": 0})
            else:
                exchange.answer(200, described("Running"))

        with ScriptedService(script) as service, \
                subprocess.Popen([sys.executable, "-c", PIPED + RUN, service.url], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE) as program:
            assert program.stdout is not None
            self.assertEqual(program.stdout.readline(), b"reads\n")
            reads.set()
            self.assertEqual(program.stdout.readline(), b"0\n")
            self.assertEqual(program.wait(30), 0)

    async def test_lists_that_change(self) -> None:
        ids = [f"box-{number}" for number in range(6)]
        want, others = ids[:], ids[:2]

        def script(exchange: Exchange) -> None:
            query = parse_qs(urlsplit(exchange.path).query)
            page, size = int(query["page"][0]), int(query["pageSize"][0])
            if page > 1 and others:
                ids.remove(others.pop())  # one of a page that was read ends
            exchange.answer(200, {
                "items": [{**described("Running"), "id": id, "createdAt": f"2026-01-02T15:04:0{9 - want.index(id)}Z"}
                          for id in ids[(page - 1) * size : page * size]],
                "pagination": {"page": page, "pageSize": size, "totalItems": len(ids),
                               "totalPages": -(-len(ids) // size), "hasNextPage": page * size < len(ids)}})

        came = list[str]()
        with ScriptedService(script) as service:
            async with AsyncClient(service.url) as client:
                async for sandbox in client.list(state=["Running"], page_size=2):
                    came.append(sandbox.id)
                    if sandbox.id in ids:
                        ids.remove(sandbox.id)  # as when it is deleted
        self.assertEqual(came, want)

    async def deleted(self, *answers: tuple[int, str], state: str = "Terminated") -> None:
        """Deletes a sandbox whose service answers like this, and not at all where a status is 0."""
        left = list(answers)

        def script(exchange: Exchange) -> None:
            status, code = (200, "") if exchange.command == "GET" else left.pop(0)
            if status == 0:
                exchange.close_connection = True
            elif status == 200:
                exchange.answer(200, described(state))
            else:
                exchange.answer(status, {"code": code, "message": "no"})

        with ScriptedService(script) as service:
            await (await self.scripted(service)).delete()
        self.assertEqual(left, [])

    async def test_deletes_whose_answer_is_lost(self) -> None:
        lost, over, gone = (0, ""), (409, "CONFLICT"), (404, "SANDBOX_NOT_FOUND")
        await self.deleted(lost, over)
        await self.deleted(lost, over, state="Failed")
        await self.deleted(over)
        await self.deleted(lost, gone)
        with self.assertRaises(ConflictError):
            await self.deleted(lost, over, state="Running")
        with self.assertRaises(NotFoundError):
            await self.deleted(gone)

    async def test_snapshots(self) -> None:
        """A snapshot is waited for, one that fails is an error, and so is a rollback that does."""
        states, box = ["Creating", "Creating", "Ready", "Creating", "Failed"], described("Running")
        requests: list[tuple[str, Any]] = []

        def script(exchange: Exchange) -> None:
            if exchange.body:
                requests.append((exchange.path, json.loads(exchange.body)))
            if exchange.path.endswith("/fork"):
                exchange.answer(202, {"items": [{"sandbox": described("Running")},
                                                {"error": {"code": "CONFLICT", "message": "no more", "detail": ""}}]})
            elif exchange.path.endswith("/rollback"):
                exchange.stream(202, "text/plain")
            elif exchange.path.endswith("/events"):
                exchange.events()
            elif exchange.path.startswith("/v1/snapshots?"):
                listed = [snapshot_of("Ready")]
                exchange.answer(200, {"items": listed, "pagination": {
                    "page": 1, "pageSize": 1, "totalItems": 1, "totalPages": 1, "hasNextPage": False}})
            elif "snapshots" in exchange.path:
                exchange.answer(202 if exchange.command == "POST" else 200, snapshot_of(states.pop(0)))
            else:
                exchange.answer(200, box)

        with ScriptedService(script) as service:
            sandbox = await self.scripted(service)
            taken = await sandbox.snapshot("before", ttl=3600)
            self.assertEqual((taken.status.state, taken.freeze_ms, taken.parent_id), ("Ready", 1.5, None))
            with self.assertRaises(SnapshotFailed) as failed:
                await sandbox.snapshot()
            self.assertEqual((failed.exception.reason, failed.exception.snapshot_id), ("NO_ROOM", "s"))
            self.assertEqual([item.id async for item in sandbox.snapshots()], ["s"])
            first, second = await sandbox.fork(2, env={"A": "1"})
            self.assertIsInstance(first, AsyncSandbox)
            self.assertIsInstance(second, ConflictError)
            await sandbox.rollback(taken)
            cast(dict[str, str], box["status"])["reason"] = "ROLLBACK_FAILED"
            with self.assertRaises(SandboxFailed):
                await sandbox.rollback("s")
        self.assertEqual(requests, [
            ("/v1/sandboxes/box/snapshots", {"name": "before", "ttl": 3600}), ("/v1/sandboxes/box/snapshots", {}),
            ("/v1/sandboxes/box/fork", {"count": 2, "env": {"A": "1"}}),
            ("/v1/sandboxes/box/rollback", {"snapshotId": "s"}), ("/v1/sandboxes/box/rollback", {"snapshotId": "s"})])

    async def test_the_404_of_a_proxy_is_no_success(self) -> None:
        with self.assertRaises(NotFoundError):
            await self.deleted((0, ""), (404, ""))

        def script(exchange: Exchange) -> None:
            if exchange.command == "GET":
                exchange.answer(200, described("Running"))
            else:
                exchange.stream(404, "text/html", b"<p>")

        with ScriptedService(script) as service, self.assertRaises(NotFoundError):
            async with await self.scripted(service):
                pass

    async def test_interrupted_creates_return_soon(self) -> None:
        """The service hangs: with the first create, with the one that takes it back, or with the delete."""
        for answered in (0, 1):
            waits, requests = threading.Event(), list[str]()

            def script(exchange: Exchange, answered: int = answered) -> None:
                requests.append(exchange.command)
                if 1 < len(requests) <= 1 + answered:
                    return exchange.answer(202, described("Pending"))
                if len(requests) == 1:
                    waits.set()
                over.wait(PATIENCE)

            over = threading.Event()
            with self.subTest(answered=answered), ScriptedService(script) as service:
                async with AsyncClient(service.url, timeout=2 * PATIENCE) as client:
                    begun = time.monotonic()
                    await interrupt(lambda: client.create("x", timeout=60, entrypoint=["x"]), waits)
                    self.assertLess(time.monotonic() - begun, PATIENCE)  # TAKE_BACK, on a quiet machine
                over.set()
            self.assertEqual(requests, ["POST", "POST", "DELETE"][: 2 + answered])

    async def test_creates_ask_for_defaults_once(self) -> None:
        idle = ["/opt/sandbox/execd-init", "idle"]
        own = {"image": "own:1", "timeout": 70, "entrypoint": ["own"],
               "resourceLimits": {"cpu": "1"}}
        build = {"version": "1", "commit": "", "goVersion": "go1", "runtimeClasses": list[str]()}
        for status, answer, image, timeout, entrypoint in [
            (200, {**build, "defaults": own}, "own:1", 70, ["own"]),
            (200, build, None, 3600, idle),  # of a service that publishes none
            (404, {"code": "NOT_FOUND", "message": "no"}, None, 3600, idle),
        ]:
            asked, bodies = list[str](), list[object]()

            def script(exchange: Exchange, status: int = status, answer: object = answer,
                       asked: list[str] = asked, bodies: list[object] = bodies) -> None:
                if exchange.command == "GET":
                    asked.append(exchange.path)
                    return exchange.answer(status, answer)
                bodies.append(json.loads(exchange.body))
                exchange.answer(202, described("Running"))

            with self.subTest(status=status, image=image), ScriptedService(script) as service:
                async with AsyncClient(service.url) as client:
                    await client.create("x", timeout=60, entrypoint=["x"])
                    self.assertEqual(asked, [])  # it leaves nothing out
                    if image:
                        await client.create()
                    else:
                        with self.assertRaisesRegex(ValueError, "no default one"):
                            await client.create()
                    await client.create("x")
                    await client.create("x", image_entrypoint=True)
            self.assertEqual(asked, ["/v1/version"])
            self.assertEqual(bodies, [{**body, "resourceLimits": {}} for body in [
                {"image": {"uri": "x"}, "timeout": 60, "entrypoint": ["x"]},
                *[{"image": {"uri": name}, "timeout": timeout, "entrypoint": entrypoint}
                  for name in (image, "x") if name],
                {"image": {"uri": "x"}, "timeout": timeout, "imageEntrypoint": True},
            ]])

    async def test_creates_that_are_interrupted_while_they_ask_make_nothing(self) -> None:
        waits, over, requests = threading.Event(), threading.Event(), list[str]()

        def script(exchange: Exchange) -> None:
            requests.append(f"{exchange.command} {exchange.path}")
            waits.set()
            over.wait(PATIENCE)

        with ScriptedService(script) as service:
            async with AsyncClient(service.url) as client:
                await interrupt(lambda: client.create("x"), waits)
            over.set()
        self.assertEqual(requests, ["GET /v1/version"])

    async def watched(self, *events: tuple[str, str]) -> list[str]:
        """The events of a watch of the home directory whose stream ends after them."""
        def script(exchange: Exchange) -> None:
            if "/files/watch" in exchange.path:
                exchange.events(*({"type": type, "path": path, "timestamp": 1}
                                  for type, path in events))
            else:
                exchange.answer(200, described("Running"))

        with ScriptedService(script) as service:
            return [event.type async for event in (await self.scripted(service)).files.watch("~/")]

    async def test_watches_that_end(self) -> None:
        ready, below = ("ready", "/root"), ("remove", "/root/a")
        for last in (("remove", "/root"), ("rename", "/root"), ("error", "/root")):
            with self.subTest(last):
                seen = await self.watched(ready, below, last)
                self.assertEqual(seen, ["ready", "remove", last[0]])
        for events in ([], [ready], [ready, below], [ready, ("write", "/root"), ("ping", "")]):
            with self.subTest(events), self.assertRaisesRegex(StreamError, "watch of ~/"):
                await self.watched(*events)

    async def test_results_are_bounded(self) -> None:
        result = {"type": "result", "timestamp": 1, "results": {"application/json": [1] * 1000}}

        def script(exchange: Exchange) -> None:
            if "/code/" in exchange.path:
                exchange.events(*[result] * 4, {"type": "execution_complete", "timestamp": 1})
            else:
                exchange.answer(200, described("Running"))

        with ScriptedService(script) as service, patch("sandboxes._output.KEPT_OUTPUT", 7000):
            execution = await (await (await self.scripted(service)).code.connect("c")).wait()
        self.assertEqual((len(execution.results), execution.truncated), (2, True))
