"""What the bash and the java kernel share: a Jupyter kernel around a process of another language.

ipykernel speaks the protocol. A cell runs on its main thread and blocks its event loop; between cells the loop forwards what the process
still says (a background job), as output of the last cell. That no output is lost is the work of /etc/ipython/ipython_kernel_config.py.
"""

import codecs
import contextlib
import signal

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel


class WrapperKernel(Kernel):
    """A kernel whose cells another process runs."""

    implementation = "sandbox"
    implementation_version = "1"

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.silent = False
        self.decoders = {}
        self.stop_cell = None  # what SIGINT calls
        self.interrupted_early = False

    def say(self, stream, data, final=False):
        """Sends bytes as output on the stream "stdout" or "stderr". A character may be split over two calls; final ends that."""
        decoder = self.decoders.get(stream)
        if decoder is None:
            decoder = self.decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data, final)
        if text and not self.silent:
            self.send_response(self.iopub_socket, "stream", {"name": stream, "text": text})

    def finish_output(self):
        """Sends what is left of a character that never became whole."""
        for stream in list(self.decoders):
            self.say(stream, b"", final=True)

    def succeeded(self):
        """The reply to a cell that went well."""
        return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}

    def failed(self, ename, evalue, traceback):
        """Publishes that the cell failed, and returns the reply with the same error."""
        error = {"ename": ename, "evalue": evalue, "traceback": traceback}
        if not self.silent:
            self.send_response(self.iopub_socket, "error", error)
        return {"status": "error", "execution_count": self.execution_count, **error}

    def pre_handler_hook(self):
        """Called by ipykernel before it handles a request. It would let SIGINT raise KeyboardInterrupt at any line of its own, too, and a
        cell that is interrupted there never gets its reply."""
        self.interrupted_early = False
        self.saved_sigint_handler = signal.signal(signal.SIGINT, self.take_interrupt)

    def take_interrupt(self, number, frame):
        if self.stop_cell:
            self.stop_cell()
        else:
            self.interrupted_early = True

    @contextlib.contextmanager
    def on_interrupt(self, interrupt):
        """While the block runs, SIGINT calls interrupt; at its begin, too, when SIGINT came since ipykernel got the request."""
        self.stop_cell = interrupt
        try:
            if self.interrupted_early:
                interrupt()
            yield
        finally:
            self.stop_cell = None


def main(kernel_class):
    """Runs the kernel with the connection file that the command line names."""
    IPKernelApp.launch_instance(kernel_class=kernel_class)
