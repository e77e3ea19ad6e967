"""An agent: a model that works on a task with the tools of a sandbox, until it says that it is done.

    PYTHONPATH=clients/python/src python3 examples/agent/agent.py [IMAGE]

Without further settings a scripted model plays the part. With OPENAI_BASE_URL, such as
http://127.0.0.1:11434/v1, any model behind a chat completions endpoint does: see models.py.
"""

import sys
from pathlib import Path

from models import Message, Model, from_environment
from sandboxes import Client, Sandbox
from tools import DESCRIPTIONS, call

TASK = ("The tests in /srv/project fail. Run them (python3 -m unittest), find the bug in mean.py and fix it. "
        "Leave the tests alone.")
MAX_TURNS = 20


def main() -> None:
    image = sys.argv[1] if len(sys.argv) > 1 else "sandbox/base:dev"
    project = Path(__file__).parent / "project"
    # What a model writes is not trusted: bound what it can use. On a service with an egress sidecar,
    # network_policy=NetworkPolicy(default_action="deny") keeps it off the network, too.
    with Client() as client, client.create(image, timeout=600, cpu="1", memory="512Mi") as sandbox:
        for file in sorted(project.glob("*.py")):
            sandbox.files.write(f"/srv/project/{file.name}", file.read_bytes())
        print("the model says:", ascii(work(sandbox, from_environment(), TASK)))

        # The model's word is not enough: the tests that count are those of this machine.
        for file in sorted(project.glob("test_*.py")):
            sandbox.files.write(f"/srv/project/{file.name}", file.read_bytes())
        tests = sandbox.commands.run("python3 -m unittest", cwd="/srv/project", timeout=60)
        print("the tests", "pass" if tests.exit_code == 0 else "still fail")
        sys.exit(tests.exit_code != 0)


def work(sandbox: Sandbox, model: Model, task: str) -> str:
    """Lets the model call tools until it answers with text alone, and returns that."""
    messages: list[Message] = [
        {"role": "system", "content": "You work in a Linux sandbox with the tools that you are given."},
        {"role": "user", "content": task},
    ]
    for _ in range(MAX_TURNS):
        answer = model.answer(messages, DESCRIPTIONS)
        messages.append(answer.message)
        if not answer.calls:
            return answer.text
        for wanted in answer.calls:
            result = call(sandbox, wanted.name, wanted.arguments)
            print(f"{wanted.name} {ascii(wanted.arguments)[:80]}: {len(result)} characters")
            messages.append({"role": "tool", "tool_call_id": wanted.id, "content": result})
    raise RuntimeError(f"the model has not finished after {MAX_TURNS} turns")


if __name__ == "__main__":
    main()
