"""The snapshots of the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Mapping, Sequence

from .._gen import lifecycle
from .._gen.lifecycle import Snapshot, SnapshotDiff, StoredImage
from .._options import metadata_filter
from .http import AsyncHTTP


class AsyncSnapshots:
    """The snapshots of the service that the key may read: `client.snapshots`. `sandbox.snapshot` makes one."""

    def __init__(self, http: AsyncHTTP) -> None:
        self._http = http

    async def list(self, *, sandbox_id: str | None = None, state: Sequence[str] | None = None, name: str | None = None,
                   metadata: Mapping[str, str] | None = None, page_size: int = 100) -> AsyncIterator[Snapshot]:
        """Those of one sandbox, which may be gone, in one of the states, with the name and all of the metadata, newest first.

        Pages are read as they are needed.
        """
        page = 1
        while True:
            listed = await self._http.call(lifecycle.list_snapshots(
                sandbox_id=sandbox_id, state=state, name=name, metadata=metadata_filter(metadata), page=page, page_size=page_size))
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

    async def diff(self, id: str, *, to: str | None = None, limit: int = 1000) -> SnapshotDiff:
        """The files in which a snapshot differs from its image; with `to`, what has changed from it to that snapshot.

        There are at most `limit`, up to 10000; `truncated` says whether there are more.
        """
        return await self._http.call(lifecycle.get_snapshot_diff(id, to=to, limit=limit))

    async def archive(self, id: str, *, to: str | None = None) -> AsyncIterator[bytes]:
        """What `diff` is about, whole, as a tar archive that is the layer of an OCI image, piece by piece."""
        response = await self._http.open(lifecycle.get_snapshot_diff_tar(id, to=to))
        try:
            while piece := await response.piece(self._http.timeout):
                yield piece
        finally:
            response.close()

    async def export(self, id: str, name: str) -> StoredImage:
        """Makes an image of a snapshot, under a name with a tag. It needs a key with the role admin."""
        return await self._http.call(lifecycle.export_snapshot(id, lifecycle.ExportSnapshotRequest(name=name)))
