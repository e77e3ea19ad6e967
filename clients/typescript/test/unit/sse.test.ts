import assert from "node:assert/strict";
import { test } from "node:test";

import { bytesOf } from "#dist/output.js";
import { EventParser } from "#dist/sse.js";

const stream =
  ': a comment\r\nid: 1\r\ndata: {"a":1}\r\n\r\ndata: two\rdata:lines\rid\r\r' +
  "id: 3\n\nevent: unused\ndata\n\ndata: ä€😀\nid: 4\0\n\ndata: unfinished\n";
const events = [
  { id: "1", data: '{"a":1}' },
  { id: "", data: "two\nlines" },
  { id: "3", data: "" },
  { id: "3", data: "ä€😀" },
];

test("events are the same however the stream is split", () => {
  for (let first = 0; first <= stream.length; first++) {
    for (const second of [first, first + 1, first + 7]) {
      const parser = new EventParser();
      const pieces = [stream.slice(0, first), stream.slice(first, second), stream.slice(second)];
      assert.deepEqual(pieces.flatMap((piece) => [...parser.feed(piece)]), events, `split at ${first}, ${second}`);
    }
  }
});

test("an event that ends is there at once", () => {
  const parser = new EventParser();
  assert.deepEqual([...parser.feed("data: x\r\r")], [{ id: "", data: "x" }]);
  assert.deepEqual([...parser.feed("\ndata: y\n\n")], [{ id: "", data: "y" }]);
});

test("output events are exact bytes", () => {
  const text = (event: object) => Buffer.from(bytesOf({ type: "stdout", timestamp: 0, ...event })).toString("latin1");
  assert.equal(text({ text: "line" }), "line\n");
  assert.equal(text({ text: "\n" }), "\n");
  assert.equal(text({ text: "prompt", partial: true }), "prompt");
  assert.equal(text({ text: "\n", partial: true }), "\n");
  assert.equal(text({ text: "\ufffd", raw: "/w==" }), "\xff\n");
  assert.equal(text({ text: "\ufffd", raw: "/wA=", partial: true }), "\xff\0");
});
