"""One sandbox."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import AsyncIterator
from datetime import datetime
from types import TracebackType
from typing import Mapping

from .. import _logs
from .._errors import (
    APIError,
    ConflictError,
    NotFoundError,
    SandboxesError,
    SandboxFailed,
    SnapshotFailed,
    StreamError,
    TransportError,
    WaitTimeout,
    fork_error,
)
from .._gen import execd, lifecycle
from .._gen.execd import KeptAwake, Metrics
from .._gen.lifecycle import ActivityEntry, Endpoint, Holds, Lineage, SandboxEvent, SandboxLifecycle, Snapshot
from .._gen.lifecycle import Sandbox as SandboxInfo
from .._logs import LogPart
from .._operations import fill
from .._options import Duration, from_now, lifecycle_of, new_key, prefer_wait, seconds
from .._retry import Resumption
from .code import AsyncCode
from .commands import AsyncCommands
from .connection import sleep
from .daemon import AsyncDaemon
from .files import AsyncFiles
from .http import AsyncHTTP
from .network import AsyncNetwork
from .snapshots import AsyncSnapshots
from .streams import GIVE_UP, AsyncEvents
from .terminals import AsyncTerminals

ENDED = ("Terminated", "Failed")
NOT_RESUMED = ("RESUME_FAILED", "ROLLBACK_FAILED")
"""The reasons of a sandbox that could not be started after a reboot of its host, or not be rolled back."""

ASLEEP = ("IDLE", "TIMEOUT", "HIBERNATED", "HIBERNATED_FILES")
"""The reasons of a sandbox that is Paused until a request wakes it."""


class AsyncSandbox:
    """A sandbox. As a context manager it deletes the sandbox at the end."""

    def __init__(self, http: AsyncHTTP, info: SandboxInfo) -> None:
        self._http = http
        self._daemon = AsyncDaemon(http, info.id)
        self.id = info.id
        self.info = info
        """What the service last answered about the sandbox; `refresh` asks again."""
        self.commands = AsyncCommands(self._daemon)
        self.code = AsyncCode(self._daemon)
        self.files = AsyncFiles(self._daemon)
        self.terminals = AsyncTerminals(self._daemon)
        self.network = AsyncNetwork(http, info.id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.state}>"

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        try:
            await self.delete()
        except NotFoundError as error:
            if error.code != "SANDBOX_NOT_FOUND":
                raise

    @property
    def state(self) -> str:
        """The state in `info`: Pending, Running, Pausing, Paused, Resuming, Stopping, Terminated, Failed; more may come."""
        return self.info.status.state

    async def refresh(self) -> SandboxInfo:
        """Reads the sandbox again."""
        self.info = await self._http.call(lifecycle.get_sandbox(self.id))
        return self.info

    async def wait(self, state: str = "Running", *, timeout: Duration = 300) -> SandboxInfo:
        """Waits for a state, at most so many seconds (else WaitTimeout).

        A sandbox that has ended otherwise is a SandboxFailed with its reason and message. One that sleeps counts as
        Running: a request wakes it.
        """
        events = self.events()
        events.deadline = time.monotonic() + seconds(timeout)
        try:
            async with events:  # opened before the state is read, so that no change is missed
                await self.refresh()
                while not self._reached(state):
                    self._check_alive(state)
                    await self._until_state(events, state)
                    await self.refresh()
        except TimeoutError:
            raise WaitTimeout(f"sandbox {self.id} is {self.state} and not {state} after {seconds(timeout):g} s", self.id) from None
        return self.info

    async def _until_state(self, events: AsyncEvents[SandboxEvent], state: str) -> None:
        """Reads events, which begin in the past, up to one that may have led to the state."""
        async for event in events:
            if event.type == "reset" or event.to in (state, "Paused", *ENDED):
                return

    def _reached(self, state: str) -> bool:
        asleep = self.state == "Paused" and self.info.status.reason in ASLEEP
        return self.state == state or state == "Running" and asleep

    def _check_alive(self, state: str) -> None:
        status = self.info.status
        resumed = state != "Running" or status.state != "Paused" or status.reason not in NOT_RESUMED
        if status.state in ENDED or not resumed:
            raise SandboxFailed(self.id, status.state, status.reason, status.message)

    async def pause(self, *, files_only: bool = False, timeout: Duration = 60) -> None:
        """Stops the processes of the sandbox and keeps their memory. The expiry goes on counting.

        With files_only it ends the processes and keeps the files; resume starts the entrypoint again. Services on
        Docker and Kubernetes refuse that.
        """
        prefer, held = prefer_wait(seconds(timeout))
        how = lifecycle.PauseSandboxRequest(files_only=True) if files_only else None
        await self._http.call(lifecycle.pause_sandbox(self.id, how, prefer=prefer), wait=held)
        await self.wait("Paused", timeout=timeout)

    async def resume(self, *, timeout: Duration = 60) -> None:
        """Lets the processes of a paused sandbox go on.

        After a reboot of its host it starts the sandbox again; when that fails it is a SandboxFailed, and the sandbox
        is Paused as before.
        """
        prefer, held = prefer_wait(seconds(timeout))
        await self._http.call(lifecycle.resume_sandbox(self.id, prefer=prefer), wait=held)
        await self.wait("Running", timeout=timeout)

    async def snapshot(self, name: str | None = None, *, comment: str | None = None, ttl: Duration | None = None,
                       metadata: Mapping[str, str] | None = None, memory: bool = False, timeout: Duration = 300) -> Snapshot:
        """Keeps the files of the sandbox, which is Running or Paused, and returns once they are kept.

        The processes stand still for a moment. With `ttl` the snapshot is deleted by itself after so many seconds. One
        that fails is a SnapshotFailed, and one that is still Creating after `timeout` seconds a WaitTimeout. A request
        whose answer was lost is repeated, and makes no second snapshot. With `memory` the processes are kept too, which
        takes gVisor as the runtime of the sandbox: a rollback has them go on. Such a snapshot has every secret that they
        have.
        """
        limit = time.monotonic() + seconds(timeout)
        prefer, held = prefer_wait(seconds(timeout))
        request = lifecycle.TakeSnapshotRequest(
            name=name, comment=comment, metadata=metadata, kind="memory" if memory else None,
            ttl=None if ttl is None else round(seconds(ttl)))
        taken = await self._http.call(lifecycle.take_snapshot(self.id, request, idempotency_key=new_key(), prefer=prefer), wait=held)
        while taken.status.state == "Creating":
            left = limit - time.monotonic()
            if left <= 0:
                raise WaitTimeout(f"snapshot {taken.id} is Creating after {seconds(timeout):g} s", self.id)
            prefer, held = prefer_wait(left)
            taken = await self._http.call(lifecycle.get_snapshot(taken.id, prefer=prefer), wait=held)
        if taken.status.state != "Ready":
            raise SnapshotFailed(taken.id, taken.status.state, taken.status.reason or "", taken.status.message or "")
        return taken

    async def snapshots(self, *, page_size: int = 100) -> AsyncIterator[Snapshot]:
        """The snapshots of the sandbox that the key may read, newest first."""
        async for snapshot in AsyncSnapshots(self._http).list(sandbox_id=self.id, page_size=page_size):
            yield snapshot

    async def lineage(self) -> Lineage:
        """The snapshots and sandboxes that the sandbox is related to, as far as the key may read them."""
        return await self._http.call(lifecycle.get_lineage(self.id))

    async def rollback(self, snapshot: Snapshot | str, *, timeout: Duration = 60) -> None:
        """Gives the sandbox the files of a snapshot, or of the one with an id, and returns when it is Running again.

        Its processes end, and with a snapshot of memory those go on that it has; its id, endpoints and token stay. When
        it fails it is a SandboxFailed.
        """
        prefer, held = prefer_wait(seconds(timeout))
        id = snapshot if isinstance(snapshot, str) else snapshot.id
        request = lifecycle.RollbackRequest(snapshot_id=id)
        await self._http.call(lifecycle.rollback_sandbox(self.id, request, prefer=prefer), wait=held)
        status = (await self.wait("Running", timeout=timeout)).status
        if status.reason in NOT_RESUMED:
            raise SandboxFailed(self.id, status.state, status.reason, status.message)

    async def fork(self, count: int = 1, *, timeout: Duration | None = None, env: Mapping[str, str] | None = None,
                   ready_timeout: Duration = 300) -> list[AsyncSandbox | APIError]:
        """Makes sandboxes that begin with the files of this one, and returns them, or in the place of one why it was not made.

        Each lives for `timeout` seconds, or as long as this one was to, and has none of its processes; `env` is all of
        its environment. They are Running when `ready_timeout` is not 0: else it is a SandboxFailed or a WaitTimeout.
        """
        limit = seconds(ready_timeout)
        prefer, held = prefer_wait(limit) if limit > 0 else (None, 0)
        request = lifecycle.ForkRequest(
            count=count, timeout=None if timeout is None else round(seconds(timeout)), env=env)
        made = await self._http.call(
            lifecycle.fork_sandbox(self.id, request, idempotency_key=str(uuid.uuid4()), prefer=prefer), wait=held)
        end = time.monotonic() + limit
        forks: list[AsyncSandbox | APIError] = []
        for item in made.items:
            if item.sandbox is None:
                forks.append(fork_error(item.error))
                continue
            fork = AsyncSandbox(self._http, item.sandbox)
            if limit > 0 and fork.state != "Running":
                await fork.wait("Running", timeout=max(0.001, end - time.monotonic()))
            forks.append(fork)
        return forks

    async def renew(self, duration: Duration) -> datetime:
        """Moves the expiry to so many seconds from now; it can only be moved forward."""
        request = lifecycle.RenewRequest(expires_at=from_now(duration))
        return (await self._http.call(lifecycle.renew_expiration(self.id, request))).expires_at

    async def delete(self, *, wait: bool = False) -> None:
        """Ends the sandbox; succeeds when it has ended already.

        With `wait`, returns when nothing of it is left, or after a minute.
        """
        prefer, held = prefer_wait(60) if wait else (None, 0)
        try:
            await self._http.call(lifecycle.delete_sandbox(self.id, prefer=prefer), wait=held)
        except ConflictError:
            await self.refresh()
            if self.state not in ENDED:
                raise

    async def update_metadata(self, changes: Mapping[str, str | None]) -> Mapping[str, str]:
        """Sets keys, removes those whose value is None, and returns all that there are now."""
        return await self._http.call(lifecycle.update_metadata(self.id, changes))

    async def endpoint(self, port: int, *, expires: Duration | None = None) -> Endpoint:
        """How to reach a port from elsewhere: the URL, and the headers that every request needs.

        With `expires`, in seconds, the URL is signed and needs no header: whoever has it can use the port.
        """
        text = None if expires is None else str(round(seconds(expires)))
        return await self._http.call(lifecycle.get_endpoint(self.id, port, expires=text), wait=30)

    async def signed_url(self, port: int, *, expires: Duration = 3600) -> str:
        """A URL of a port for a browser, good for so many seconds."""
        return (await self.endpoint(port, expires=expires)).url

    def service_url(self, port: int) -> str:
        """The URL of a port on the service itself. Requests to it need the service's key."""
        return self._http.origin.url + fill("/v1/sandboxes/{}/proxy/{}", self.id, port)

    async def logs(self, *, tail: int | None = None, since: datetime | None = None, follow: bool = False) -> AsyncIterator[bytes]:
        """What the entrypoint printed, piece by piece; with `follow`, until the sandbox ends.

        The contract gives logs no positions, so one that is cut raises StreamError. So does a
        followed one that ends because the service stops, unless the sandbox has ended meanwhile and
        what the service keeps of its log shows what is missing.
        """
        delivered = LogPart()
        response = await self._http.open(lifecycle.get_logs(self.id, tail=tail, since=since, follow=follow or None))
        try:
            while piece := await response.piece(None if follow else self._http.timeout):
                delivered.add(piece)
                yield piece
        except TransportError as error:
            raise self._broken_log(error) from error
        finally:
            response.close()
        whole = tail is None and since is None
        if follow and (rest := await self._rest_of_log(delivered, whole=whole)):
            yield rest

    async def _rest_of_log(self, delivered: LogPart, *, whole: bool) -> bytes:
        """What is missing of a followed log that has ended."""
        away, settling = Resumption(GIVE_UP), Resumption(_logs.SETTLED)
        while True:
            resumption = away
            try:
                await self.refresh()
                if self.state in ENDED:
                    kept = await self._kept_log()
                    break
                if self.state in ("Running", "Paused"):
                    resumption = settling
                reason = f"the service ended it, and the sandbox is {self.state}"
                failure: SandboxesError = TransportError(reason, sent=True)
            except (ConflictError, NotFoundError):
                return b""  # nothing of it is kept
            except SandboxesError as error:
                failure = error
            pause = resumption.pause(failure)
            if pause is None:
                raise self._broken_log(failure) from failure
            await sleep(pause)
        rest = _logs.missing(delivered, kept, whole=whole)
        if rest is None:
            raise self._broken_log("what the sandbox printed up to its end is not all kept")
        return rest

    async def _kept_log(self) -> LogPart:
        """The end of the log of an ended sandbox."""
        kept = LogPart()
        response = await self._http.open(lifecycle.get_logs(self.id, tail=_logs.KEPT_LINES))
        try:
            while piece := await response.piece(self._http.timeout):
                kept.add(piece)
        finally:
            response.close()
        return kept

    def _broken_log(self, why: SandboxesError | str) -> StreamError:
        return StreamError(f"the log of sandbox {self.id} broke off and cannot be resumed: {why}")

    def events(self, after: int | None = None) -> AsyncEvents[SandboxEvent]:
        """What happens to the sandbox, from its first event on or after the one with an id."""
        return AsyncEvents(
            self._http, "", f"the events of sandbox {self.id}", SandboxEvent,
            lambda last: lifecycle.stream_sandbox_events(self.id, after=after, last_event_id=last),
            last=lambda event: event.type == "forgotten")

    async def activity(self) -> list[ActivityEntry]:
        """What clients have done in the sandbox, by which key and through what client.

        Those at the end changed last. The daemon in the sandbox has recorded it: it is no audit log.
        """
        return list((await self._http.call(lifecycle.get_activity(self.id))).entries)

    def watch_activity(self) -> AsyncEvents[ActivityEntry]:
        """What clients have done and do: each entry when it begins, and again when it has ended."""
        return AsyncEvents(
            self._http, "", f"the activity of sandbox {self.id}", ActivityEntry,
            lambda last: lifecycle.watch_activity(self.id, last_event_id=last))

    async def holds(self) -> Holds:
        """What keeps the sandbox awake. One that sleeps is not woken by it."""
        return await self._http.call(lifecycle.get_holds(self.id))

    async def update_lifecycle(
        self, *, on_idle: str | None = None, idle: Duration | None = None, hibernate_after: Duration | None = None,
        on_timeout: str | None = None, auto_resume: bool | None = None,
    ) -> SandboxLifecycle:
        """Changes when the sandbox falls asleep or ends by itself, and returns what holds then.

        What is not given stays as it is; see `Client.create`.
        """
        change = lifecycle_of(on_idle, idle, hibernate_after, on_timeout, auto_resume) or SandboxLifecycle()
        return await self._http.call(lifecycle.update_lifecycle(self.id, change))

    async def keep_awake(
        self, duration: Duration | None = None, *, wake_after: Duration | None = None, name: str | None = None,
    ) -> KeptAwake:
        """Keeps the sandbox from being taken for idle for a time, or has it woken after one.

        What is asked for under a name takes the place of what was asked for under it before.
        """
        return await self._daemon.call(execd.keep_awake(execd.KeepAwakeRequest(
            seconds=None if duration is None else math.ceil(seconds(duration)),
            wake_after_seconds=None if wake_after is None else math.ceil(seconds(wake_after)), name=name)))

    async def metrics(self) -> Metrics:
        """Processor and memory use now."""
        return await self._daemon.call(execd.get_metrics())

    def watch_metrics(self) -> AsyncEvents[Metrics]:
        """Processor and memory use, every second."""
        return self._daemon.events(f"the metrics of sandbox {self.id}", Metrics, lambda _: execd.watch_metrics())
