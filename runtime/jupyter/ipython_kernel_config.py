"""Settings of ipykernel that make it lose nothing and delay nothing.

execd passes this file (--config) to every IPython kernel that it starts. A Jupyter Server's kernels read it from /etc/ipython.
It changes methods of ipykernel where ipykernel has no setting, and only those that it finds: it is run by every version there is, and
twice by a kernel that finds it in both places.
"""

import codecs
import fcntl
import json
import os
import select
import signal
import struct
import sys
import termios
import threading
import types

import zmq
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from ipykernel.iostream import OutStream
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel
from jupyter_client.session import Session

c = get_config()  # noqa: F821  IPython provides it

# Kernels that share one history file lock one another out of it, and the error shows in the cell.
c.HistoryManager.hist_file = ":memory:"

FLUSH_INTERVAL = 0.005  # seconds that printed text waits for more; ipykernel's own 0.2 s is what a person would see as a delay
DEFAULT_LIMIT = 1000  # of messages, ZeroMQ's own


def pending(fd):
    """Returns how many bytes wait in a pipe; none when it is closed."""
    try:
        return struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0]
    except OSError:
        return 0


def lift_output_limit():
    """A PUB socket throws messages away that a slow reader leaves waiting. This one keeps them."""
    init_iopub = IPKernelApp.init_iopub

    def init_iopub_without_limit(self, context):
        # Sockets get the context's options when they are made; the limit of the one behind this call is set at its bind.
        context.setsockopt(zmq.SNDHWM, 0)
        try:
            return init_iopub(self, context)
        finally:
            # The sockets that wake the output's thread keep theirs: that holds back a cell that is faster than the thread.
            context.setsockopt(zmq.SNDHWM, DEFAULT_LIMIT)

    IPKernelApp.init_iopub = init_iopub_without_limit


def keep_what_children_print():
    """What a child process or a C library prints goes through a pipe, which a thread of ipykernel reads. That thread comes too late for
    the end of a cell now and then, and ends for good at the first character whose bytes it gets in two parts.

    Here the one who writes or flushes takes what is in the pipe first, so all of it is in order, and in its cell.
    """
    write, flush, init = OutStream.write, OutStream.flush, OutStream.__init__

    def __init__(self, *args, **kwargs):
        self._pipe_lock, self._pipe_busy = threading.RLock(), False
        self._pipe_decoder = codecs.getincrementaldecoder("utf-8")("replace")
        init(self, *args, **kwargs)

    def drain(self):
        """Takes what is in the pipe at this moment, and waits for another thread that is about to."""
        if not hasattr(self, "_fid") or not self._is_master_process():
            return
        if not pending(self._fid) and not self._pipe_busy:  # in this order: busy is set before the pipe is read
            return
        with self._pipe_lock:
            size = pending(self._fid)
            if not size:
                return
            self._pipe_busy = True
            try:
                data = os.read(self._fid, size)
                write(self, self._pipe_decoder.decode(data))
                os.write(self._original_stdstream_copy, data)
            except OSError:
                pass  # the kernel's own log has no reader
            finally:
                self._pipe_busy = False

    def watch(self):
        poll = select.poll()
        poll.register(self._fid, select.POLLIN)
        while self._should_watch:
            if not any(events & select.POLLIN for _, events in poll.poll()):
                return  # the other end is closed
            drain(self)

    def draining_write(self, string):
        drain(self)
        return write(self, string)

    def draining_flush(self):
        drain(self)
        return flush(self)

    OutStream.__init__, OutStream.write, OutStream.flush, OutStream._watch_pipe_fd = __init__, draining_write, draining_flush, watch


def keep_what_is_no_text():
    """A lone surrogate is no character, and cannot be encoded as UTF-8: the kernel would lose the message that has it, with all the lines
    around it, and show an error of its own. JSON can write it with an escape."""
    init = Session.__init__

    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        pack = self.pack

        def pack_all(content):
            try:
                return pack(content)
            except UnicodeEncodeError:
                return json.dumps(content, default=str).encode()

        self.pack = pack_all

    Session.__init__ = __init__


def keep_outputs_open():
    """ipykernel flushes both outputs after every cell, and never replies when that fails. A cell that closes one flushes it."""

    def close(self):
        self.flush()

    OutStream.close = close


def with_lines(traceback):
    """Since Python 3.11 the first instruction of a cell is in line 0, and others are in none: -1, later None. IPython cannot format the
    traceback of an interrupt that comes there."""
    before, entry = None, traceback
    while entry is not None:
        if (entry.tb_lineno or 0) < 1:
            entry = types.TracebackType(entry.tb_next, entry.tb_frame, entry.tb_lasti, max(entry.tb_frame.f_code.co_firstlineno, 1))
            if before is None:
                traceback = entry
            else:
                before.tb_next = entry
        before, entry = entry, entry.tb_next
    return traceback


def interrupt_only_cells():
    """An interrupt that comes before the first line of a cell, or after its last, raises KeyboardInterrupt in ipykernel itself, which then
    never replies to the request. Here the former raises it at the first line, and the latter does nothing, nor does one that comes while the
    traceback of another is made.
    """
    cell = types.SimpleNamespace(interruptible=False, interrupted=False, hooked=False)
    run_code, run_cell, showtraceback = InteractiveShell.run_code, InteractiveShell.run_cell, InteractiveShell.showtraceback

    def interrupt(number, frame):
        if cell.interruptible:
            signal.default_int_handler(number, frame)
        cell.interrupted = True

    def pre_handler_hook(self):
        # First the handler: in another thread than the main one, which runs no cell, this raises ValueError.
        self.saved_sigint_handler = signal.signal(signal.SIGINT, interrupt)
        cell.interruptible = cell.interrupted = False

    async def interruptible_run_code(self, *args, **kwargs):
        __tracebackhide__ = "__ipython_bottom__"  # as in run_code: the traceback of a cell begins below
        try:
            cell.interruptible = True
            if cell.interrupted:
                cell.interrupted = False
                signal.raise_signal(signal.SIGINT)
            return await run_code(self, *args, **kwargs)
        finally:
            cell.interruptible = cell.hooked

    def interruptible_run_cell(self, *args, **kwargs):
        # The hooks that follow a cell, which draw its plots, may be interrupted, too. A cell may run another.
        outer, cell.hooked = cell.hooked, True
        result = None
        try:
            try:
                result = run_cell(self, *args, **kwargs)
            finally:
                cell.interruptible = cell.hooked = outer
        except KeyboardInterrupt as error:  # between two hooks, or on the way out
            cell.interruptible = cell.hooked = outer
            if result is None:
                result = ExecutionResult(None)
                result.error_in_exec = error
                self.showtraceback()
        return result

    def whole_showtraceback(self, *args, **kwargs):
        before, cell.interruptible = cell.interruptible, False
        try:
            error, seen = sys.exc_info()[1], set()
            while error is not None and id(error) not in seen:  # and what it was raised from, which is shown with it
                seen.add(id(error))
                BaseException.with_traceback(error, with_lines(error.__traceback__))  # its attributes may be read-only, as a frozen data class's
                error = error.__context__ if error.__cause__ is None else error.__cause__
            return showtraceback(self, *args, **kwargs)
        finally:
            cell.interruptible = before

    Kernel.pre_handler_hook = pre_handler_hook
    InteractiveShell.run_code, InteractiveShell.run_cell = interruptible_run_code, interruptible_run_cell
    InteractiveShell.showtraceback = whole_showtraceback


if not hasattr(OutStream, "sandbox"):
    OutStream.sandbox = True
    OutStream.flush_interval = FLUSH_INTERVAL
    lift_output_limit()
    interrupt_only_cells()
    keep_what_is_no_text()
    keep_outputs_open()
    if hasattr(OutStream, "_watch_pipe_fd"):
        keep_what_children_print()
