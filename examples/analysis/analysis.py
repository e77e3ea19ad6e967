"""A data analysis: a table goes in, numbers and plots come out. The code runs in a sandbox.

    PYTHONPATH=clients/python/src python3 examples/analysis/analysis.py [CSV [IMAGE]]

The image needs a Python kernel, pandas and matplotlib; `scripts/images.sh code-interpreter` makes one.
"""

import sys
from pathlib import Path

from sandboxes import Client

# One context runs all cells, so each sees the variables of those before it. In an agent the model writes them, one
# after the other, with the results in view.
CELLS = {
    "how much each region sold": """
import pandas
sales = pandas.read_csv("/data/sales.csv", parse_dates=["month"])
sales.groupby("region")["revenue"].agg(["sum", "mean"]).round(1)
""",
    "the best month": """
months = sales.groupby("month")["revenue"].sum()
f"{months.idxmax():%B %Y} with {months.max()}"
""",
    "a plot of the months": """
import matplotlib.pyplot as plot
sales.pivot(index="month", columns="region", values="revenue").plot(title="Revenue by month")
plot.show()
""",
    "a plot of the regions": """
sales.boxplot(column="revenue", by="region")
plot.show()
""",
}


def main(table: Path, image: str) -> None:
    plots = 0
    with Client() as client, client.create(image, timeout=600, memory="1Gi") as sandbox:
        with table.open("rb") as content:
            sandbox.files.write("/data/sales.csv", content)
        context = sandbox.code.create_context("python")
        for title, code in CELLS.items():
            print(f"\n{title}:")
            execution = sandbox.code.run(code, context=context)
            if execution.error:
                sys.exit(str(execution.error))
            for result in execution.results:
                if result.png:
                    plots += 1
                    Path(f"plot-{plots}.png").write_bytes(result.png)
                    print(f"plot-{plots}.png has {len(result.png)} bytes")
                elif result.text:
                    print(result.text)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(table=Path(arguments[0]) if arguments else Path(__file__).with_name("sales.csv"),
         image=arguments[1] if len(arguments) > 1 else "sandbox/code-interpreter:dev")
