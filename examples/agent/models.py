"""Models that can drive the agent. A model is anything with the method `answer`; messages are those of chat completions."""

import json
import os
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Message = dict[str, Any]
Tool = dict[str, Any]

MAX_ANSWER = 10 << 20


@dataclass(frozen=True)
class ToolCall:
    """A tool that the model wants to have called, with its arguments in JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    """A message of the model: text, tools to call, or both."""

    message: Message

    @property
    def text(self) -> str:
        return self.message.get("content") or ""

    @property
    def calls(self) -> list[ToolCall]:
        calls: list[dict[str, Any]] = self.message.get("tool_calls") or []
        return [ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]


class Model(Protocol):
    """Answers a conversation."""

    def answer(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Answer: ...


def from_environment() -> Model:
    """The model at $OPENAI_BASE_URL, called $OPENAI_MODEL, with the key $OPENAI_API_KEY if it needs one; else the script."""
    url = os.environ.get("OPENAI_BASE_URL")
    if not url:
        return Scripted()
    return ChatCompletions(url, os.environ["OPENAI_MODEL"], os.environ.get("OPENAI_API_KEY"))


class ChatCompletions:
    """A model behind an endpoint that is compatible with OpenAI's chat completions, as most servers of models are."""

    def __init__(self, url: str, model: str, key: str | None) -> None:
        self._url = url.rstrip("/") + "/chat/completions"
        self._model = model
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def answer(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Answer:
        body = json.dumps({"model": self._model, "messages": messages, "tools": tools})
        request = urllib.request.Request(self._url, body.encode(), self._headers)
        with urllib.request.urlopen(request, timeout=300) as response:
            return Answer(json.loads(response.read(MAX_ANSWER))["choices"][0]["message"])


class Scripted:
    """Stands in for a model, for this example's task alone. It needs the results of the tools, as a model does."""

    def answer(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Answer:
        results = [message["content"] for message in messages if message["role"] == "tool"]
        match len(results):
            case 0:
                return self._call("run_command", command="python3 -m unittest")
            case 1:
                return self._call("read_file", path="/srv/project/mean.py")
            case 2:
                fixed = results[1].replace("(len(numbers) - 1)", "len(numbers)")
                return self._call("write_file", path="/srv/project/mean.py", content=fixed)
            case 3:
                return self._call("run_command", command="python3 -m unittest")
            case _:
                done = results[0].startswith("exit code 1") and results[-1].startswith("exit code 0")
                return Answer({"role": "assistant", "content": "the mean was divided by one too few" if done else "I give up"})

    def _call(self, tool: str, **arguments: str) -> Answer:
        function = {"name": tool, "arguments": json.dumps(arguments)}
        return Answer({"role": "assistant", "content": None,
                       "tool_calls": [{"id": "call-1", "type": "function", "function": function}]})
