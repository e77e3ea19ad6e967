import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { after, before, test } from "node:test";

import { type Sandbox, isKind } from "@sandbox.internal/sdk";

import { CuttingProxy, busybox, newClient } from "../support.js";

/** How many connections are cut, and how many streams are read at the same time. */
const wanted = process.env["TEST_LONG"] ? 1_000 : 300;
const parallel = 8;

let direct: Sandbox;
let output: Buffer;
before(async () => {
  direct = await newClient().create(busybox);
  output = randomOutput(15_000);
  await direct.files.write("/tmp/out", output);
});
after(() => direct.delete());

/** Lines of text, empty lines, bytes that are no UTF-8, and at last a piece without a newline. */
function randomOutput(length: number): Buffer {
  const pieces: Buffer[] = [];
  for (let at = 0; at < length; at += pieces.at(-1)?.length ?? 0) {
    const kind = Math.random();
    const text = kind < 0.1 ? "\n" : `${at} ä€😀 ${"x".repeat(Math.floor(Math.random() * 200))}\n`;
    pieces.push(kind > 0.8 ? Buffer.concat([randomBytes(60), Buffer.from("\n")]) : Buffer.from(text));
  }
  return Buffer.concat([...pieces, Buffer.from("no newline")]);
}

test(`streams of commands are byte for byte the same across ${wanted} cuts`, async (t) => {
  await using proxy = await CuttingProxy.start();
  const { commands } = await newClient({ url: proxy.url }).connect(direct.id);
  proxy.longest = 4_000;
  const one = async (at: number) => {
    const line = "cat /tmp/out; head -c 3000 /tmp/out >&2; exit 3";
    const result = at % 2 ? await commands.run(line) : await (await commands.start(line)).wait();
    assert.equal(output.compare(result.stdoutBytes), 0, "the standard output");
    assert.equal(output.subarray(0, 3_000).compare(result.stderrBytes), 0, "the standard error");
    assert.equal(result.exitCode, 3);
  };
  let streams = 0;
  const read = async () => {
    while (proxy.cuts < wanted) await one(streams++);
  };
  await Promise.all(Array.from({ length: parallel }, read));
  t.diagnostic(`${proxy.cuts} cuts in ${streams} streams of ${output.length} bytes`);
});

test("standard input across cuts arrives once", async () => {
  await using proxy = await CuttingProxy.start();
  const data = randomBytes(3_000_000);
  const started = await direct.commands.start("sha256sum", { stdin: true });
  const { commands } = await newClient({ url: proxy.url }).connect(direct.id);
  const { stdin } = await commands.connect(started.id);
  proxy.longestRequest = 400_000; // of 262,144 bytes and a header: most pass
  proxy.longest = 60; // of an answer of about 30 bytes
  for (let at = 0; at < data.length; at += 500_000) await stdin.write(data.subarray(at, at + 500_000));
  await stdin.end();
  const { stdout } = await started.wait();
  assert.equal(stdout, `${createHash("sha256").update(data).digest("hex")}  -\n`);
  assert.ok(proxy.cuts > 5, `${proxy.cuts} cuts`);
});

test("a file that is read across cuts is the same", async () => {
  await using proxy = await CuttingProxy.start();
  const { files } = await newClient({ url: proxy.url }).connect(direct.id);
  const content = randomBytes(2_000_000);
  await direct.files.write("/tmp/file", content);
  proxy.longest = 200_000;
  assert.equal(content.compare(await files.read("/tmp/file")), 0);
  assert.equal(content.subarray(1_000, 1_500_000).compare(await files.read("/tmp/file", { start: 1_000, end: 1_500_000 })), 0);
  assert.ok(proxy.cuts > 5, `${proxy.cuts} cuts`);
});

test("a file that changes while its connection is cut is an error, not a mixture", async () => {
  await using proxy = await CuttingProxy.start();
  const { files } = await newClient({ url: proxy.url }).connect(direct.id);
  await direct.files.write("/tmp/changing", randomBytes(20_000_000)); // more than fits into buffers
  const reader = files.readStream("/tmp/changing").getReader();
  await reader.read();
  await direct.files.write("/tmp/changing", randomBytes(20_000_000));
  proxy.cutAll();
  const rest = async () => {
    while (!(await reader.read()).done);
  };
  await assert.rejects(rest(), (error) => isKind(error, "stream") && /has changed/.test(error.message));
});
