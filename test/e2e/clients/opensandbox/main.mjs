// Takes sandboxes through their lives with the JavaScript SDK of OpenSandbox, unchanged. Usage: main.mjs IMAGE, with the service's address
// (host:port) in OPEN_SANDBOX_DOMAIN and a key in OPEN_SANDBOX_API_KEY.
import assert from "node:assert/strict";
import { compareWithRecorded } from "./recorded.mjs";
import { ConnectionConfig, Sandbox, SandboxApiException, SandboxManager } from "@alibaba-group/opensandbox";

const image = process.argv[2];
const text = (messages) => messages.map((m) => m.text).join("\n");

async function refused(promise, status) {
  const error = await promise.then(() => assert.fail("it was not refused"), (e) => e);
  assert.ok(error instanceof SandboxApiException, String(error));
  assert.equal(error.statusCode, status, error.message);
}

async function until(what, holds) {
  for (const deadline = Date.now() + 60_000; !(await holds()); await new Promise((resolve) => setTimeout(resolve, 100))) {
    assert.ok(Date.now() < deadline, `after a minute it does not hold that ${what}`);
  }
}

async function life(useServerProxy) {
  const connectionConfig = new ConnectionConfig({ useServerProxy });
  const sandbox = await Sandbox.create({
    connectionConfig, image, env: { GREETING: "hello" }, metadata: { name: "life", via: String(useServerProxy) },
    resource: { cpu: "500m", memory: "128Mi" }, timeoutSeconds: 600,
    networkPolicy: { egress: [{ action: "allow", target: "example.com" }] },
  });
  const { endpoint, headers } = await sandbox.getEndpoint(44772);
  assert.equal(endpoint.includes(`/v1/sandboxes/${sandbox.id}/proxy/44772`), useServerProxy, endpoint);
  assert.equal(headers["X-Sandbox-Dialect"], "opensandbox");

  // The network policy, which the SDK takes for the egress sidecar's.
  assert.match((await sandbox.getEndpoint(18080)).endpoint, /\/v1\/sandboxes\/[^/]+\/proxy\/18080$/);
  await sandbox.patchEgressRules([{ action: "deny", target: "example.org" }]);
  await sandbox.deleteEgressRules(["example.com"]);
  const policy = await sandbox.getEgressPolicy();
  assert.equal(policy.defaultAction, "deny");
  assert.deepEqual(policy.egress, [{ action: "deny", target: "example.org" }]);

  // Commands.
  const run = await sandbox.commands.run('echo "$GREETING"; echo oops >&2; exit 3', { workingDirectory: "/tmp" });
  assert.equal(text(run.logs.stdout), "hello");
  assert.equal(text(run.logs.stderr), "oops");
  assert.equal(run.exitCode, 3);
  const background = await sandbox.commands.run("echo one; echo two", { background: true });
  let status = await sandbox.commands.getCommandStatus(background.id);
  while (status.running) status = await sandbox.commands.getCommandStatus(background.id);
  assert.equal(status.exitCode, 0);
  const logs = await sandbox.commands.getBackgroundCommandLogs(background.id);
  assert.equal(logs.content.trim(), "one\ntwo");
  const rest = await sandbox.commands.getBackgroundCommandLogs(background.id, logs.cursor);
  assert.equal(rest.content, "");
  assert.equal((await sandbox.commands.getBackgroundCommandLogs(background.id, 0)).content, logs.content);
  await refused(sandbox.commands.getCommandStatus("no-such-command"), 404);

  // A session.
  const session = await sandbox.commands.createSession({ workingDirectory: "/tmp" });
  await sandbox.commands.runInSession(session, "mkdir -p work && cd work && export WORD=kept");
  const later = await sandbox.commands.runInSession(session, 'pwd; echo "$WORD"');
  assert.equal(text(later.logs.stdout), "/tmp/work\nkept");
  assert.equal(later.exitCode, 0);
  await sandbox.commands.deleteSession(session);
  await refused(sandbox.commands.runInSession(session, "pwd"), 404);

  // Files.
  const { files } = sandbox;
  await files.createDirectories([{ path: "/tmp/demo", mode: 755 }]);
  await files.writeFiles([
    { path: "/tmp/demo/a.txt", data: "one\ntwo\nthree\n", mode: 644 },
    { path: "/tmp/demo/b.bin", data: (async function* () { yield new Uint8Array([0, 1, 2]); yield new Uint8Array([255]); })() },
  ]);
  assert.equal(await files.readFile("/tmp/demo/a.txt"), "one\ntwo\nthree\n");
  assert.equal(await files.readFile("/tmp/demo/a.txt", { offset: 2, limit: 1 }), "two");
  assert.equal(await files.readFile("/tmp/demo/a.txt", { offset: 2, limit: 9 }), "two\nthree");
  assert.equal(await files.readFile("/tmp/demo/a.txt", { range: "bytes=4-6" }), "two");
  assert.deepEqual([...(await files.readBytes("/tmp/demo/b.bin"))], [0, 1, 2, 255]);
  assert.deepEqual((await files.search({ path: "/tmp/demo", pattern: "*.txt" })).map((f) => f.path), ["/tmp/demo/a.txt"]);
  assert.equal((await files.listDirectory({ path: "/tmp/demo" })).length, 2);
  assert.deepEqual(await files.replaceContentsDetailed([{ path: "/tmp/demo/a.txt", oldContent: "t", newContent: "T" }]),
    [{ path: "/tmp/demo/a.txt", replacedCount: 2 }]);
  await files.setPermissions([{ path: "/tmp/demo/a.txt", mode: 600 }]);
  assert.equal((await files.getFileInfo(["/tmp/demo/a.txt"]))["/tmp/demo/a.txt"].mode, 600);
  await files.moveFiles([{ src: "/tmp/demo/a.txt", dest: "/tmp/demo/c.txt" }]);
  await files.deleteFiles(["/tmp/demo/b.bin"]);
  await files.deleteDirectories(["/tmp/demo"]);
  await refused(files.readFile("/tmp/demo/c.txt"), 404);
  assert.ok((await sandbox.getMetrics()).memoryTotalMiB > 0);

  // Its life: metadata, an earlier expiry, a later one, pause and resume, and the end.
  const patched = await sandbox.patchMetadata({ name: "renamed", via: null });
  assert.deepEqual(patched.metadata, { name: "renamed" });
  for (const seconds of [120, 1200]) {
    await sandbox.renew(seconds);
    const left = ((await sandbox.getInfo()).expiresAt - Date.now()) / 1000;
    assert.ok(left > seconds - 60 && left <= seconds, `${left} of ${seconds} seconds`);
  }
  assert.deepEqual((await sandbox.getInfo()).metadata, { name: "renamed" });
  await sandbox.pause(); // it ends when that is accepted
  await until("the sandbox is paused", async () => (await sandbox.getInfo()).status.state === "Paused");
  const resumed = await sandbox.resume();
  assert.equal(text((await resumed.commands.run("echo again")).logs.stdout), "again");
  await resumed.kill();
  await refused(resumed.getInfo(), 404); // what has ended is gone
  await refused(resumed.kill(), 404);
  await Promise.all([sandbox.close(), resumed.close()]);
}

async function withoutExpiry() {
  const sandbox = await Sandbox.create({ image, timeoutSeconds: null, resource: { cpu: "100m", memory: "64Mi" } });
  assert.equal((await sandbox.getInfo()).expiresAt, null);
  const manager = SandboxManager.create();
  const list = await manager.listSandboxInfos({ states: ["Running", "NotYetInvented"] });
  assert.equal(list.items.find((item) => item.id === sandbox.id).expiresAt, null);
  assert.deepEqual((await manager.listSandboxInfos({ states: ["NotYetInvented"] })).items, []);
  // It ends at the promised time, although the service's own expiry is a day away.
  await sandbox.sandboxes.renewSandboxExpiration(sandbox.id, { expiresAt: new Date(Date.now() + 2000).toISOString() });
  await until("the sandbox has ended", () => sandbox.getInfo().then(() => false, (error) => error.statusCode === 404));
  await Promise.all([sandbox.close(), manager.close()]);
}

// snapshots keeps the files of a sandbox that is gone, and makes another one with them.
async function snapshots() {
  const resource = { cpu: "200m", memory: "128Mi" };
  const sandbox = await Sandbox.create({ image, timeoutSeconds: 600, resource });
  await sandbox.files.writeFiles([{ path: "/root/kept.txt", data: "kept" }]);
  const manager = SandboxManager.create();
  const made = await manager.createSnapshot(sandbox.id, { name: "first" });
  await until("the snapshot is ready", async () => (await manager.getSnapshot(made.id)).status.state === "Ready");
  const list = await manager.listSnapshots({ sandboxId: sandbox.id, states: ["Ready", "Failed"] });
  assert.deepEqual(list.items.map((item) => [item.id, item.name]), [[made.id, "first"]]);
  await sandbox.kill();
  const restored = await Sandbox.create({ snapshotId: made.id, timeoutSeconds: 600, resource });
  assert.equal(await restored.files.readFile("/root/kept.txt"), "kept");
  await restored.kill();
  await manager.deleteSnapshot(made.id);
  await until("the snapshot is gone", () => manager.getSnapshot(made.id).then(() => false, (error) => error.statusCode === 404));
  await Promise.all([sandbox.close(), restored.close(), manager.close()]);
}

// secured reaches ports of a sandbox with secureAccess with its own secret alone.
async function secured() {
  const resource = { cpu: "200m", memory: "128Mi" };
  const [sandbox, other] = await Promise.all([1, 2].map(() => Sandbox.create({ image, timeoutSeconds: 600, resource, secureAccess: true })));
  await sandbox.commands.run('mkdir -p /tmp/web && echo page > /tmp/web/index.html && httpd -p 8000 -h /tmp/web');
  const name = "OpenSandbox-Secure-Access";
  const { headers: theirs } = await other.getEndpoint(8000);
  for (const useServerProxy of [false, true]) {
    const connected = await Sandbox.connect({ sandboxId: sandbox.id, connectionConfig: new ConnectionConfig({ useServerProxy }) });
    assert.equal(text((await connected.commands.run("echo in")).logs.stdout), "in");
    for (const port of [8000, 44772]) {
      const { endpoint, headers } = await connected.getEndpoint(port);
      assert.ok(headers[name], JSON.stringify(headers));
      assert.notEqual(headers[name], theirs[name]);
      const at = `http://${endpoint}/${port === 8000 ? "" : "command/status/x"}`;
      const status = async (sent) => (await fetch(at, { headers: sent })).status;
      const admitted = port === 8000 ? 200 : 404;
      const { [name]: secret, "X-EXECD-ACCESS-TOKEN": token, ...rest } = headers;
      assert.equal(await status(headers), admitted, at);
      assert.equal(await status({ ...rest, [name]: secret }), admitted, at);
      assert.equal(await status(rest), 401, at);
      assert.equal(await status({}), 401, at);
      assert.equal(await status({ ...rest, [name]: theirs[name] }), 401, at);
    }
    await connected.close();
  }
  await Promise.all([sandbox.kill(), other.kill()]);
  await Promise.all([sandbox.close(), other.close()]);
}

await Promise.all([life(false), life(true), withoutExpiry(), snapshots(), secured()]);
await compareWithRecorded(process.env.OPEN_SANDBOX_DOMAIN, process.env.OPEN_SANDBOX_API_KEY, image);
await assert.rejects(Sandbox.create({ connectionConfig: { apiKey: "wrong" }, image }), { statusCode: 401 });
console.log("all of it works");
