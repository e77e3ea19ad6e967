import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { type AddressInfo } from "node:net";
import { createServer } from "node:http";
import { test } from "node:test";

import { Attachment, Client, Command, type Stdin, Terminal } from "@sandbox.internal/sdk";

/** The methods of a class. */
function methodsOf(prototype: object): string[] {
  return Object.entries(Object.getOwnPropertyDescriptors(prototype))
    .filter(([name, { value }]) => name !== "constructor" && typeof value === "function")
    .map(([name]) => name);
}

/** Methods for other classes of the client. */
const internal = ["command.follow", "stdin.feed"];

test("the README has a row for every call", async () => {
  const server = createServer((_, response) => response.end(JSON.stringify({ id: "a", status: { state: "Running" } })));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const client = new Client({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` });
  const sandbox = await client.connect("a");
  const command = await sandbox.commands.connect("c");
  const prototypes: Record<string, object> = {
    client: Client.prototype, command: Command.prototype, terminal: Terminal.prototype, attachment: Attachment.prototype,
  };
  const stdin: Stdin = command.stdin;
  const { commands, code, files, terminals, network } = sandbox;
  for (const [path, object] of Object.entries({
    "client.keys": client.keys, "client.snapshots": client.snapshots, sandbox, "sandbox.commands": commands, "sandbox.code": code, "sandbox.code.contexts": code.contexts,
    "sandbox.files": files, "sandbox.terminals": terminals, "sandbox.network": network, stdin,
  })) {
    prototypes[path] = Object.getPrototypeOf(object) as object;
  }
  server.closeAllConnections();
  server.close();
  const there = Object.entries(prototypes).flatMap(([path, prototype]) => methodsOf(prototype).map((name) => `${path}.${name}`));
  const text = await readFile("README.md", "utf8");
  const rows = [...text.matchAll(/^\| `([\w.]+)\(/gm)].map(([, name]) => name);
  assert.deepEqual(rows.sort(), there.filter((name) => !internal.includes(name)).sort());
});
