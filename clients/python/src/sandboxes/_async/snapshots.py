"""The snapshots of the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Sequence

from .._gen import lifecycle
from .._gen.lifecycle import Snapshot
from .http import AsyncHTTP


class AsyncSnapshots:
    """The snapshots of the service that the key may read: `client.snapshots`. `sandbox.snapshot` makes one."""

    def __init__(self, http: AsyncHTTP) -> None:
        self._http = http

    async def list(self, *, sandbox_id: str | None = None, state: Sequence[str] | None = None,
                   page_size: int = 100) -> AsyncIterator[Snapshot]:
        """Those of one sandbox, which may be gone, and in one of the states, newest first. Pages are read as they are needed."""
        page = 1
        while True:
            listed = await self._http.call(lifecycle.list_snapshots(
                sandbox_id=sandbox_id, state=state, page=page, page_size=page_size))
            for snapshot in listed.items:
                yield snapshot
            if not listed.pagination.has_next_page:
                return
            page += 1

    async def get(self, id: str) -> Snapshot:
        """One snapshot."""
        return await self._http.call(lifecycle.get_snapshot(id))

    async def delete(self, id: str) -> None:
        """Deletes a snapshot. Sandboxes that began with it, or were rolled back to it, keep their files."""
        await self._http.call(lifecycle.delete_snapshot(id))
