import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { type Sandbox, isKind } from "@sandbox.internal/sdk";

import { CuttingProxy, newClient, python } from "../support.js";

let sandbox: Sandbox;
before(async () => (sandbox = await newClient().create(python)));
after(() => sandbox.delete());

test("a cell that memory ran out for", async () => {
  await using small = await newClient().create(python, { resourceLimits: { memory: "512Mi" } });
  const died = await small.code.run("x = bytearray(2 << 30)");
  assert.deepEqual([died.error?.name, died.reason], ["KernelDied", "OOM_KILLED"]);
  const next = await small.code.run("6 * 7");
  assert.deepEqual([next.results[0]?.text, next.error, next.reason], ["42", undefined, undefined]);
});

test("cells with and without a context", async () => {
  await using proxy = await CuttingProxy.start();
  const { code } = await newClient({ url: proxy.url }).connect(sandbox.id);
  const context = await code.contexts.create("python");
  assert.deepEqual((await code.contexts.list("python")).map(({ id }) => id), [context.id]);
  assert.equal((await code.contexts.get(context.id)).language, "python");

  proxy.longest = 1_500;
  const seen: unknown[] = [];
  const first = await code.run("import sys\nfor i in range(200): print('line', i)\nprint('é', file=sys.stderr)\nx = 41", {
    context,
    onStdout: (text) => seen.push(text),
  });
  const lines = Array.from({ length: 200 }, (_, i) => `line ${i}\n`).join("");
  assert.deepEqual([first.stdout, first.stderr, seen.join(""), first.count], [lines, "é\n", lines, 1]);
  assert.ok(proxy.cuts > 0);
  proxy.longest = Infinity;

  const second = await code.run("x + 1", { context: context.id, onResult: ({ text }) => seen.push(text) });
  assert.deepEqual([second.results[0]?.text, seen.at(-1), second.error], ["42", "42", undefined]);
  const rich = await code.run(
    "from IPython.display import HTML, JSON, Image, display\n" +
      "display(HTML('<b>x</b>'), JSON({'a': [1]}), Image(data=bytes.fromhex('89504e470d0a1a0a00'), format='png'))",
    { context },
  );
  const [html, json, image] = rich.results;
  assert.equal(html?.html, "<b>x</b>");
  assert.deepEqual(json?.json, { a: [1] });
  assert.equal(Buffer.from(image?.png ?? []).toString("hex"), "89504e470d0a1a0a00");

  const raised = await code.run("1/0", { context });
  assert.equal(raised.error?.name, "ZeroDivisionError");
  assert.ok(raised.error.traceback.length > 0);
  const fresh = await code.run("x", { language: "python", stateless: true });
  assert.equal(fresh.error?.name, "NameError");

  const interrupted = await code.run("import time\nprint('go', flush=True)\ntime.sleep(60)", {
    context,
    onStdout: () => void code.interrupt(context.id),
  });
  assert.equal(interrupted.error?.name, "KeyboardInterrupt");
  const abort = new AbortController();
  const aborted = code.run("print('go', flush=True)\ntime.sleep(60)", {
    context,
    signal: abort.signal,
    onStdout: () => abort.abort(new Error("enough")),
  });
  await assert.rejects(aborted, /enough/);
  assert.equal((await code.run("x", { context })).results[0]?.text, "41"); // the cell before is over

  await code.contexts.delete(context.id);
  await assert.rejects(code.run("x", { context }), (error) => isKind(error, "not_found"));
  await assert.rejects(code.run("x", { language: "cobol" }), (error) => isKind(error, "invalid"));
});
