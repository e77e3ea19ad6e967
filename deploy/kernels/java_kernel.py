"""The java kernel: cells run in a JShell (JShellHost.java), so variables, methods, classes and imports stay from cell to cell.

The value of the cell's last snippet, if that is an expression, is its result. A failure to compile is an error CompileError, an exception
an error with the exception's class name. An interrupt ends the cell with KeyboardInterrupt (CellControl.java).
A virtual machine that ends (System.exit, a crash, an interrupt that nothing else obeys) is replaced by a new one and what it knew is gone;
the error is ExitCode with the number, and `System.exit(0)` is a success all the same. Standard input is empty.
"""

import os
import select
import struct
import subprocess

from tornado.ioloop import IOLoop

from wrapper import WrapperKernel, main

CHUNK = 256 * 1024  # bytes per read
# Without the safepoints a thread in a long loop of the class library stops when the loop ends, and until then everything else in the
# virtual machine waits for it, its end included.
OPTIONS = ["-XX:+UseSerialGC", "-XX:+UseCountedLoopSafepoints", "-XX:LoopStripMiningIter=1000", "-Dfile.encoding=UTF-8"]
CLASS_PATH = os.path.dirname(os.path.abspath(__file__)) + ":/usr/share/java/asm.jar"
HEADER = struct.Struct(">cI")
STREAMS = {b"o": "stdout", b"e": "stderr"}


class Host:
    """The JShellHost process. Starting it takes no time: it comes up while the kernel does."""

    def __init__(self):
        self.process = subprocess.Popen(
            ["java", *OPTIONS, "-cp", CLASS_PATH, "JShellHost"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0,
        )
        self.fd = self.process.stdout.fileno()
        os.set_blocking(self.fd, False)
        self.buffer = bytearray()

    def send(self, kind, text=""):
        data = text.encode()
        data = HEADER.pack(kind, len(data)) + data
        try:
            while data:
                data = data[os.write(self.process.stdin.fileno(), data):]
        except BrokenPipeError:
            pass  # receive reports it

    def receive(self, wait):
        """Returns the frames that are there, at least one with wait. It raises EOFError when the host has ended."""
        while True:
            frames = self.whole_frames()
            if frames:
                return frames
            if wait:
                select.select([self.fd], [], [])
            try:
                data = os.read(self.fd, CHUNK)
            except BlockingIOError:
                return []
            if not data:
                raise EOFError
            self.buffer += data

    def whole_frames(self):
        """Takes the whole frames out of the buffer. Neighbours of one stream become one: a message costs more than many lines."""
        frames, begin = [], 0
        while len(self.buffer) - begin >= HEADER.size:
            kind, length = HEADER.unpack_from(self.buffer, begin)
            end = begin + HEADER.size + length
            if len(self.buffer) < end:
                break
            data = bytes(self.buffer[begin + HEADER.size:end])
            if frames and kind in STREAMS and frames[-1][0] == kind:
                frames[-1][1].append(data)
            else:
                frames.append((kind, [data]))
            begin = end
        del self.buffer[:begin]
        return [(kind, b"".join(parts)) for kind, parts in frames]

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class JavaKernel(WrapperKernel):
    banner = "Java (JShell)"
    language_info = {"name": "java", "mimetype": "text/x-java-source", "file_extension": ".java"}

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.host = Host()

    def start(self):
        super().start()
        IOLoop.current().add_handler(self.host.fd, self.between_cells, IOLoop.READ)

    def new_host(self):
        IOLoop.current().remove_handler(self.host.fd)
        self.host.close()
        self.host = Host()
        IOLoop.current().add_handler(self.host.fd, self.between_cells, IOLoop.READ)

    def between_cells(self, fd, events):
        """Output of a thread that outlives its cell."""
        self.silent = False
        try:
            for kind, data in self.host.receive(wait=False):
                if kind in STREAMS:
                    self.say(STREAMS[kind], data)
        except EOFError:
            self.new_host()

    def do_execute(self, code, silent, store_history=True, user_expressions=None, allow_stdin=False):
        self.silent = silent
        failure = status = None
        sent = []
        pending = []
        interrupted = []

        def interrupt():
            interrupted.append(True)
            # The handler may run in the middle of sending the cell, whose frame it must not cut in two.
            if sent:
                self.host.send(b"i")
            else:
                pending.append(True)

        with self.on_interrupt(interrupt):
            self.host.send(b"x", code)
            sent.append(True)
            if pending:
                interrupt()
            try:
                failure = self.follow()
            except EOFError:
                status = self.host.process.wait()
                self.new_host()
        self.finish_output()
        if status:
            status = 128 - status if status < 0 else status
            note = f"exit status {status}: the virtual machine has ended, with its variables; the next cell has a new one"
            return self.failed("KeyboardInterrupt", "", [note]) if interrupted else self.failed("ExitCode", str(status), [note])
        if failure:
            return self.failed(failure[0], failure[1], failure[2:])
        return self.succeeded()

    def follow(self):
        """Passes on what the cell says until it is done; returns its failure, if any: name, message and the traceback's lines."""
        failure = None
        while True:
            for kind, data in self.host.receive(wait=True):
                if kind in STREAMS:
                    self.say(STREAMS[kind], data)
                elif kind == b"r" and not self.silent:
                    content = {"execution_count": self.execution_count, "data": {"text/plain": data.decode()}, "metadata": {}}
                    self.send_response(self.iopub_socket, "execute_result", content)
                elif kind == b"f":
                    failure = data.decode().split("\0")
                elif kind == b"d":
                    return failure

    def do_shutdown(self, restart):
        self.host.process.stdin.close()
        return {"status": "ok", "restart": restart}


if __name__ == "__main__":
    main(JavaKernel)
