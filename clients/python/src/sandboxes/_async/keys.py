"""The API keys of the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

from .._gen import lifecycle
from .._gen.lifecycle import IssuedKey, Key, KeyLimits, KeyRateLimit, KeyRole
from .._options import Duration, seconds
from .http import AsyncHTTP


class AsyncKeys:
    """The API keys of the service: `client.keys`. Every call needs a key with the role admin.

    Those of the service's configuration can be read only. A service on a cluster has no others: changes are an
    APIError with the status 501 there.
    """

    def __init__(self, http: AsyncHTTP) -> None:
        self._http = http

    async def list(self, *, page_size: int = 100) -> AsyncIterator[Key]:
        """The keys by name, expired ones too. Pages are read as they are needed."""
        page = 1
        while True:
            listed = await self._http.call(lifecycle.list_keys(page=page, page_size=page_size))
            for key in listed.items:
                yield key
            if not listed.pagination.has_next_page:
                return
            page += 1

    async def get(self, name: str) -> Key:
        """One key."""
        return await self._http.call(lifecycle.get_key(name))

    async def create(self, name: str, *, role: KeyRole = "user", expires_at: datetime | None = None,
                     limits: KeyLimits | None = None, rate_limit: KeyRateLimit | None = None,
                     take_over: bool = False) -> IssuedKey:
        """Makes a key and returns it with its secret, which the service cannot show again.

        A name that a key had before is a ConflictError without `take_over`, with which the new key gets the sandboxes,
        volumes and images of that name. Nor is the request repeated when its answer was lost: delete the key then.
        """
        return await self._http.call(lifecycle.create_key(lifecycle.CreateKeyRequest(
            name=name, role=role, expires_at=expires_at, limits=limits, rate_limit=rate_limit,
            take_over=take_over or None)))

    async def rotate(self, name: str, *, grace: Duration = 0, expires_at: datetime | None = None) -> IssuedKey:
        """Gives a key a new secret, and returns it. The secret before stays valid for `grace` seconds."""
        return await self._http.call(lifecycle.rotate_key(name, lifecycle.RotateKeyRequest(
            grace_seconds=round(seconds(grace)) or None, expires_at=expires_at)))

    async def delete(self, name: str) -> None:
        """Removes a key: from then on it is refused, and what it began is cut off."""
        await self._http.call(lifecycle.delete_key(name))
