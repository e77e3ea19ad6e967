"""The bash kernel: one persistent bash, so variables, functions, aliases, traps and the working directory stay from cell to cell.

The cell's exit status is its last command's, as in a script. A status other than 0 is an error ExitCode whose evalue is the number.
A shell that ends (exit, set -e, a signal) is replaced by a new one: what it knew is gone, and its background jobs end with it, unless they
have a session of their own (setsid). `exit 0` is a success all the same.
An interrupt ends the cell with KeyboardInterrupt; a cell that does not stop within GRACE seconds loses its shell.
Standard input is empty. stdout and stderr are separate pipes: their order relative to one another is only nearly the real one.
Of a builtin command that is interrupted, bash may write the beginning of its output to stdout, whatever its output was redirected to.
"""

import errno
import os
import select
import shlex
import signal
import subprocess
import threading
import time

from tornado.ioloop import IOLoop

from wrapper import WrapperKernel, main

GRACE = 5.0  # seconds that an interrupted cell gets
REPEAT = 1.0  # seconds after which it is interrupted again
CHUNK = 64 * 1024  # bytes per read: what a pipe holds


# What the shell does at its first prompt and after every interrupt, which abandons whatever it executes and prompts again. It never gets
# as far as reading a command from its standard input, where an interrupt would discard what has been read of it.
#
# A request is a number on a pipe; the cell itself is in a memory file. Reports go through another pipe, one line each:
#   ready N STATUS  it waits for a request; N is the last cell that it has begun, STATUS is $?
#   begun N         N is being executed, and may be interrupted from now on
#   done N STATUS   N has ended by itself
# An interrupt may take away a request, or the beginning of one, which leaves a smaller number. So a number is executed only when it is
# larger than the last, and the kernel repeats a request when it reads ready with a smaller one.
# printf can be interrupted between two characters of its format, and leaves the first in bash's buffer for standard output, that of a
# cell. Not so within an argument, and the newline at its end empties the buffer.
#
# A process that bash has forked for a command and that is interrupted before it has become that command prompts, too. It ends by SIGINT,
# without which bash takes the interrupt for handled.
LOOP = """
__sandbox_status=$?
if [[ $BASHPID -ne $$ ]]; then \\builtin exec bash -c 'kill -INT $$'; fi
while \\builtin :; do
  \\builtin printf %s "ready $__sandbox_cell $__sandbox_status"$'\\n' >&{reports}
  while IFS= \\builtin read -r -u {requests} __sandbox_request; do
    if [[ $__sandbox_request -gt $__sandbox_cell ]]; then
      __sandbox_cell=$__sandbox_request
      \\builtin printf %s "begun $__sandbox_cell"$'\\n' >&{reports}
      \\builtin source {cell} </dev/null {requests}<&- {reports}>&-
      \\builtin printf %s "done $__sandbox_cell $?"$'\\n' >&{reports}
    fi
  done
  __sandbox_status=$?
done
"""

# The value of PROMPT_COMMAND that the shell starts with. The one that stays is read-only, because a shell that is interrupted without it
# reads its standard input, which is empty, and exits. IGNOREEOF makes it prompt again instead, whatever way it came to read there.
START = """
declare +x PROMPT_COMMAND
IGNOREEOF=2147483647
set +o history
unset HISTFILE MAILCHECK
PS1= PS2= __sandbox_cell=0
readonly PROMPT_COMMAND={loop}
\\builtin eval "$PROMPT_COMMAND"
"""


def prepare_child():
    """Runs between fork and exec. The kernel ignores SIGINT between cells, and a shell that inherits that can never be interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def watch_end(pid):
    """Returns a descriptor that poll reports once the child process has ended."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno != errno.ENOSYS:  # gVisor has no such call
            raise
    ended, waits = os.pipe()

    def wait():
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass  # its status has been taken already
        os.close(waits)

    threading.Thread(target=wait, daemon=True).start()
    return ended


class Shell:
    """One bash process.

    It is interactive in name, because only then SIGINT abandons the whole cell and keeps the shell. LOOP says how the two talk. The cell is
    sourced, which turns off all that an interactive shell would print, with a standard input of its own and without the two pipes.
    """

    def __init__(self):
        self.status, reports = os.pipe()
        requests, self.requests = os.pipe()
        self.cell = os.memfd_create("cell")
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        loop = LOOP.format(reports=reports, requests=requests, cell=f"/proc/{os.getpid()}/fd/{self.cell}")
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            env={**os.environ, "PROMPT_COMMAND": START.format(loop=shlex.quote(loop))},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            pass_fds=[reports, requests], start_new_session=True, preexec_fn=prepare_child, bufsize=0,
        )
        os.close(reports)
        os.close(requests)
        # Whatever way this kernel ends, nothing that runs in the shell's process group outlives it.
        self.guard = subprocess.Popen(
            ["bash", "-c", 'read -r; kill -KILL -- "-$0"', str(self.process.pid)],
            stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, bufsize=0,
        )
        self.ended = watch_end(self.process.pid)  # the end of the pipes is no sign: a background job may hold them open
        self.streams = {self.process.stdout.fileno(): "stdout", self.process.stderr.fileno(): "stderr"}
        self.poll = select.poll()
        for fd in (self.status, self.ended, self.wake, *self.streams):
            os.set_blocking(fd, False)
            self.poll.register(fd, select.POLLIN)
        self.number = 0  # of the cell, in requests and reports
        self.report = b""  # the beginning of the next one
        self.stoppable = self.begun = self.interrupted = False
        self.again = 0  # when the cell is interrupted once more
        self.limit = None  # when the shell is killed; None before the cell is interrupted
        # What bash says about the missing terminal is not output of a cell.
        self.run("", lambda stream, data: None)

    def run(self, code, output):
        """Runs a cell; returns its exit status, or None when the shell ended. output(stream, bytes) is called as output comes.

        interrupted says whether to stop the cell; the caller has set it to False before an interrupt could come.
        """
        status = self.execute(code, output)
        if self.limit is not None and not self.has_ended():
            # A signal that came too late for the cell takes effect before the shell begins another: this one, which does nothing.
            self.execute("", output, stoppable=False)
        return status

    def execute(self, code, output, stoppable=True):
        """Runs a cell, which may be preceded by the effect of a late signal for the one before."""
        self.stoppable, self.begun = stoppable, False
        self.limit = None
        self.write_cell(code.encode())
        self.number += 1
        self.request()
        status = None
        while status is None and not self.has_ended():
            for fd, _ in self.poll.poll(self.patience()):
                if fd in self.streams:
                    self.forward(fd, output)  # which stops polling it when a cell has closed it
                elif fd == self.status:
                    status = self.read_reports()
                elif fd == self.wake:
                    os.eventfd_read(fd)
                    self.again = 0
            if status is None and self.begun and self.interrupted:
                self.stop()
        # All that the cell's own processes wrote is in the pipes by now.
        for fd in list(self.streams):
            while self.forward(fd, output):
                pass
        return status

    def request(self):
        """Asks for the cell to be executed, unless a cell of this number has been begun."""
        try:
            os.write(self.requests, b"%d\n" % self.number)
        except BrokenPipeError:
            pass  # the shell has ended; has_ended reports it

    def write_cell(self, code):
        os.ftruncate(self.cell, 0)
        offset = 0
        while offset < len(code):
            offset += os.pwrite(self.cell, code[offset:], offset)

    def forward(self, fd, output):
        """Passes one piece of output on; returns whether there was one."""
        if fd not in self.streams:  # a cell has closed it (exec >&-), and it is at its end for ever
            return False
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

    def read_reports(self):
        """Takes what the shell reports; returns the exit status of the present cell, if it has come."""
        try:
            data = os.read(self.status, 4096)
        except BlockingIOError:
            return None
        if not data:
            self.poll.unregister(self.status)
        *lines, self.report = (self.report + data).split(b"\n")
        for line in lines:
            kind, number, *status = line.split()
            present = int(number) == self.number
            if kind == b"begun" and present:
                self.begun = self.stoppable
            elif kind == b"done" and present or kind == b"ready" and present and self.begun:
                return int(status[0])
            elif kind == b"ready":
                # A signal for the cell before came late. It has taken away the request, perhaps, or its number alone.
                if present:
                    self.number += 1
                self.request()
        return None

    def has_ended(self):
        return self.process.poll() is not None

    def interrupt(self):
        """Makes the present cell stop, as soon as it has begun. It is a signal handler, which another signal may interrupt at any line, so
        it leaves the work to execute."""
        self.interrupted = True
        os.eventfd_write(self.wake, 1)

    def patience(self):
        """How long execute waits for the shell, in milliseconds; None for ever."""
        if self.limit is None:
            return None
        return max(0, min(self.again, self.limit) - time.monotonic()) * 1000

    def stop(self):
        """Interrupts the cell, again and again because bash may take an interrupt for handled that was not, and kills the shell when that
        does not end it."""
        now = time.monotonic()
        if self.limit is None:
            self.again, self.limit = now, now + GRACE
        if now >= self.limit:
            self.kill()
            self.limit = now + GRACE
        elif now >= self.again:
            self.signal_group(signal.SIGINT)
            self.again = now + REPEAT

    def signal_group(self, number):
        """Sends a signal to the shell and to what runs in its process group."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def kill(self):
        """Ends the shell and all that runs in its process group."""
        self.signal_group(signal.SIGKILL)

    def close(self):
        self.kill()
        self.process.wait()
        self.guard.kill()
        self.guard.wait()
        for file in (self.guard.stdin, self.process.stdout, self.process.stderr):
            file.close()
        for fd in (self.status, self.requests, self.ended, self.cell, self.wake):
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
        if self.shell.has_ended():  # it was killed between two cells
            self.new_shell()
        shell = self.shell
        shell.interrupted = False
        with self.on_interrupt(shell.interrupt):
            status = shell.run(code, self.say)
        self.finish_output()
        note = ""
        if status is None:
            status = shell.process.wait()
            status = 128 - status if status < 0 else status
            note = f": the shell has ended with status {status}; its variables and functions are gone, and the next cell has a new one"
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
