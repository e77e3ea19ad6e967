"""Executes cells in one context, and saves the picture that the last one draws.

    python cells.py IMAGE-WITH-JUPYTER-KERNELS
"""

import sys
from pathlib import Path

from sandboxes import Client

with Client() as client, client.create(sys.argv[1], timeout=600) as sandbox:
    context = sandbox.code.create_context("python")
    sandbox.code.run("heights = [n * n for n in range(10)]", context=context)
    print("the sum is", sandbox.code.run("sum(heights)", context=context).text)

    drawn = sandbox.code.run(
        "import matplotlib.pyplot as plot\nplot.bar(range(10), heights)\nplot.show()", context=context)
    if drawn.error:
        sys.exit(str(drawn.error))
    for number, result in enumerate(drawn.results):
        if result.png:
            Path(f"picture-{number}.png").write_bytes(result.png)
            print(f"picture-{number}.png has {len(result.png)} bytes")
