"""What needs no service: parsers, JSON, output."""

from __future__ import annotations

import inspect
import random
import re
import ssl
import time
import tracemalloc
import unittest
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sandboxes import (
    Attachment,
    Cell,
    Client,
    Code,
    Command,
    Commands,
    Files,
    Keys,
    Network,
    ProtocolError,
    Sandbox,
    Snapshots,
    Terminal,
    Terminals,
    Upload,
    execd,
    lifecycle,
)
from sandboxes._decode import decode
from sandboxes._errors import (
    ConflictError,
    NotFoundError,
    RateLimitedError,
    SandboxesError,
    TransportError,
    api_error,
    connect_error,
)
from sandboxes._http1 import Body, Head, Origin, chunk, request_head, split_head
from sandboxes._operations import encode
from sandboxes._output import Collector, output_of
from sandboxes._retry import Repetitions, Resumption
from sandboxes._sse import Event, EventParser
from sandboxes._websocket import BINARY, PING, TEXT, Message, MessageParser, frame


def pieces(data: bytes, seed: int) -> list[bytes]:
    """The data in pieces of random sizes."""
    generator, cut = random.Random(seed), list[bytes]()
    while data:
        size = generator.randint(1, 9)
        cut.append(data[:size])
        data = data[size:]
    return cut


class Connecting(unittest.TestCase):
    """Why there is no connection, and whether that stays so."""

    def test_certificates(self) -> None:
        error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
        error.verify_code, error.verify_message = 18, "self-signed certificate"
        found = connect_error("https://service", error)
        self.assertEqual(str(found), "https://service cannot be reached: the certificate of the server is not trusted: self-signed certificate")
        self.assertTrue(found.permanent)
        operation = lifecycle.get_version()
        with self.assertRaises(TransportError):
            Repetitions(operation).pause(found)
        self.assertIsNone(Resumption(60).pause(found))

    def test_no_tls(self) -> None:
        error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
        error.reason = "WRONG_VERSION_NUMBER"
        self.assertIn("the URL should begin with http://", str(connect_error("https://service", error)))
        answer = b"Client sent an HTTP request to an HTTPS server.\n"
        self.assertIn("the URL should begin with https://", str(api_error(400, answer, "", "")))

    def test_others_are_repeated(self) -> None:
        for error in (ConnectionRefusedError(111, "Connection refused"), TimeoutError()):
            found = connect_error("http://service", error)
            self.assertFalse(found.permanent or found.sent)
        self.assertIn("it did not answer in time", str(connect_error("http://service", TimeoutError())))


class Modes(unittest.TestCase):
    def test_octal_digits(self) -> None:
        for mode, sent in {"644": 644, "0755": 755, "4755": 4755, "0": 0, "07": 7}.items():
            self.assertEqual(Upload(path="/a", data=b"", mode=mode).metadata().mode, sent)
        self.assertIsNone(Upload(path="/a", data=b"").metadata().mode)

    def test_others_are_refused(self) -> None:
        files = Files(None)  # type: ignore[arg-type]
        wrong: list[Any] = ["u+x", "999", "", "07555", "0o644", "64\n", " 644", "-1", "٦٤٤", 644, 0o644, 6.4, True]
        for mode in wrong:
            for call in (
                lambda: files.write("/a", b"", mode=mode),
                lambda: files.write_all([Upload(path="/a", data=b""), Upload(path="/b", data=b"", mode=mode)]),
                lambda: files.make_directory("/a", mode=mode),
                lambda: files.set_permissions("/a", mode=mode),
            ):
                with self.subTest(mode), self.assertRaisesRegex(ValueError, "^mode: must be a string of one to four octal digits"):
                    call()


class Policies(unittest.TestCase):
    def test_empty_ones_are_refused(self) -> None:
        network = Network(None, "box")  # type: ignore[arg-type]
        for policy in (lifecycle.NetworkPolicy(), lifecycle.NetworkPolicy(egress=[]), lifecycle.NetworkPolicy(dry_run=True)):
            with self.assertRaisesRegex(ValueError, "must have a default_action or egress rules"):
                network.set_policy(policy)
            with self.assertRaisesRegex(ValueError, "must have a default_action or egress rules"):
                Client("http://127.0.0.1:9").create("image", network_policy=policy)


class Ages(unittest.TestCase):
    def sent(self, *errors: SandboxesError) -> list[int | None]:
        """The ages of the attempts of a request that fails with these errors one after the other."""
        operation = execd.run_command(execd.CommandRequest(command="true"), idempotency_key="k")
        repetitions, ages = Repetitions(operation), list[int | None]()
        for error in errors:
            headers = dict(repetitions.next(operation).header_fields())
            ages.append(int(headers["Idempotency-Age"]) if "Idempotency-Age" in headers else None)
            self.assertEqual(headers["Idempotency-Key"], "k")
            time.sleep(0.02)
            repetitions.pause(error)
        return ages

    def test_from_the_first_attempt_that_may_have_arrived(self) -> None:
        refused = TransportError("refused", sent=False)
        limited = api_error(429, b"", "", "")
        for lost in (TransportError("cut", sent=True), api_error(502, b"", "", ""), api_error(503, b"", "", "")):
            with self.subTest(str(lost)):
                ages = self.sent(refused, limited, lost, refused)
                self.assertEqual(ages[:3], [None] * 3)
                self.assertGreaterEqual(ages[3] or 0, 20)
        first, second, third, fourth = self.sent(TransportError("cut", sent=True), refused, refused, limited)
        self.assertIsNone(first)
        self.assertTrue(20 <= (second or 0) < (third or 0) < (fourth or 0), (second, third, fourth))

    def test_the_service_gets_none(self) -> None:
        image, limits = lifecycle.Image(uri="x"), lifecycle.ResourceLimits()
        request = lifecycle.CreateSandboxRequest(entrypoint=["x"], image=image, resource_limits=limits, timeout=60)
        operation = lifecycle.create_sandbox(request, idempotency_key="k")
        self.assertEqual(operation.aged(5).header_fields(), operation.header_fields())

    def test_the_answer_of_another_daemon_is_the_error(self) -> None:
        conflict = api_error(409, b'{"code": "CONFLICT", "message": "execd was started again"}', "", "")
        with self.assertRaises(ConflictError):
            self.sent(TransportError("cut", sent=True), conflict)


class Parsers(unittest.TestCase):
    def test_events_in_pieces(self) -> None:
        stream = b': note\nid: 1\ndata: {"a":\r\ndata: 1}\r\n\r\nid: 2\ndata:x\n\nretry: 5\n\ndata: half'
        for seed in range(50):
            parser = EventParser()
            events = [event for piece in pieces(stream, seed) for event in parser.feed(piece)]
            self.assertEqual(events, [Event("1", b'{"a":\n1}'), Event("2", b"x")])

    def test_events_are_bounded(self) -> None:
        parser = EventParser()
        with self.assertRaises(ProtocolError):
            for _ in range(2000):
                list(parser.feed(b"data: " + b"x" * 65000 + b"\n"))

    @patch("sandboxes._sse.MAX_EVENT", 200_000)
    def test_events_of_many_lines_are_bounded(self) -> None:
        for line in (b"data:\n", b"data: ab\n"):
            parser, fed = EventParser(), 0
            tracemalloc.start()
            with self.subTest(line), self.assertRaises(ProtocolError):
                while fed < 2_000_000:
                    list(parser.feed(line * 1000))
                    fed += 1000 * len(line)
            self.assertLess(tracemalloc.get_traced_memory()[1], 1_000_000)
            tracemalloc.stop()

    def test_bodies_in_pieces(self) -> None:
        head = Head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked")
        stream = chunk(b"one ") + b"3;note=1\r\ntwo\r\n" + chunk(b"") + b"rest"
        for seed in range(50):
            body, buffer, data = Body("GET", head), bytearray(), b""
            for piece in pieces(stream, seed):
                buffer += piece
                data += body.take(buffer)
            self.assertEqual((data, body.done, bytes(buffer)), (b"one two", True, b"rest"))

    def test_malformed_answers(self) -> None:
        for text in (b"SSH-2.0", b"HTTP/1.1 2x0 OK", b"HTTP/1.1 200 OK\r\nno colon", b"HTTP/1.1 200 OK\r\n folded: 1"):
            with self.subTest(text), self.assertRaises(ProtocolError):
                split_head(bytearray(text + b"\r\n\r\n"))
        for header in (b"Content-Length: -1", b"Content-Length: 1, 2", b"Transfer-Encoding: gzip, chunked"):
            with self.subTest(header), self.assertRaises(ProtocolError):
                Body("GET", Head(b"HTTP/1.1 200 OK\r\n" + header))
        for start in (b"x\r\n", b"-1\r\n", b"1\r\nab\r\n", b"\r\n"):
            with self.subTest(start), self.assertRaises(ProtocolError):
                Body("GET", Head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked")).take(bytearray(start))
        with self.assertRaises(ProtocolError):
            split_head(bytearray(b"x" * (1 << 17)))

    def test_request_head(self) -> None:
        with self.assertRaises(ValueError):
            request_head("GET", "/", [("Idempotency-Key", "a\r\nX: b")])
        for url in ("ftp://a", "a", "http://", "http://a?b", "http://u:p@a"):
            with self.subTest(url), self.assertRaises(ValueError):
                Origin(url)
        origin = Origin("https://[::1]:8443/base/")
        self.assertEqual((origin.name, origin.port, origin.prefix, origin.tls), ("::1", 8443, "/base", True))

    def test_messages_in_pieces(self) -> None:
        def unmasked(final: bool, opcode: int, data: bytes) -> bytes:
            size = bytes([len(data)]) if len(data) < 126 else b"\x7e" + len(data).to_bytes(2, "big")
            return bytes([final << 7 | opcode]) + size + data

        stream = (unmasked(False, BINARY, b"a" * 200) + unmasked(True, PING, b"p")
                  + unmasked(True, 0, b"b") + unmasked(True, TEXT, b"{}"))
        for seed in range(20):
            parser = MessageParser()
            messages = [message for piece in pieces(stream, seed) for message in parser.feed(piece)]
            self.assertEqual(messages, [Message(PING, b"p"), Message(BINARY, b"a" * 200 + b"b"), Message(TEXT, b"{}")])

    def test_frames(self) -> None:
        for size in (0, 5, 125, 126, 70000):
            data = random.Random(size).randbytes(size)
            sent = frame(BINARY, data)
            mask, payload = sent[-size - 4 : len(sent) - size], sent[len(sent) - size :]
            self.assertEqual(bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload)), data)

    def test_malformed_messages(self) -> None:
        for data in (b"\xc2\x00", b"\x82\x80", b"\x83\x00", b"\x80\x00", b"\x09\x00", b"\x82\x7f" + b"\xff" * 8):
            with self.subTest(data), self.assertRaises(ProtocolError):
                list(MessageParser().feed(data))


class JSON(unittest.TestCase):
    def test_names_and_absent_fields(self) -> None:
        request = lifecycle.CreateSandboxRequest(
            image=lifecycle.Image(uri="a"), timeout=60, entrypoint=["b"], resource_limits=lifecycle.ResourceLimits())
        self.assertEqual(encode(request), b'{"entrypoint":["b"],"image":{"uri":"a"},"resourceLimits":{},"timeout":60}')
        moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
        self.assertEqual(encode({"a": None, "b": moment, "c": b"\xff"}), b'{"a":null,"b":"2026-01-02T03:04:05Z","c":"/w=="}')

    def test_decode(self) -> None:
        event = decode(lifecycle.SandboxEvent, b'{"type":"state","timestamp":"2026-01-02T15:04:07.123456789Z",'
                       b'"from":"Brand New","to":"Running","unknown":1}')
        self.assertEqual((event.from_, event.to, event.timestamp.microsecond), ("Brand New", "Running", 123456))
        last = decode(execd.StreamEvent, b'{"type":"error","timestamp":1,"exit_code":null}')
        self.assertIsNone(last.exit_code)

    def test_malformed(self) -> None:
        for text in (b"", b"[]", b"{}", b'{"type":1,"timestamp":1}', b'{"type":"ping","timestamp":true}', b"[" * 100000,
                     b'{"type":"stdout","timestamp":1,"raw":"?"}', b'{"type":"error","timestamp":1,"error":{"ename":"a"}}'):
            with self.subTest(text[:60]), self.assertRaises(ProtocolError):
                decode(execd.StreamEvent, text)

    def test_secrets_are_not_shown(self) -> None:
        auth = lifecycle.ImageAuth(username="robot", password="hidden")
        endpoint = lifecycle.Endpoint(endpoint="a", url="b", headers={"X": "hidden"}, signature="hidden")
        issued = lifecycle.IssuedKey(key=lifecycle.Key(name="shown", role="user", source="service"), secret="hidden")
        self.assertNotIn("hidden", repr(auth) + repr(endpoint) + repr(issued))
        self.assertIn("shown", repr(issued))


class Rules(unittest.TestCase):
    def test_output(self) -> None:
        def event(**fields: object) -> execd.StreamEvent:
            return execd.StreamEvent(type="stdout", timestamp=1, **fields)  # type: ignore[arg-type]

        self.assertEqual(output_of(event(text="a")), b"a\n")
        self.assertEqual(output_of(event(text="\n")), b"\n")
        self.assertEqual(output_of(event(text="$ ", partial=True)), b"$ ")
        self.assertEqual(output_of(event(text="?", raw=b"\xff", partial=True)), b"\xff")

    def test_callbacks_get_whole_characters(self) -> None:
        texts = list[str]()
        collector = Collector("id", on_stdout=texts.append)
        for data in (b"\xe2\x82", b"\xac"):
            collector.add(execd.StreamEvent(type="stdout", timestamp=1, raw=data, partial=True))
        collector.add(execd.StreamEvent(type="execution_complete", timestamp=1, exit_code=0))
        self.assertEqual((texts, collector.command_result().stdout), (["€"], "€"))

    def test_output_that_the_daemon_cut(self) -> None:
        for kind in ("status", "ping"):
            collector = Collector("id")
            collector.add(execd.StreamEvent(type=kind, timestamp=1, text="10 bytes were cut"))
            collector.add(execd.StreamEvent(type="execution_complete", timestamp=1, exit_code=0))
            for result in (collector.command_result(), collector.execution()):
                self.assertEqual(result.truncated, kind == "status")

    def test_repetitions(self) -> None:
        get, post = lifecycle.get_sandbox("a"), lifecycle.pause_sandbox("a")
        lost, unsent = TransportError("", sent=True), TransportError("", sent=False)
        limited = api_error(429, b"{}", "", "7")
        assert isinstance(limited, RateLimitedError)
        Repetitions(get).pause(lost)
        Repetitions(post).pause(unsent)
        self.assertGreaterEqual(Repetitions(post).pause(limited), 7)
        for operation, error in ((post, lost), (post, api_error(503, b"", "", "")), (get, api_error(404, b"", "", ""))):
            with self.subTest(error), self.assertRaises(type(error)):
                Repetitions(operation).pause(error)
        bounded = Repetitions(get)
        with self.assertRaises(TransportError):
            for _ in range(10):
                bounded.pause(lost)
        self.assertLessEqual(Repetitions(get).pause(api_error(503, b"", "", "99999")), 30)

    def test_resumption(self) -> None:
        resumption = Resumption(limit=1000)
        lost = TransportError("", sent=True)
        pauses = [resumption.pause(lost) for _ in range(12)]
        self.assertEqual(pauses[0], 0)
        self.assertTrue(all(pause is not None and pause <= 2 for pause in pauses))
        self.assertIsNone(resumption.pause(api_error(404, b"", "", "")))
        self.assertIsNone(Resumption(limit=0).pause(lost))

    def test_errors(self) -> None:
        error = api_error(404, b'{"code":"NOT_FOUND","message":"no"}', "r1", "")
        self.assertIsInstance(error, NotFoundError)
        self.assertEqual((error.status, error.code, error.message, error.request_id), (404, "NOT_FOUND", "no", "r1"))
        self.assertEqual(api_error(502, b"<html>", "", "soon").code, "UNKNOWN")
        self.assertEqual(str(api_error(500, b'{"code":"A","message":"\\u001b[2J"}', "", "")), "500 A: \ufffd[2J")
        self.assertIn("redirect", str(api_error(302, b"", "", "")))

    def test_paths(self) -> None:
        self.assertEqual(lifecycle.get_sandbox("a/b?c").path, "/v1/sandboxes/a%2Fb%3Fc")
        for id in ("", ".", ".."):
            with self.subTest(id), self.assertRaises(ValueError):
                lifecycle.get_sandbox(id)


class Pages(unittest.TestCase):
    def test_readme_has_every_call_and_its_defaults(self) -> None:
        kinds: dict[str, type] = {
            "client": Client, "client.keys": Keys, "client.snapshots": Snapshots, "sandbox": Sandbox, "sandbox.commands": Commands, "command": Command,
            "sandbox.code": Code, "cell": Cell, "sandbox.files": Files, "sandbox.terminals": Terminals,
            "terminal": Terminal, "attachment": Attachment, "sandbox.network": Network,
        }
        text = (Path(__file__).parent.parent / "README.md").read_text()
        rows = re.findall(r"^\| `([\w.]+(?:\(.*?\))?)` \|", text, re.MULTILINE)
        there = [described(f"{path}.{name}", member) for path, kind in kinds.items()
                 for name, member in vars(kind).items() if not name.startswith("_") and name != "close"]
        self.assertEqual(rows, there)


def described(name: str, member: Any) -> str:
    """A call as the table of the README has it."""
    if isinstance(member, property):
        return name
    parameters = list(inspect.signature(member).parameters.values())[1:]
    words = ["*" * (each.kind is each.VAR_POSITIONAL) + each.name + ("" if each.default is each.empty else f"={each.default!r}")
             for each in parameters]
    return f"{name}({', '.join(words)})"


if __name__ == "__main__":
    unittest.main()
