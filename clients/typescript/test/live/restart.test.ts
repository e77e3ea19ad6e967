import assert from "node:assert/strict";
import { test } from "node:test";

import { CuttingProxy, busybox, eventually, newClient, variable } from "../support.js";

test("a log, a command and events go on when the service is restarted", async () => {
  await using proxy = await CuttingProxy.start();
  const client = newClient({ url: proxy.url });
  const sandbox = await client.create(busybox, {
    entrypoint: ["sh", "-c", "n=0; while [ ! -e /tmp/end ]; do echo $n; n=$((n+1)); sleep 0.01; done"],
  });
  let log = "";
  const logged = (async () => {
    for await (const piece of sandbox.logs({ follow: true })) log += Buffer.from(piece).toString();
  })();
  const command = await sandbox.commands.start("echo before; while [ ! -e /tmp/go-on ]; do sleep 0.05; done; echo after");
  let output = "";
  const ran = command.wait({ onStdout: (text) => (output += text) });
  const states: (string | undefined)[] = [];
  const watched = (async () => {
    for await (const { to, type, sandboxId } of client.events({ after: 0 })) {
      if (type === "state" && sandboxId === sandbox.id) states.push(to);
      if (states.at(-1) === "Terminated") return;
    }
  })();
  await eventually("everything is followed", () => log !== "" && output !== "" && states.includes("Running"));

  const before = log.length;
  const answer = await fetch(variable("RESTART_URL"), { method: "POST" });
  proxy.target = new URL(await answer.text());
  await eventually("the log goes on", () => log.length > before);
  await sandbox.files.write("/tmp/go-on", "");
  assert.equal((await ran).stdout, "before\nafter\n");
  await sandbox.files.write("/tmp/end", "");
  await Promise.all([logged, watched]);
  const lines = log.trimEnd().split("\n");
  assert.deepEqual(lines, lines.map((_, at) => String(at)));
  assert.deepEqual(states, ["Pending", "Running", "Stopping", "Terminated"]);
});
