"""A client for sandboxes as a service.

`Client` and `Sandbox` block; `AsyncClient` and `AsyncSandbox` are the same for asyncio. `lifecycle` and
`execd` have every type and call of the two contracts.
"""

from ._async.client import AsyncClient
from ._async.code import AsyncCell, AsyncCode
from ._async.commands import AsyncCommand, AsyncCommands
from ._async.files import AsyncFiles
from ._async.keys import AsyncKeys
from ._async.network import AsyncNetwork
from ._async.sandbox import AsyncSandbox
from ._async.snapshots import AsyncSnapshots
from ._async.stdin import AsyncStdin
from ._async.streams import AsyncDownload, AsyncEvents
from ._async.terminals import AsyncAttachment, AsyncTerminal, AsyncTerminals
from ._errors import (
    APIError,
    CommandFailed,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    ProtocolError,
    RateLimitedError,
    SandboxesError,
    SandboxFailed,
    SnapshotFailed,
    StreamError,
    TransportError,
    UnauthorizedError,
    UnavailableError,
    WaitTimeout,
)
from ._gen import execd, lifecycle
from ._gen.execd import CodeContext, FileEvent, FileInfo, KeptAwake, Metrics
from ._gen.lifecycle import (
    ActivityEntry,
    EgressRule,
    Holds,
    ImageAuth,
    IssuedKey,
    Key,
    KeyLimits,
    KeyRateLimit,
    NetworkPolicy,
    SandboxEvent,
    SandboxLifecycle,
    Snapshot,
    Volume,
)
from ._gen.lifecycle import Sandbox as SandboxInfo
from ._output import CodeError, CommandResult, Execution, Output, Result
from ._sync.client import Client
from ._sync.code import Cell, Code
from ._sync.commands import Command, Commands
from ._sync.files import Files
from ._sync.keys import Keys
from ._sync.network import Network
from ._sync.sandbox import Sandbox
from ._sync.snapshots import Snapshots
from ._sync.stdin import Stdin
from ._sync.streams import Download, Events
from ._sync.terminals import Attachment, Terminal, Terminals
from ._terminal import TerminalEvent, TerminalExit, TerminalOutput, TerminalReplay
from ._upload import Upload

__all__ = [
    "APIError", "ActivityEntry", "AsyncAttachment", "AsyncCell", "AsyncClient", "AsyncCode", "AsyncCommand", "AsyncCommands",
    "AsyncDownload", "AsyncEvents", "AsyncFiles", "AsyncKeys", "AsyncNetwork", "AsyncSandbox", "AsyncSnapshots", "AsyncStdin", "AsyncTerminal",
    "AsyncTerminals", "Attachment", "Cell", "Client", "Code", "CodeContext", "CodeError", "Command",
    "CommandFailed", "CommandResult", "Commands", "ConflictError", "Download", "EgressRule", "Events",
    "Execution", "FileEvent", "FileInfo", "Files", "ForbiddenError", "Holds", "ImageAuth", "IssuedKey", "KeptAwake", "Key", "KeyLimits", "KeyRateLimit", "Keys", "Metrics", "Network",
    "NetworkPolicy", "NotFoundError", "Output", "ProtocolError", "RateLimitedError", "Result", "Sandbox",
    "SandboxEvent", "SandboxFailed", "SandboxInfo", "SandboxLifecycle", "SandboxesError", "Snapshot", "SnapshotFailed", "Snapshots", "Stdin", "StreamError", "Terminal",
    "TerminalEvent", "TerminalExit", "TerminalOutput", "TerminalReplay", "Terminals", "TransportError",
    "UnauthorizedError", "UnavailableError", "Upload", "Volume", "WaitTimeout", "execd", "lifecycle",
]
