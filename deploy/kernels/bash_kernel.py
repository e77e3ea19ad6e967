"""The bash kernel: one persistent bash, so variables, functions, aliases, traps and the working directory stay from cell to cell.

The cell's exit status is its last command's, as in a script. A status other than 0 is an error ExitCode whose evalue is the number.
A shell that ends (exit, set -e, a signal) is replaced by a new one: what it knew is gone, and its background jobs end with it, unless they
have a session of their own (setsid). `exit 0` is a success all the same.
An interrupt ends the cell with KeyboardInterrupt; a cell that does not stop within GRACE seconds loses its shell.
Standard input is empty. stdout and stderr are separate pipes: their order relative to one another is only nearly the real one.
"""

import os
import select
import signal
import subprocess
import threading

from tornado.ioloop import IOLoop

from wrapper import WrapperKernel, main

GRACE = 2.0  # seconds that an interrupted cell gets
CHUNK = 64 * 1024  # bytes per read: what a pipe holds


def prepare_child():
    """Runs between fork and exec. The kernel ignores SIGINT between cells, and a shell that inherits that can never be interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Shell:
    """One bash process.

    It is interactive in name, because only then SIGINT abandons the whole cell and keeps the shell. Its standard input carries our
    commands; the cell itself is sourced from a memory file, which turns off all that an interactive shell would print, with a standard
    input of its own and without the pipe on which the exit status comes back.
    """

    def __init__(self):
        status, self.status_end = os.pipe()
        self.status = status
        self.cell = os.memfd_create("cell")
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            pass_fds=[self.status_end], start_new_session=True, preexec_fn=prepare_child, bufsize=0,
        )
        os.close(self.status_end)
        # Whatever way this kernel ends, nothing that runs in the shell's process group outlives it.
        self.guard = subprocess.Popen(
            ["bash", "-c", 'read -r; kill -KILL -- "-$0"', str(self.process.pid)],
            stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, bufsize=0,
        )
        self.ended = os.pidfd_open(self.process.pid)  # the pipes tell nothing: a background job may hold them open
        self.streams = {self.process.stdout.fileno(): "stdout", self.process.stderr.fileno(): "stderr"}
        self.poll = select.poll()
        for fd in (self.status, self.ended, *self.streams):
            os.set_blocking(fd, False)
            self.poll.register(fd, select.POLLIN)
        self.interrupted = False
        self.number = 0
        self.told = b""
        self.killer = None
        # What bash says about the missing terminal, and its first prompt, are nobody's output.
        self.run("set +o history; PS1= PS2=; unset HISTFILE MAILCHECK", lambda stream, data: None)

    def run(self, code, output):
        """Runs a cell; returns its exit status, or None when the shell ended. output(stream, bytes) is called as output comes."""
        self.number += 1
        self.interrupted = False
        self.write_cell(code.encode())
        status = None
        try:
            path = f"/proc/{os.getpid()}/fd/{self.cell}"
            self.command(f"\\builtin source {path} </dev/null {self.status_end}>&-")
            self.command(self.report("$?"))
            while status is None and not self.has_ended():
                for fd, _ in self.poll.poll():
                    if fd in self.streams:
                        self.forward(fd, output)
                    elif fd == self.status:
                        status = self.read_status()
        finally:
            if self.killer:
                self.killer.cancel()
                self.killer = None
        # All that the cell's own processes wrote is in the pipes by now.
        for fd in list(self.streams):
            while self.forward(fd, output):
                pass
        return status

    def report(self, status):
        return f"\\builtin printf '{self.number} %s\\n' {status} >&{self.status_end}"

    def command(self, line):
        try:
            os.write(self.process.stdin.fileno(), line.encode() + b"\n")
        except BrokenPipeError:
            pass  # the shell has ended; has_ended tells

    def write_cell(self, code):
        os.ftruncate(self.cell, 0)
        offset = 0
        while offset < len(code):
            offset += os.pwrite(self.cell, code[offset:], offset)

    def forward(self, fd, output):
        """Passes one piece of output on; returns whether there was one."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        if not data:  # the shell and its jobs have closed it
            self.poll.unregister(fd)
            del self.streams[fd]
            return False
        output(fd_stream(fd, self.process), data)
        return True

    def read_status(self):
        """Returns the exit status of the present cell, if it has come."""
        try:
            data = os.read(self.status, 4096)
        except BlockingIOError:
            return None
        if not data:
            self.poll.unregister(self.status)
        *lines, self.told = (self.told + data).split(b"\n")
        for line in lines:
            number, status = line.split()
            if int(number) == self.number:
                return int(status)
        return None

    def has_ended(self):
        return self.process.poll() is not None

    def interrupt(self):
        """Makes the present cell stop. Called by the signal handler."""
        self.interrupted = True
        if self.killer or self.has_ended():
            return
        self.killer = threading.Timer(GRACE, self.kill)
        self.killer.daemon = True
        self.killer.start()
        os.killpg(self.process.pid, signal.SIGINT)
        # Had the cell just ended, then the signal has thrown away our own next line: send it again.
        self.command(self.report("130"))

    def kill(self):
        """Ends the shell and all that runs in its process group."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self):
        self.kill()
        self.process.wait()
        self.guard.kill()
        self.guard.wait()
        for file in (self.guard.stdin, self.process.stdin, self.process.stdout, self.process.stderr):
            file.close()
        for fd in (self.status, self.ended, self.cell):
            os.close(fd)


def fd_stream(fd, process):
    return "stdout" if fd == process.stdout.fileno() else "stderr"


class BashKernel(WrapperKernel):
    banner = "bash"
    language_info = {"name": "bash", "mimetype": "text/x-sh", "file_extension": ".sh"}

    def start(self):
        super().start()
        self.shell = None
        self.new_shell()

    def new_shell(self):
        loop = IOLoop.current()
        if self.shell:
            for fd in self.watched:
                loop.remove_handler(fd)
            self.shell.close()
        self.shell = Shell()
        self.watched = set(self.shell.streams)
        for fd in self.watched:
            loop.add_handler(fd, self.between_cells, IOLoop.READ)

    def between_cells(self, fd, events):
        """Output of a background job."""
        self.silent = False
        if not self.shell.forward(fd, self.say) and fd not in self.shell.streams and fd in self.watched:
            IOLoop.current().remove_handler(fd)
            self.watched.remove(fd)

    def do_execute(self, code, silent, store_history=True, user_expressions=None, allow_stdin=False):
        self.silent = silent
        if self.shell.has_ended():  # somebody killed it between two cells
            self.new_shell()
        shell = self.shell
        with self.on_interrupt(shell.interrupt):
            status = shell.run(code, self.say)
        self.finish_output()
        note = ""
        if status is None:
            status = shell.process.wait()
            status = 128 - status if status < 0 else status
            note = ": the shell has ended, with its variables and functions; the next cell has a new one"
            self.new_shell()
        if shell.interrupted and status != 0:
            return self.failed("KeyboardInterrupt", "", ["interrupted" + note])
        if status != 0:
            return self.failed("ExitCode", str(status), [f"exit status {status}{note}"])
        return self.succeeded()

    def do_shutdown(self, restart):
        self.shell.kill()
        return {"status": "ok", "restart": restart}


if __name__ == "__main__":
    main(BashKernel)
