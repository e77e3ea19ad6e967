"""The life of a sandbox, against a real service."""

from __future__ import annotations

import io
import os
import ssl
import tarfile
import time
import uuid
from datetime import datetime, timedelta, timezone

from sandboxes import (
    APIError,
    AsyncClient,
    ConflictError,
    ForbiddenError,
    KeyLimits,
    KeyRateLimit,
    NotFoundError,
    SandboxFailed,
    TerminalExit,
    TransportError,
    UnauthorizedError,
    WaitTimeout,
)

from .async_support import AsyncCase
from .support import CuttingProxy, PATIENCE, deadline, image


class AsyncKeysOfTheService(AsyncCase):
    async def test_life_of_a_key(self) -> None:
        name = f"python/{uuid.uuid4()}"
        async with AsyncClient() as client:
            expires = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(days=1)
            made = await client.keys.create(name, expires_at=expires, limits=KeyLimits(max_sandboxes=3),
                                            rate_limit=KeyRateLimit(requests_per_second=50))
            self.assertEqual((made.key.name, made.key.role, made.key.expires_at), (name, "user", expires))
            try:
                async with AsyncClient(key=made.secret) as user:
                    self.assertEqual([box.id async for box in user.list(metadata={"none": name})], [])
                    with self.assertRaises(ForbiddenError):
                        await user.keys.get(name)
                listed = [key async for key in client.keys.list(page_size=1) if key.name == name]
                found = await client.keys.get(name)
                for key in (*listed, found):
                    self.assertEqual((key.limits, key.source), (KeyLimits(max_sandboxes=3), "service"))
                self.assertEqual(len(listed), 1)
                with self.assertRaises(ConflictError):
                    await client.keys.create(name)

                rotated = await client.keys.rotate(name, grace=timedelta(minutes=1))
                self.assertIsNotNone(rotated.key.previous_secret_expires_at)
                last = await client.keys.rotate(name)
                for secret, valid in ((made.secret, False), (rotated.secret, False), (last.secret, True)):
                    async with AsyncClient(key=secret) as user:
                        if valid:
                            await user.version()
                            continue
                        with self.assertRaises(UnauthorizedError):
                            await user.version()
            finally:
                await client.keys.delete(name)
            with self.assertRaises(NotFoundError):
                await client.keys.get(name)
            with self.assertRaises(ConflictError):
                await client.keys.create(name, role="viewer")
            taken = await client.keys.create(name, role="viewer", take_over=True)
            await client.keys.delete(name)
            self.assertEqual(taken.key.role, "viewer")


class AsyncLife(AsyncCase):
    async def test_life(self) -> None:
        name = str(uuid.uuid4())
        async with AsyncClient() as client:
            sandbox = await client.create(image(), timeout=timedelta(minutes=10), memory="256Mi", cpu="1",
                                          env={"GREETING": "hello"}, metadata={"name": name, "a": "b & c=d"},
                                          extensions={"example.priority": "high"})
            async with sandbox:
                self.assertEqual(sandbox.state, "Running")
                found = [item.id async for item in client.list(state=["running"], metadata={"name": name, "a": "b & c=d"})]
                self.assertEqual(found, [sandbox.id])
                self.assertEqual((await client.connect(sandbox.id)).info.image.uri, image())
                self.assertEqual((await sandbox.refresh()).extensions, {"example.priority": "high"})
                self.assertEqual(await sandbox.update_metadata({"a": None, "c": "d"}), {"name": name, "c": "d"})

                await sandbox.pause()
                self.assertEqual((await client.get(sandbox.id)).state, "Paused")
                with self.assertRaises(ConflictError) as conflict:
                    await sandbox.pause()
                self.assertEqual((conflict.exception.status, conflict.exception.code), (409, "CONFLICT"))
                self.assertTrue(conflict.exception.request_id)
                await sandbox.resume()
                self.assertEqual((await sandbox.commands.run("echo $GREETING")).stdout, "hello\n")

                expires = await sandbox.renew(7200)
                self.assertGreater(expires, datetime.now(timezone.utc) + timedelta(minutes=110))
                kept = await sandbox.keep_awake(60, name="test")
                assert kept.until is not None
                self.assertGreater(kept.until, datetime.now(timezone.utc))
                self.assertIsNone(kept.wake_at)
                self.assertIn(("keepAwake", "test"), [(hold.kind, hold.id) for hold in (await sandbox.holds()).holds])
                self.assertIsNone((await sandbox.keep_awake(wake_after=timedelta(hours=1))).until)
                metrics = await sandbox.metrics()
                self.assertEqual(metrics.mem_total_mib, 256)
                async with sandbox.watch_metrics() as stream:
                    self.assertEqual((await stream.__anext__()).mem_total_mib, 256)
            await sandbox.wait("Terminated", timeout=PATIENCE)
            kinds = list[str]()
            async with sandbox.events() as events:
                async for event in events:
                    kinds.append(event.to or event.type)
                    if event.to == "Terminated":
                        break
            for kind in ("Pending", "Running", "Paused", "renewed", "metadata", "Stopping"):
                self.assertIn(kind, kinds)

    async def test_viewer_with_a_rate_limit(self) -> None:
        async with AsyncClient(key=os.environ["SANDBOX_VIEWER_KEY"]) as client:
            begun = time.monotonic()
            for _ in range(3):  # one a second; the client waits as Retry-After says
                await client.version()
            self.assertGreater(time.monotonic() - begun, 0.9)
            with self.assertRaises(ForbiddenError):
                await client.create(image())

    async def test_tls(self) -> None:
        url, trusted = os.environ["SANDBOX_TLS_URL"], os.environ["SANDBOX_TLS_CA"]
        async with AsyncClient(url, tls=ssl.create_default_context(cafile=trusted)) as client:
            async with await client.create(image()) as sandbox:
                self.assertEqual(len((await sandbox.commands.run("seq 1 20000")).stdout_bytes), 108894)
                await sandbox.files.write("/tmp/large", bytes(2 << 20))
                self.assertEqual(await sandbox.files.read("/tmp/large"), bytes(2 << 20))
                async with (await sandbox.terminals.create("sh")).attach() as viewer:
                    await viewer.send("exit 3\n")
                    self.assertEqual([event async for event in viewer][-1], TerminalExit(3))
        async with AsyncClient(url) as stranger:
            with self.assertRaises(TransportError) as untrusted:
                await stranger.version()
            self.assertIn("certificate", str(untrusted.exception))

    async def test_pages(self) -> None:
        name = str(uuid.uuid4())
        async with AsyncClient() as client:
            made = [await client.create(image(), metadata={"name": name}, ready_timeout=0) for _ in range(3)]
            found = [item.id async for item in client.list(metadata={"name": name}, page_size=2)]
            self.assertEqual(sorted(found), sorted(sandbox.id for sandbox in made))
            for sandbox in made:
                await sandbox.delete()

    async def test_lost_answer_of_a_create(self) -> None:
        name = str(uuid.uuid4())
        with CuttingProxy(seed=1, least=1, most=1) as proxy:
            async with AsyncClient(proxy.url) as client:
                proxy.lost = 2
                async with await client.create(image(), metadata={"name": name}) as sandbox:
                    self.assertEqual(proxy.cuts, 2)
                    self.assertEqual([item.id async for item in client.list(metadata={"name": name})], [sandbox.id])
                    proxy.lost = 2
                    await sandbox.commands.run("echo once >>/tmp/runs")
                    self.assertEqual(proxy.cuts, 4)
                    self.assertEqual(await sandbox.files.read_text("/tmp/runs"), "once\n")
                    proxy.lost = 1
                    with self.assertRaises(TransportError) as lost:  # it must not be sent twice
                        await sandbox.files.move("/tmp/runs", "/tmp/moved")
                    self.assertTrue(lost.exception.sent)

    async def test_snapshots(self) -> None:
        """The client goes on with a sandbox that was rolled back."""
        async with AsyncClient() as client, await client.create(image(), env={"SECRET": "s"}) as sandbox:
            await sandbox.files.write("/root/note", "kept")
            taken = await sandbox.snapshot("before", comment="all is well", ttl=timedelta(hours=1), metadata={"by": sandbox.id})
            self.assertEqual((taken.status.state, taken.sandbox_id, taken.name), ("Ready", sandbox.id, "before"))
            self.assertEqual([item.id async for item in sandbox.snapshots()], [taken.id])
            self.assertEqual([item.id async for item in client.snapshots.list(metadata={"by": sandbox.id}, name="before")], [taken.id])
            await sandbox.files.write("/root/note", "changed")
            await sandbox.rollback(taken)
            self.assertEqual(sandbox.state, "Running")
            self.assertEqual(await sandbox.files.read_text("/root/note"), "kept")
            self.assertEqual((await sandbox.commands.run("echo $SECRET")).stdout, "s\n")
            forks = await sandbox.fork(2, env={"ATTEMPT": "1"})
            for fork in forks:
                assert not isinstance(fork, APIError), fork
                async with fork:
                    self.assertEqual((await fork.commands.run("cat /root/note; echo $ATTEMPT$SECRET")).stdout, "kept1\n")
            lineage = await sandbox.lineage()
            self.assertEqual([item.id for item in lineage.snapshots], [taken.id])
            self.assertEqual([item.parent_id for item in lineage.sandboxes], [None, sandbox.id, sandbox.id])
            async with await client.create(snapshot=taken.id) as other:
                self.assertEqual(await other.files.read_text("/root/note"), "kept")
                self.assertEqual((await other.refresh()).snapshot_id, taken.id)
            diff = await client.snapshots.diff(taken.id, limit=10)
            self.assertEqual([(f.path, f.kind, f.type, f.size) for f in diff.items if f.path.startswith("/root/")],
                             [("/root/note", "added", "file", 4)])
            pieces = [piece async for piece in client.snapshots.archive(taken.id)]
            with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
                self.assertIn("root/note", archive.getnames())
            name = f"sandbox/python:{uuid.uuid4()}"
            self.assertIn(name, "".join((await client.snapshots.export(taken.id, name)).names))
            async with await client.create(name) as exported:
                self.assertEqual(await exported.files.read_text("/root/note"), "kept")
            await client.snapshots.delete(taken.id)
            with self.assertRaises(NotFoundError):
                await client.snapshots.delete(taken.id)

    async def test_failures(self) -> None:
        async with AsyncClient() as client:
            with self.assertRaises(SandboxFailed) as failed:
                await client.create(image(), entrypoint=["no-such-program"])
            self.assertEqual(failed.exception.state, "Failed")
            self.assertTrue(failed.exception.message)
            with self.assertRaises(NotFoundError) as missing:
                await client.get("no-such-sandbox")
            self.assertEqual(missing.exception.code, "SANDBOX_NOT_FOUND")
            with self.assertRaises(APIError) as refused:
                await client.create(image(), timeout=59)
            self.assertEqual(refused.exception.status, 400)
            self.assertIn("timeout", refused.exception.message)
            async with await client.create(image()) as sandbox:
                with self.assertRaises(WaitTimeout):
                    await sandbox.wait("Paused", timeout=0.2)
                begun = time.monotonic()
                await sandbox.delete(wait=True)
                self.assertLess(time.monotonic() - begun, PATIENCE)
        async with AsyncClient(key="wrong") as stranger:
            with self.assertRaises(UnauthorizedError):
                await stranger.version()
        async with AsyncClient("http://127.0.0.1:1") as nowhere:
            with self.assertRaises(TransportError):
                await nowhere.version()

    async def test_events_of_the_service(self) -> None:
        async with AsyncClient() as client, client.events() as events:
            async with await client.create(image(), ready_timeout=0) as sandbox:
                events.deadline = deadline()
                async for event in events:
                    if event.sandbox_id == sandbox.id and event.to == "Running":
                        break

    async def test_ports_and_logs(self) -> None:
        page = "while true; do printf 'HTTP/1.0 200 OK\\r\\n\\r\\nhi' | nc -l -p 8000; done"
        async with AsyncClient() as client:
            async with await client.create(image(), entrypoint=["sh", "-c", f"echo first; {page}"]) as sandbox:
                self.assertIn("X-EXECD-ACCESS-TOKEN", (await sandbox.endpoint(8000)).headers)
                self.assertIn("sandbox-signature=", await sandbox.signed_url(8000, expires=300))
                self.assertTrue(sandbox.service_url(8000).endswith(f"/{sandbox.id}/proxy/8000"))
                log = b""
                async for piece in sandbox.logs(follow=True):
                    log += piece
                    if log == b"first\n":
                        break
                self.assertEqual([piece async for piece in sandbox.logs()], [b"first\n"])
