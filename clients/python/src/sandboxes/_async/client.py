"""The service."""

from __future__ import annotations

import ssl
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Mapping, Sequence, TypeVar

from .. import _retry
from .._errors import NotFoundError, SandboxesError, SandboxFailed, WaitTimeout
from .._gen import lifecycle
from .._gen.lifecycle import CreateDefaults, ImageAuth, NetworkPolicy, SandboxEvent, Version, Volume
from .._gen.lifecycle import Sandbox as SandboxInfo
from .._operations import Call
from .._options import (
    FALLBACK,
    Duration,
    check_policy,
    lifecycle_of,
    metadata_filter,
    prefer_wait,
    seconds,
    service_key,
    service_url,
)
from .._proxy import ProxyOption
from .http import AsyncHTTP
from .keys import AsyncKeys
from .sandbox import AsyncSandbox
from .snapshots import AsyncSnapshots
from .streams import AsyncEvents

T = TypeVar("T")

LIST_ATTEMPTS = 5
"""How often a list is read at most that changes meanwhile."""


class AsyncClient:
    """A service that sandboxes are made with. As a context manager it closes its connections at the end."""

    def __init__(self, url: str | None = None, key: str | None = None, *, timeout: Duration = 60,
                 tls: ssl.SSLContext | None = None, proxy: ProxyOption = None) -> None:
        """The URL is else $SANDBOX_URL, the key $SERVICE_API_KEY.

        `timeout` is how many seconds the service may take to answer; `tls` replaces the system's certificates.
        `proxy` is the URL of an HTTP proxy that every request goes through, or False for none; else the environment
        names it: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY. One that is no such URL is a ValueError.
        """
        self._http = AsyncHTTP(service_url(url), service_key(key), seconds(timeout), tls, proxy)
        self._defaults: CreateDefaults | None = None
        self.keys = AsyncKeys(self._http)
        self.snapshots = AsyncSnapshots(self._http)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._http.origin.url}>"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections that are kept."""
        self._http.close()

    async def create(self, image: str | None = None, *, timeout: Duration | None = None,
                     entrypoint: Sequence[str] | None = None, image_entrypoint: bool = False,
                     cpu: str | None = None, memory: str | None = None, gpu: str | None = None,
                     env: Mapping[str, str] | None = None, metadata: Mapping[str, str] | None = None,
                     network_policy: NetworkPolicy | None = None, volumes: Sequence[Volume] | None = None,
                     auth: ImageAuth | None = None, extensions: Mapping[str, Any] | None = None,
                     runtime_class: str | None = None, snapshot: str | None = None,
                     on_idle: str | None = None, idle: Duration | None = None,
                     hibernate_after: Duration | None = None,
                     on_timeout: str | None = None, auto_resume: bool | None = None,
                     idempotency_key: str | None = None, ready_timeout: Duration = 300) -> AsyncSandbox:
        """Creates a sandbox and waits until it is Running.

        What is not given has the service's default, see `defaults`; without an image where there is no default one,
        it is a ValueError. The sandbox ends by itself after `timeout` seconds, 60 to 86400. `cpu` is in cores (`0.5`,
        `500m`), `memory` in bytes with a unit (`512Mi`). The entrypoint must keep running, because its exit ends the
        sandbox; by default the sandbox is idle until it is used. With `image_entrypoint` the image's own entrypoint
        and command run.
        A `network_policy` that is empty is a ValueError; without one everything is allowed.
        `runtime_class` names what runs it, one of those of the service's version.
        `snapshot` is the id of a snapshot that it begins with, in place of an image: entrypoint and limits that are not
        given are those of the snapshot.
        `on_idle` is what happens when nothing keeps the sandbox awake for the time `idle`, a minute by default: `none`,
        `pause`, then it sleeps until a request wakes it; `hibernate`, then it sleeps too, and goes to the disk after
        `hibernate_after`, five minutes by default; or `delete`. `on_timeout` is what happens when its time is up:
        `delete` or `pause`. With `auto_resume=False` no request wakes it.

        The request has an idempotency key, so repetitions after a cut connection make one sandbox. One that
        fails is a SandboxFailed. One that is not Running after `ready_timeout` seconds is a WaitTimeout; it
        exists, and with `ready_timeout=0` it is returned as it is. When anything else ends the
        wait, such as a cancellation, the sandbox is deleted, within 5 seconds or not at all, unless the caller gave an
        `idempotency_key`: a create with the same key and the same arguments finds it again.
        """
        check_policy(network_policy)
        limit = seconds(ready_timeout)
        prefer, held = prefer_wait(limit) if limit > 0 else (None, 0)
        key = idempotency_key or str(uuid.uuid4())
        if snapshot is not None:
            if image is not None:
                raise ValueError("image: must not be given with a snapshot")
            timeout = (await self.defaults()).timeout if timeout is None else timeout
        elif image is None or timeout is None or (entrypoint is None and not image_entrypoint):
            defaults = await self.defaults()
            image = defaults.image if image is None else image
            timeout = defaults.timeout if timeout is None else timeout
            if entrypoint is None and not image_entrypoint:
                entrypoint = defaults.entrypoint
        if not image and snapshot is None:
            raise ValueError("image: is required, because the service has no default one (server.default_image)")
        limits = lifecycle.ResourceLimits(cpu=cpu, memory=memory, gpu=gpu)
        own_limits = snapshot is None or any((cpu, memory, gpu))
        request = lifecycle.CreateSandboxRequest(
            image=lifecycle.Image(uri=image, auth=auth) if image else None, snapshot_id=snapshot, timeout=round(seconds(timeout)),
            entrypoint=entrypoint, image_entrypoint=image_entrypoint or None, env=env, metadata=metadata,
            resource_limits=limits if own_limits else None,
            network_policy=network_policy, volumes=volumes, extensions=extensions,
            runtime_class=runtime_class, lifecycle=lifecycle_of(on_idle, idle, hibernate_after, on_timeout, auto_resume))
        sandbox: AsyncSandbox | None = None
        try:
            created = await self._http.call(
                lifecycle.create_sandbox(request, idempotency_key=key, prefer=prefer), wait=held)
            sandbox = AsyncSandbox(self._http, SandboxInfo(
                id=created.id, image=lifecycle.Image(uri=image or ""), status=created.status,
                metadata=created.metadata, entrypoint=created.entrypoint,
                expires_at=created.expires_at, created_at=created.created_at,
                extensions=extensions, runtime_class=runtime_class, snapshot_id=snapshot))
            if limit > 0 and sandbox.state != "Running":
                await sandbox.wait("Running", timeout=limit)
        except (SandboxFailed, WaitTimeout):
            raise  # with the id
        except BaseException as error:
            # A create that was interrupted may have arrived; one that has failed has made nothing.
            if not idempotency_key and (sandbox is not None or not isinstance(error, Exception)):
                await self._take_back(lifecycle.create_sandbox(request, idempotency_key=key))
            raise
        return sandbox

    async def _take_back(self, create: Call[lifecycle.CreatedSandbox]) -> None:
        """Deletes the sandbox of a create, which the same key finds. It holds the caller for a short time only."""
        http = self._http.within(_retry.TAKE_BACK)
        try:
            with suppress(SandboxesError):  # the first error counts
                created = await http.call(create)
                await http.call(lifecycle.delete_sandbox(created.id))
        finally:
            http.close()

    async def get(self, id: str) -> AsyncSandbox:
        """A sandbox in any state."""
        return AsyncSandbox(self._http, await self._http.call(lifecycle.get_sandbox(id)))

    async def connect(self, id: str, *, timeout: Duration = 300) -> AsyncSandbox:
        """A sandbox that is Running, or will be within so many seconds. One that is Paused stays so."""
        sandbox = await self.get(id)
        if sandbox.state not in ("Running", "Pausing", "Paused"):
            await sandbox.wait("Running", timeout=timeout)
        return sandbox

    async def list(self, *, state: Sequence[str] | None = None, metadata: Mapping[str, str] | None = None,
                   page_size: int = 100) -> AsyncIterator[AsyncSandbox]:
        """The sandboxes in one of the states and with all of the metadata, newest first, each once.

        All pages are read before the first sandbox comes, so that it may be deleted, and read again when the list
        changed meanwhile. What comes may have another state since.
        """
        found = dict[str, SandboxInfo]()
        for _ in range(LIST_ATTEMPTS):
            if await self._read_pages(found, state, metadata, page_size):
                break
        for info in sorted(found.values(), key=lambda info: info.created_at, reverse=True):
            yield AsyncSandbox(self._http, info)

    async def _read_pages(self, found: dict[str, SandboxInfo], state: Sequence[str] | None,
                          metadata: Mapping[str, str] | None, page_size: int) -> bool:
        """Adds a list to what is found, by id. Returns whether it stayed the same from page to page.

        When a sandbox leaves one page, another moves to a page that was read already.
        """
        page, totals = 1, set[int]()
        while True:
            listed = await self._http.call(lifecycle.list_sandboxes(
                state=state, metadata=metadata_filter(metadata), page=page, page_size=page_size))
            found.update((info.id, info) for info in listed.items)
            totals.add(listed.pagination.total_items)
            if not listed.pagination.has_next_page:
                return len(totals) == 1
            page += 1

    def events(self, after: int | None = None) -> AsyncEvents[SandboxEvent]:
        """What happens to all sandboxes from now on, or after the event with an id (0: all that are kept)."""
        return AsyncEvents(self._http, "", "the events of the service", SandboxEvent,
                           lambda last: lifecycle.stream_events(after=after, last_event_id=last))

    async def version(self) -> Version:
        """Which build of the service answers."""
        return await self._http.call(lifecycle.get_version())

    async def defaults(self) -> CreateDefaults:
        """What `create` asks for where its arguments say nothing, for this client's key. The service is asked once."""
        if self._defaults is None:
            try:
                self._defaults = (await self.version()).defaults or FALLBACK
            except NotFoundError:  # a service without extensions has no version
                self._defaults = FALLBACK
        return self._defaults

    async def call(self, operation: Call[T]) -> T:
        """Sends any call of `sandboxes.lifecycle`."""
        return await self._http.call(operation)
