"""Files and directories of a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import BinaryIO, Sequence, TypeAlias, cast

from .._errors import NotFoundError, ProtocolError
from .._gen import execd
from .._gen.execd import FileEvent, FileInfo
from .._options import octal
from .._upload import Form, Upload
from .connection import read_file
from .daemon import AsyncDaemon
from .streams import AsyncDownload, AsyncEvents

Data: TypeAlias = bytes | str | BinaryIO | AsyncIterable[bytes]
"""The content of a file: bytes, text (as UTF-8), an open binary file, or pieces."""

FileInfos: TypeAlias = list[FileInfo]

READ_LIMIT = 256 << 20


class AsyncFiles:
    """Files and directories: `sandbox.files`.

    Paths are absolute, begin with `~/`, or are relative to the sandbox's working directory. A mode is a string
    of one to four octal digits: "644" and "0644" are rw-r--r--. Another one is a ValueError.
    """

    def __init__(self, daemon: AsyncDaemon) -> None:
        self._daemon = daemon

    async def read(self, path: str, *, start: int = 0, end: int | None = None, limit: int = READ_LIMIT) -> bytes:
        """The bytes of a file, or those from `start` to before `end`; at most `limit` (else ProtocolError)."""
        data = bytearray()
        async with self.stream(path, start=start, end=end) as pieces:
            async for piece in pieces:
                data += piece
                if len(data) > limit:
                    raise ProtocolError(f"{path} is larger than {limit} bytes: raise the limit, or use stream")
        return bytes(data)

    async def read_text(self, path: str, *, encoding: str = "utf-8", limit: int = READ_LIMIT) -> str:
        """The text of a file."""
        return (await self.read(path, limit=limit)).decode(encoding)

    def stream(self, path: str, *, start: int = 0, end: int | None = None) -> AsyncDownload:
        """The bytes of a file, piece by piece."""
        if start < 0 or (end is not None and end <= start):
            raise ValueError("start must not be negative, and end must be larger than start")
        return self._daemon.download(path, start, end)

    async def write(self, path: str, data: Data, *, mode: str | None = None, owner: str | None = None,
                    group: str | None = None) -> None:
        """Writes a file, and makes the directories above it. It appears when all of it has arrived."""
        await self.write_all([Upload(path=path, data=data, mode=mode, owner=owner, group=group)])

    async def write_all(self, uploads: Sequence[Upload[Data]]) -> None:
        """Writes several files in one request, in order."""
        if not uploads:
            return
        form, content = Form(), list[bytes | AsyncIterable[bytes]]()
        for upload in uploads:
            data = upload.data.encode() if isinstance(upload.data, str) else upload.data
            if isinstance(data, bytes):
                content += [form.before(upload.metadata(), data), data]
            else:
                content += [form.before(upload.metadata(), None), pieces(data)]
        content.append(form.end())
        await self._daemon.call(execd.upload_files(form.content_type), content=content)

    async def info(self, path: str) -> FileInfo:
        """The facts of a file or directory."""
        infos = await self._daemon.call(execd.get_files_info([path]))
        if path not in infos:
            raise ProtocolError(f"the answer does not have {path}")
        return infos[path]

    async def infos(self, paths: Sequence[str]) -> dict[str, FileInfo]:
        """The facts of several files and directories, by their paths."""
        return await self._daemon.call(execd.get_files_info(paths))

    async def exists(self, path: str) -> bool:
        """Whether there is something at the path."""
        try:
            await self.info(path)
        except NotFoundError as error:
            if error.code != "FILE_NOT_FOUND":
                raise
            return False
        return True

    async def list(self, path: str, *, depth: int | None = None) -> FileInfos:
        """What a directory holds, sorted by path, so many levels deep."""
        return await self._daemon.call(execd.list_directory(path, depth=depth))

    async def search(self, path: str, pattern: str | None = None) -> FileInfos:
        """The files below a directory that match a glob such as `*.txt` or `**/*.py`, sorted by path."""
        return await self._daemon.call(execd.search_files(path, pattern=pattern))

    async def replace(self, path: str, old: str, new: str) -> None:
        """Replaces every occurrence of a text in a file."""
        await self._daemon.call(execd.replace_in_files({path: execd.Replacement(old=old, new=new)}))

    async def move(self, src: str, dest: str) -> None:
        """Moves or renames a file or directory. Nothing is ever overwritten."""
        await self._daemon.call(execd.move_files([execd.Move(src=src, dest=dest)]))

    async def delete(self, *paths: str) -> None:
        """Removes files. When one is missing nothing is removed."""
        await self._daemon.call(execd.delete_files(paths))

    async def delete_directory(self, *paths: str) -> None:
        """Removes directories with everything in them."""
        await self._daemon.call(execd.delete_directories(paths))

    async def make_directory(self, path: str, *, mode: str | None = None, owner: str | None = None,
                             group: str | None = None) -> None:
        """Makes a directory and those above it. One that exists only gets the permissions."""
        permission = execd.Permission(mode=octal(mode), owner=owner, group=group)
        await self._daemon.call(execd.make_directories({path: permission}))

    async def set_permissions(self, path: str, *, mode: str | None = None, owner: str | None = None,
                              group: str | None = None) -> None:
        """Changes mode, owner and group. What is None stays."""
        permission = execd.Permission(mode=octal(mode), owner=owner, group=group)
        await self._daemon.call(execd.set_permissions({path: permission}))

    def watch(self, path: str, *, recursive: bool = False) -> AsyncEvents[FileEvent]:
        """What happens to a file or directory, from the event `ready` on.

        The contract gives these events no ids, so a stream that is cut raises StreamError: read the files, and
        watch again. It ends when the path itself is removed or renamed, which is its last event, or
        with `error`.
        """
        watched: list[str | None] = []  # as `ready` has it: absolute

        def last(event: FileEvent) -> bool:
            if event.type == "ready":
                watched.append(event.path)
            gone = event.type in ("remove", "rename") and event.path in watched
            return gone or event.type == "error"

        return self._daemon.events(f"the watch of {path}", FileEvent,
                                   lambda _: execd.watch_files(path, recursive=recursive or None),
                                   last=last, resumable=False)


async def pieces(data: BinaryIO | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The bytes of an open file, or of pieces."""
    if hasattr(data, "read"):
        while piece := await read_file(cast(BinaryIO, data)):
            yield piece
        return
    async for piece in cast(AsyncIterable[bytes], data):
        yield piece
