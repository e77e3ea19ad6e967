"""The form of an upload. No I/O."""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass
from typing import Generic, TypeVar

from ._gen.execd import UploadMetadata
from ._operations import encode
from ._options import octal

Data = TypeVar("Data", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Upload(Generic[Data]):
    """A file to write. Owner, group and mode stay as they are when they are None."""

    path: str
    data: Data
    mode: str | None = None
    """One to four octal digits: "644" or "0755"."""
    owner: str | None = None
    group: str | None = None

    def metadata(self) -> UploadMetadata:
        """What the form says about the file."""
        return UploadMetadata(path=self.path, mode=octal(self.mode), owner=self.owner, group=self.group)


class Form:
    """The pieces of a multipart body around the contents of files."""

    def __init__(self) -> None:
        self._boundary = os.urandom(16).hex()
        self._first = True
        self.content_type = f"multipart/form-data; boundary={self._boundary}"

    def before(self, metadata: UploadMetadata, whole: bytes | None) -> bytes:
        """What comes before the content of a file. The daemon checks the digest of content that is whole."""
        digest = ""
        if whole is not None:
            digest = f"Repr-Digest: sha-256=:{base64.b64encode(hashlib.sha256(whole).digest()).decode()}:\r\n"
        lead, self._first = "" if self._first else "\r\n", False
        return (
            f'{lead}--{self._boundary}\r\nContent-Disposition: form-data; name="metadata"\r\n'
            "Content-Type: application/json\r\n\r\n"
        ).encode() + encode(metadata) + (
            f'\r\n--{self._boundary}\r\nContent-Disposition: form-data; name="file"; filename="file"\r\n'
            f"Content-Type: application/octet-stream\r\n{digest}\r\n"
        ).encode()

    def end(self) -> bytes:
        """What comes after the last file."""
        return f"\r\n--{self._boundary}--\r\n".encode()
