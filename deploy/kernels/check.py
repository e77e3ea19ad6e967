"""Proves, inside the image, that every kernel works. It prints a table and exits with 1 when something is missing.

With --warm it only runs one cell per kernel, which fills the caches that the image keeps. Names of kernelspecs as arguments limit it to those.
"""

import base64
import struct
import sys
import threading
import time

from jupyter_client.manager import start_new_kernel

PATIENCE = 120  # seconds per cell: the very first Go cell compiles the standard library
INTERRUPT_AFTER = 1.5  # seconds that the endless cell runs
ATTEMPTS = 5  # deno sends what a cell says now and then only after it has said that it is idle; execd waits for it, this program does not
AFTER_INTERRUPT = 6  # seconds until the kernel must have answered

PLOT = "%matplotlib inline\nimport matplotlib.pyplot as p\np.figure(figsize=(2, 1), dpi=100)\np.plot([1, 2])\np.show()"

# Per kernelspec: the language it must name, and cells with what they must give. A state is set in one cell and read in the next.
KERNELS = {
    "python3": {
        "language": "python", "set": "x = 41", "get": "x + 1",
        "out": "import sys; print('to out'); print('to err', file=sys.stderr)",
        "error": "1/0", "ename": "ZeroDivisionError", "endless": "while True: pass", "interrupt": True,
    },
    "bash": {
        "language": "bash", "set": "x=41; f() { echo $((x+1)); }; cd /usr", "get": "f; [[ $PWD == /usr ]]",
        "out": "echo to out; echo to err >&2",
        "error": "echo about to fail; (exit 3)", "ename": "ExitCode", "endless": "while true; do sleep 0.1; done; echo after", "interrupt": True,
    },
    "java": {
        "language": "java", "set": "int x = 41;", "get": "x + 1",
        "out": 'System.out.println("to out"); System.err.println("to err");',
        "error": 'throw new IllegalStateException("no");', "ename": "java.lang.IllegalStateException",
        "endless": "while (true) { Thread.sleep(10); }", "interrupt": True,
    },
    "javascript": {
        "language": "javascript", "set": "let x = 41", "get": "x + 1",
        "out": "console.log('to out'); console.error('to err')",
        "error": "throw new TypeError('no')", "ename": "TypeError", "endless": "await new Promise(() => setInterval(() => 0, 1e6))", "interrupt": False,
    },
    "typescript": {
        "language": "typescript", "set": "let x: number = 41", "get": "x + 1",
        "out": "console.log('to out'); console.error('to err')",
        "error": "throw new TypeError('no')", "ename": "TypeError", "endless": "await new Promise(() => setInterval(() => 0, 1e6))", "interrupt": False,
    },
    "go": {
        "language": "go", "set": "func f() int { return 42 }", "get": "%%\nfmt.Println(f())",
        "out": '%%\nfmt.Println("to out"); fmt.Fprintln(os.Stderr, "to err")',
        "error": "%%\nnothing()", "ename": "ERROR", "endless": "%%\nfor { time.Sleep(time.Millisecond) }", "interrupt": True,
    },
}


class Cell:
    """Runs a cell and keeps what it said."""

    def __init__(self, client, code, patience=PATIENCE):
        self.stdout = self.stderr = self.result = ""
        self.png = self.error = None
        began = time.monotonic()
        reply = client.execute_interactive(code, store_history=True, allow_stdin=False, stop_on_error=False, timeout=patience, output_hook=self.collect)
        self.seconds = time.monotonic() - began
        self.status = reply["content"]["status"]

    def collect(self, message):
        content = message["content"]
        if message["msg_type"] == "stream":
            setattr(self, content["name"], getattr(self, content["name"]) + content["text"])
        elif message["msg_type"] in ("execute_result", "display_data"):
            self.result = content["data"].get("text/plain", "")
            self.png = content["data"].get("image/png", self.png)
        elif message["msg_type"] == "error":
            self.error = content


def need(condition, what):
    if not condition:
        raise AssertionError(what)


def first_cell(manager, client, cells):
    """The state that the next cell reads."""
    cell = Cell(client, cells["set"])
    need(cell.status == "ok", f"setting a variable: {cell.error}")
    return f"{cell.seconds:.2f} s"


def state(manager, client, cells):
    language = manager.kernel_spec.language
    need(language == cells["language"], f"the kernelspec says {language}")
    Cell(client, cells["get"])  # the second one shows what a cell costs
    for _ in range(ATTEMPTS):
        cell = Cell(client, cells["get"])
        if "42" in cell.result + cell.stdout:
            break
    need("42" in cell.result + cell.stdout, f"no 42 in {cell.result!r} and {cell.stdout!r}")
    need("\x1b" not in cell.result, f"colours in {cell.result!r}")
    return f"{cell.seconds * 1000:.0f} ms"


def streams(manager, client, cells):
    for _ in range(ATTEMPTS):
        cell = Cell(client, cells["out"])
        if cell.stdout and cell.stderr:
            break
    need(cell.stdout == "to out\n", f"stdout is {cell.stdout!r}")
    need(cell.stderr == "to err\n", f"stderr is {cell.stderr!r}")
    return "both"


def error(manager, client, cells):
    cell = Cell(client, cells["error"])
    need(cell.error is not None, f"no error message, the reply says {cell.status}, stderr {cell.stderr!r}")
    need(cell.error["ename"] == cells["ename"], f"ename is {cell.error['ename']!r}")
    need(cell.error["traceback"], "no traceback")
    return cell.error["ename"]


def interrupt(manager, client, cells):
    if not cells["interrupt"]:
        return "cannot"
    at = []

    def send():
        at.append(time.monotonic())
        manager.interrupt_kernel()

    timer = threading.Timer(INTERRUPT_AFTER, send)
    timer.start()
    cell = Cell(client, cells["endless"], INTERRUPT_AFTER + AFTER_INTERRUPT)
    ended = time.monotonic()
    need(at, f"the endless cell ended by itself: {cell.error}")
    need("after" not in cell.stdout, "the interrupted cell went on")
    name = cell.error["ename"] if cell.error else "no error"
    again = Cell(client, cells["get"])
    need("42" in again.result + again.stdout, "the state is gone")
    return f"{name}, {(ended - at[0]) * 1000:.0f} ms"


def plot(manager, client, cells):
    if cells["language"] != "python":
        return "-"
    cell = Cell(client, PLOT)
    need(cell.png, f"no image: {cell.error or cell.stderr}")
    width, height = struct.unpack(">II", base64.b64decode(cell.png)[16:24])
    return f"{width}x{height}"


CHECKS = [first_cell, state, streams, error, interrupt, plot]


def check(name, warm):
    """Returns the row of the table and whether all is well."""
    began = time.monotonic()
    manager, client = start_new_kernel(startup_timeout=PATIENCE, kernel_name=name)
    row, well = [name, f"{time.monotonic() - began:.2f} s"], True
    try:
        for one in CHECKS[:2] if warm else CHECKS:
            try:
                row.append(one(manager, client, KERNELS[name]))
            except Exception as failure:  # a timeout too: the rest of the table is still worth having
                well = False
                row.append("FAILED")
                print(f"{name}: {one.__name__}: {failure or type(failure).__name__}", file=sys.stderr)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return row, well


def main(arguments):
    warm = "--warm" in arguments
    names = [name for name in arguments if name != "--warm"] or list(KERNELS)
    rows, good = [["kernel", "start"] + [one.__name__.replace("_", " ") for one in CHECKS]], True
    for name in names:
        row, well = check(name, warm)
        rows.append(row)
        good = good and well
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
