"""What the model can do in the sandbox. A call that fails is a result that says why: the model goes on from there."""

import json
from collections.abc import Callable
from typing import Any

from models import Tool
from sandboxes import Sandbox, SandboxesError

MAX_RESULT = 8000
"""The most characters of a result: what a tool prints is paid for as input of the model."""


def run_command(sandbox: Sandbox, command: str) -> str:
    """Run a shell command in /srv/project, for at most a minute."""
    result = sandbox.commands.run(command, cwd="/srv/project", timeout=60)
    how = "ended by its timeout" if result.exit_code is None else f"exit code {result.exit_code}"
    return f"{how}\n{result.stdout}{result.stderr}"


def read_file(sandbox: Sandbox, path: str) -> str:
    """Read a text file."""
    return sandbox.files.read_text(path, limit=1 << 20)


def write_file(sandbox: Sandbox, path: str, content: str) -> str:
    """Write a text file, which replaces one that is there."""
    sandbox.files.write(path, content)
    return "written"


TOOLS: dict[str, Callable[..., str]] = {tool.__name__: tool for tool in (run_command, read_file, write_file)}


def describe(name: str, tool: Callable[..., str]) -> Tool:
    """What the model is shown of a tool: its name, its doc string, and its arguments, which are texts."""
    arguments = [argument for argument in tool.__annotations__ if argument not in ("sandbox", "return")]
    schema = {"type": "object", "properties": {argument: {"type": "string"} for argument in arguments},
              "required": arguments, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": tool.__doc__, "parameters": schema}}


DESCRIPTIONS: list[Tool] = [describe(name, tool) for name, tool in TOOLS.items()]


def call(sandbox: Sandbox, name: str, arguments: str) -> str:
    """Calls a tool with arguments as the model wrote them, in JSON."""
    try:
        values: Any = json.loads(arguments)
        if name not in TOOLS or not isinstance(values, dict):
            return f"error: there is no tool {name}, or its arguments are no object"
        result = TOOLS[name](sandbox, **values)
    except (SandboxesError, TypeError, ValueError) as error:
        return f"error: {error}"[:MAX_RESULT]
    if len(result) > MAX_RESULT:
        half = MAX_RESULT // 2
        return f"{result[:half]}\n[{len(result) - MAX_RESULT} characters are left out]\n{result[-half:]}"
    return result
