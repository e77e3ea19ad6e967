"""Runs a command with live output, and takes a file out.

    python run_command.py IMAGE
"""

import sys

from sandboxes import Client

with Client() as client, client.create(sys.argv[1], timeout=300, memory="256Mi") as sandbox:
    sandbox.files.write("/data/numbers.txt", "".join(f"{number}\n" for number in range(1, 11)))
    result = sandbox.commands.run(
        "while read n; do echo $((n * n)); done <numbers.txt | tee squares.txt",
        cwd="/data", timeout=60, on_stdout=lambda text: print(text, end=""),
    )
    result.check()
    print("the last is", sandbox.files.read_text("/data/squares.txt").split()[-1])
