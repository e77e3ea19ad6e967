import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { after, before, test } from "node:test";

import { type CommandEvent, type FileEvent, type Sandbox, isKind } from "@sandbox.internal/sdk";

import { CuttingProxy, busybox, eventually, newClient } from "../support.js";

let sandbox: Sandbox;
before(async () => (sandbox = await newClient().create(busybox, { env: { GREETING: "hello" } })));
after(() => sandbox.delete());

test("a command's output, exit code and options", async () => {
  const pieces: string[] = [];
  const result = await sandbox.commands.run("echo $GREETING $WHO; pwd; id -u; printf 'no end' >&2; exit 7", {
    cwd: "/tmp",
    envs: { WHO: "world" },
    uid: 1000,
    onStdout: (text) => pieces.push(text),
    onStderr: (text) => pieces.push(text),
  });
  assert.equal(result.stdout, "hello world\n/tmp\n1000\n");
  assert.equal(result.stderr, "no end");
  assert.equal(pieces.toSorted().join(""), "/tmp\n1000\nhello world\nno end");
  assert.deepEqual([result.exitCode, result.error?.name, result.truncated], [7, "CommandExecError", false]);

  const timedOut = await sandbox.commands.run("sleep 60", { timeout: 50 });
  assert.deepEqual([timedOut.exitCode, timedOut.error?.name], [null, "CommandTimeoutError"]);
  const long = await sandbox.commands.run("yes | head -c 100000", { maxOutput: 1001 });
  assert.deepEqual([long.stdout.length, long.truncated, long.exitCode], [1001, true, 0]);
  await assert.rejects(sandbox.commands.run("true", { cwd: "/none" }), (error) => isKind(error, "invalid"));
});

test("a command that memory ran out for", async () => {
  await using small = await newClient().create(busybox, { resourceLimits: { memory: "64Mi" } });
  const result = await small.commands.run(`awk 'BEGIN { x = "x"; while (1) x = x x }'`);
  assert.deepEqual([result.exitCode, result.reason], [137, "OOM_KILLED"]);
  assert.deepEqual((await small.commands.list()).map(({ reason }) => reason), ["OOM_KILLED"]);
  assert.equal((await small.commands.run("kill -9 $$")).reason, undefined);
});

test("an aborted run interrupts its command", async () => {
  const abort = new AbortController();
  const run = sandbox.commands.run("echo $$; exec sleep 1000", {
    signal: abort.signal,
    onStdout: () => abort.abort(new Error("enough")),
  });
  await assert.rejects(run, /enough/);
  await eventually("the command has ended", async () => {
    return (await sandbox.commands.run("ps | grep -c '[s]leep 1000'")).stdout === "0\n";
  });
});

test("a background command: events, status, logs, connect, interrupt", async () => {
  const command = await sandbox.commands.start("echo one; while [ ! -e /tmp/go-on ]; do sleep 0.05; done; echo two >&2; exit 3");
  const events: CommandEvent[] = [];
  for await (const event of command) {
    events.push(event);
    if (event.type !== "stdout") continue;
    assert.equal((await command.status()).running, true); // it arrives while the command runs
    await sandbox.files.write("/tmp/go-on", "");
  }
  assert.deepEqual(events.map((event) => (event.type === "end" ? event.exitCode : event.text)), ["one\n", "two\n", 3]);
  const again = await sandbox.commands.connect(command.id);
  const result = await again.wait();
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ["one\n", "two\n", 3]);
  const all = await again.logs();
  assert.deepEqual(all, { text: "one\ntwo\n", cursor: 1, dropped: 0 });
  assert.deepEqual(await again.logs({ cursor: 0 }), { text: "two\n", cursor: 1, dropped: 0 });
  await assert.rejects(sandbox.commands.connect("none"), (error) => isKind(error, "not_found"));

  const endless = await sandbox.commands.start("sleep 1000", { cwd: "/tmp" });
  const [running] = await sandbox.commands.list({ running: true });
  assert.deepEqual([running?.id, running?.content, running?.cwd], [endless.id, "sleep 1000", "/tmp"]);
  const ended = await sandbox.commands.list({ running: false });
  assert.equal(ended.find(({ id }) => id === command.id)?.exit_code, 3);
  await endless.interrupt();
  assert.equal((await endless.wait()).exitCode, 143);
  assert.equal((await endless.status()).running, false);
});

test("standard input: whole, in pieces, from a stream, and of a command that reads no further", async () => {
  const { commands } = sandbox;
  const data = randomBytes(1_000_000);
  const digest = `${createHash("sha256").update(data).digest("hex")}  -\n`;
  assert.equal((await commands.run("sha256sum", { stdin: data })).stdout, digest);
  const pieces = async function* () {
    for (let at = 0; at < data.length; at += 70_000) yield data.subarray(at, at + 70_000);
  };
  assert.equal((await commands.run("sha256sum", { stdin: pieces() })).stdout, digest);
  assert.equal((await commands.run("cat", { stdin: "ä€😀" })).stdout, "ä€😀");
  assert.equal((await commands.run("cat")).stdout, "");

  const command = await commands.start("while read line; do echo \"<$line>\"; done", { stdin: true });
  const events = command[Symbol.asyncIterator]();
  for (const line of ["one", "two"]) {
    await command.stdin.write(`${line}\n`);
    const { value } = await events.next();
    assert.deepEqual(value?.type === "stdout" && value.text, `<${line}>\n`);
  }
  const again = await commands.connect(command.id); // goes on where the other stopped
  await again.stdin.end();
  await again.stdin.end();
  assert.equal((await command.wait()).stdout, "<one>\n<two>\n");
  await assert.rejects(again.stdin.write("more"), (error) => isKind(error, "closed"));

  const endless = async function* () {
    for (;;) yield new Uint8Array(100_000);
  };
  assert.equal((await commands.run("head -c 3 | wc -c", { stdin: endless() })).stdout.trim(), "3");
  const broken = async function* (): AsyncGenerator<Uint8Array> {
    yield new Uint8Array(3);
    await Promise.resolve();
    throw new Error("the source is broken");
  };
  await assert.rejects(commands.run("cat; sleep 1000", { stdin: broken() }), /the source is broken/);
});

test("files", async () => {
  const { files } = sandbox;
  const root = "/tmp/typescript";
  const text = `${root}/a b/ä.txt`;
  await files.write(text, "one two two", { mode: "640", owner: "1000" });
  const info = await files.info(text);
  assert.deepEqual([info.size, info.mode, info.owner, info.type], [11, 640, "1000", "file"]);
  await files.replace({ [text]: { old: "two", new: "three" } });
  assert.equal(await files.readText(text), "one three three");
  assert.equal(await files.readText(text, { start: 4, end: 9 }), "three");
  assert.equal(await files.readText(text, { start: 10 }), "three");

  const bytes = randomBytes(300_000);
  const stream = new Blob([bytes]).stream();
  async function* generated() {
    yield bytes.subarray(0, 100_000);
    yield bytes.subarray(100_000);
  }
  await files.writeAll([
    { path: `${root}/bytes`, content: bytes },
    { path: `${root}/stream`, content: stream, mode: "600" },
    { path: `${root}/generated`, content: generated() },
    { path: `${root}/empty`, content: "" },
  ]);
  for (const name of ["bytes", "stream", "generated"]) assert.deepEqual(Buffer.from(await files.read(`${root}/${name}`)), bytes);
  assert.equal((await files.read(`${root}/empty`)).length, 0);
  const hash = createHash("sha256");
  for await (const piece of files.readStream(`${root}/stream`, { start: 5 })) hash.update(piece);
  assert.equal(hash.digest("hex"), createHash("sha256").update(bytes.subarray(5)).digest("hex"));
  await assert.rejects(files.read(`${root}/bytes`, { maxBytes: 1000 }), (error) => isKind(error, "protocol"));

  await files.makeDirectory(`${root}/dir/deep`, { mode: "0700" });
  await files.move(`${root}/bytes`, `${root}/dir/moved`);
  await assert.rejects(files.move(`${root}/stream`, `${root}/dir/moved`), (error) => isKind(error, "conflict"));
  const names = (infos: { path: string }[]) => infos.map(({ path }) => path.slice(root.length + 1));
  assert.deepEqual(names(await files.list(`${root}/dir`)), ["dir/deep", "dir/moved"]);
  assert.deepEqual(names(await files.list(root, { depth: 2 })).length, 8);
  assert.deepEqual(names(await files.search(root, "*.txt")), ["a b/ä.txt"]);
  await files.setPermissions({ [`${root}/dir/moved`]: { mode: "400" } });
  assert.equal((await files.info(`${root}/dir/moved`)).mode, 400);
  await files.delete([text, `${root}/stream`]);
  assert.equal(await files.exists(text), false);
  await assert.rejects(files.delete(`${root}/dir`), (error) => isKind(error, "invalid"));
  await files.delete(root, { recursive: true });
  assert.equal(await files.exists(root), false);
  await assert.rejects(files.read(text), (error) => isKind(error, "not_found") && error.code === "FILE_NOT_FOUND");
});

test("a watch goes on after a cut, and says that events may be missing", async () => {
  await using proxy = await CuttingProxy.start();
  const { files } = await newClient({ url: proxy.url }).connect(sandbox.id);
  const root = "/tmp/watched";
  await sandbox.files.makeDirectory(root);
  const seen: FileEvent[] = [];
  for await (const event of files.watch(root, { recursive: true })) {
    seen.push(event);
    if (event.type === "ready" && proxy.cuts === 0) await sandbox.files.write(`${root}/one`, "");
    if (event.type === "create" && event.path === `${root}/one`) proxy.cutAll();
    if (event.type === "overflow") await sandbox.files.write(`${root}/two`, "");
    if (event.type === "create" && event.path === `${root}/two`) await sandbox.files.delete(root, { recursive: true });
  }
  const types = seen.map(({ type }) => type);
  const cut = types.indexOf("overflow");
  assert.deepEqual([types[0], types[cut - 1], types.at(-1)], ["ready", "ready", "remove"]);
  assert.equal(seen.at(-1)?.path, root);
});
