import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { type Attachment, type Sandbox, Client, isKind, type WebSocketConstructor } from "@sandbox.internal/sdk";
// @ts-expect-error The package has no types; ours are for what is used of it.
import { WebSocket } from "ws";

import { CuttingProxy, busybox, eventually, newClient } from "../support.js";

const webSocket = WebSocket as WebSocketConstructor;
let sandbox: Sandbox;
before(async () => (sandbox = await newClient({ webSocket }).create(busybox)));
after(() => sandbox.delete());

/** A screen: what is shown since the last replay. */
class Screen {
  text = "";
  replays = 0;
  readonly #events;

  constructor(attachment: Attachment) {
    this.#events = attachment[Symbol.asyncIterator]();
  }

  /** Shows more until the screen has a text, after so many replays, or until the end, whose exit code it returns. */
  async until(text?: string, replays = 1, taken?: (bytes: number) => void): Promise<number | null | undefined> {
    while (text === undefined || this.replays < replays || !this.text.includes(text)) {
      const { value: event, done } = await this.#events.next();
      if (done === true) return undefined;
      if (event.type === "exit") return event.exitCode;
      if (event.type === "replay") {
        this.text = "";
        this.replays++;
      } else {
        taken?.(event.bytes.length);
        this.text = (this.text + Buffer.from(event.bytes).toString()).slice(-20_000);
      }
    }
    return undefined;
  }
}

test("input, size, detach, a cut, and the end", async () => {
  await using proxy = await CuttingProxy.start();
  const cut = await newClient({ webSocket, url: proxy.url }).connect(sandbox.id);
  const { id } = await sandbox.terminals.create({ command: "sh", rows: 20, cols: 90, envs: { PS1: "ready> " } });
  const terminal = await cut.terminals.connect(id);
  assert.deepEqual((await cut.terminals.list()).map((one) => one.id), [id]);

  const first = await terminal.attach();
  const screen = new Screen(first);
  await screen.until("ready> ");
  await first.write("stty size; echo o''ne\n");
  await screen.until("one\r\n");
  assert.match(screen.text, /20 90\r\n/);
  await first.resize(30, 100);
  await first.write("stty size; echo t''wo\n");
  await screen.until("two\r\n");
  assert.match(screen.text, /30 100\r\n/);

  proxy.cutAll(); // the connection is made again, and shows the screen again
  await screen.until("two\r\n", 2);
  await first.write("echo th''ree\n");
  await screen.until("three\r\n");
  assert.equal(screen.replays, 2);
  assert.match(screen.text, /one\r\n[^]*two\r\n[^]*three\r\n/);

  await first.write("(while [ ! -e /tmp/detached ]; do sleep 0.05; done; echo fo''ur) &\n");
  first.detach();
  assert.equal(await screen.until(), undefined);
  await assert.rejects(first.write("x"), (error) => isKind(error, "connection"));
  await sandbox.files.write("/tmp/detached", "");
  await using second = await (await sandbox.terminals.connect(id)).attach();
  const late = new Screen(second);
  await late.until("four\r\n"); // what was printed while no viewer was attached
  assert.match(late.text, /one\r\n[^]*two\r\n[^]*three\r\n[^]*four\r\n/);
  await second.write("exit 5\n");
  assert.equal(await late.until(), 5);
  assert.equal((await terminal.status()).exit_code, 5);

  const ended = new Screen(await terminal.attach()); // the past of what has ended
  assert.equal(await ended.until(), 5);
});

test("a terminal is hung up, one that is missing is an error, and abort ends the loop", async () => {
  const terminal = await sandbox.terminals.create({ command: "cat" });
  const screen = new Screen(await terminal.attach());
  await terminal.delete();
  assert.equal(await screen.until(), 129);
  await assert.rejects(sandbox.terminals.connect("none"), (error) => isKind(error, "not_found"));

  const other = await sandbox.terminals.create({ command: "cat" });
  const abort = new AbortController();
  const attached = new Screen(await other.attach({ signal: abort.signal }));
  const over = attached.until();
  abort.abort(new Error("enough"));
  await assert.rejects(over, /enough/);
  await other.delete();
});

test("what the viewer does not read is not kept: the viewer gets a replay instead", async () => {
  const line = "read x; tr '\\0' x </dev/zero | head -c 80000000; echo e''nd; touch /tmp/flooded; read y; exit 6";
  const terminal = await sandbox.terminals.create({ command: "sh", args: ["-c", line] });
  await using attachment = await terminal.attach();
  await attachment.write("\n");
  await eventually("the flood is over", () => sandbox.files.exists("/tmp/flooded"));
  const screen = new Screen(attachment);
  let bytes = 0;
  await screen.until("end\r\n", 1, (length) => (bytes += length));
  // What waits in the client, and what was on its way to it: the kernel keeps up to 10 MB of each of two connections, the service's and execd's.
  assert.ok(bytes < 40_000_000, `${bytes} bytes were kept`);
  await attachment.write("\n");
  assert.equal(await screen.until(), 6);
});

test("a version of Node.js without a WebSocket has that of undici", async () => {
  assert.ok(!("WebSocket" in globalThis), "run this with Node.js 20, or with --no-experimental-websocket");
  const same = await new Client().connect(sandbox.id);
  const terminal = await same.terminals.create({ command: "cat" });
  await using attachment = await terminal.attach();
  await attachment.write("there\n");
  await new Screen(attachment).until("there\r\n");
  await terminal.delete();
});
