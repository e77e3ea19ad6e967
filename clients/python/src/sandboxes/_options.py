"""Small conversions between what people write and what the contracts have. No I/O."""

from __future__ import annotations

import os
import re
import uuid
from datetime import datetime, timedelta, timezone
from typing import Mapping, cast
from urllib.parse import urlencode

from ._gen.lifecycle import CreateDefaults, NetworkPolicy, ResourceLimits, SandboxLifecycle

Duration = float | timedelta
"""A number of seconds, or a timedelta."""

DAEMON_PORT = 44772

IDLE_ENTRYPOINT = ("/opt/sandbox/execd-init", "idle")
"""A program that does nothing until the sandbox is to end. It is in every sandbox, whatever the image has."""


FALLBACK = CreateDefaults(timeout=3600, resource_limits=ResourceLimits(), entrypoint=IDLE_ENTRYPOINT)
"""The defaults that the contract has for a service which publishes none."""


def seconds(duration: Duration) -> float:
    """A duration in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def milliseconds(duration: Duration | None) -> int | None:
    """A timeout of a command. One under a millisecond is not none."""
    return None if duration is None else max(1, round(seconds(duration) * 1000))


def new_key() -> str:
    """An Idempotency-Key: what a request with it makes is made once, as long as the key is known."""
    return str(uuid.uuid4())


def from_now(duration: Duration) -> datetime:
    """The time after so many seconds."""
    return datetime.now(timezone.utc) + timedelta(seconds=seconds(duration))


def service_url(url: str | None) -> str:
    """The URL of the service: the argument, else $SANDBOX_URL, else that of a service on this machine."""
    return url or os.environ.get("SANDBOX_URL") or "http://localhost:8080"


def service_key(key: str | None) -> str | None:
    """The key: the argument, else $SERVICE_API_KEY; an open service needs none."""
    return key if key is not None else os.environ.get("SERVICE_API_KEY")


def octal(mode: str | None) -> int | None:
    """A mode as the contract has it: its octal digits as a decimal number.

    A number is refused, for 0o644 is 420, which the contract reads as other permissions.
    """
    if mode is None:
        return None
    if not isinstance(cast(object, mode), str) or not re.fullmatch("[0-7]{1,4}", mode):
        raise ValueError(f'mode: must be a string of one to four octal digits, such as "644" or "0755", not {mode!r}')
    return int(mode)


def check_policy(policy: NetworkPolicy | None) -> None:
    """Refuses a policy that is there and empty.

    The service takes it for one that allows everything, which whoever forgot to fill it in did not mean.
    """
    if policy is not None and policy.default_action is None and not policy.egress:
        raise ValueError("network_policy: must have a default_action or egress rules: an empty one would allow everything")


def metadata_filter(metadata: Mapping[str, str] | None) -> str | None:
    """The filter of a list, in which keys and values are encoded themselves."""
    return urlencode(metadata) if metadata else None


def prefer_wait(left: float) -> tuple[str, int]:
    """The header that holds an answer until the state is no transient one, and for how many seconds at most."""
    wait = max(1, min(60, round(left)))
    return f"wait={wait}", wait


def lifecycle_of(
    on_idle: str | None, idle: Duration | None, hibernate_after: Duration | None, on_timeout: str | None,
    auto_resume: bool | None,
) -> SandboxLifecycle | None:
    """When a sandbox falls asleep or ends by itself; None where nothing is given."""
    if all(given is None for given in (on_idle, idle, hibernate_after, on_timeout, auto_resume)):
        return None
    return SandboxLifecycle(
        on_idle=on_idle, idle_seconds=None if idle is None else seconds(idle),
        hibernate_seconds=None if hibernate_after is None else seconds(hibernate_after), on_timeout=on_timeout,
        auto_resume=auto_resume)
