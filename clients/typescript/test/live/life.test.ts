import assert from "node:assert/strict";
import { test } from "node:test";

import { isKind, type NumberedEvent, Sandbox } from "@sandbox.internal/sdk";

import { CuttingProxy, busybox, newClient } from "../support.js";

const client = newClient();
const mark = { client: "typescript", run: `a b&c=${process.pid}` };

test("a life, from its creation to its end", async () => {
  assert.equal((await client.api.json("get", "/health", {})).status, "healthy");
  const from = (await client.api.json("get", "/v1/sandboxes", { query: { pageSize: 1 } })).pagination.page;
  assert.equal(from, 1);
  const sandbox = await client.create(busybox, {
    entrypoint: ["sh", "-c", "echo $GREETING; while [ ! -e /tmp/end ]; do sleep 0.05; done; echo bye"],
    env: { GREETING: "hello" },
    resourceLimits: { memory: "256Mi" },
    metadata: mark,
    extensions: { "example.priority": "high" },
  });
  await using _ = sandbox;
  assert.equal(sandbox.info.status.state, "Running");
  assert.deepEqual(sandbox.info.extensions, { "example.priority": "high" });

  const listed = [];
  for await (const { id } of client.list({ state: ["Running", "Paused"], metadata: mark })) listed.push(id);
  assert.deepEqual(listed, [sandbox.id]);
  assert.equal((await client.connect(sandbox.id)).info.image.uri, busybox);

  // Changes, and the states that do not permit them.
  assert.equal((await sandbox.pause()).status.state, "Paused");
  await assert.rejects(sandbox.pause(), (error) => isKind(error, "conflict") && error.code === "CONFLICT");
  assert.equal((await sandbox.resume()).status.state, "Running");
  const expiry = await sandbox.renew(7_200);
  assert.ok(Math.abs(expiry.getTime() - Date.now() - 7_200_000) < 60_000);
  assert.equal(sandbox.info.expiresAt, (await sandbox.refresh()).expiresAt);
  await assert.rejects(sandbox.renew(-1), (error) => isKind(error, "invalid") && /expiresAt/.test(error.message));
  assert.deepEqual(await sandbox.updateMetadata({ run: null, name: "renamed" }), { client: "typescript", name: "renamed" });

  // Ports: with the headers of the endpoint, and with nothing but a signed URL.
  const endpoint = await sandbox.endpoint(44772);
  assert.equal((await fetch(`${endpoint.url}/ping`)).status, 200);
  assert.equal((await fetch(`${endpoint.url}/metrics`)).status, 401);
  assert.equal((await fetch(`${endpoint.url}/metrics`, { headers: endpoint.headers })).status, 200);
  const signed = (await sandbox.signedUrl(44772, 60)).replace("/?", "/metrics?");
  assert.equal((await fetch(signed)).status, 200);

  const awake = await sandbox.keepAwake({ seconds: 60, wakeAfterSeconds: 3_600, name: "test" });
  assert.ok(awake.until && Date.parse(awake.until) > Date.now());
  const held = await sandbox.holds();
  assert.ok(held.holds.some(({ kind, id }) => kind === "keepAwake" && id === "test"));
  assert.equal(held.wakeAt, awake.wakeAt);

  assert.equal((await sandbox.metrics()).mem_total_mib, 256);
  for await (const { mem_total_mib } of sandbox.watchMetrics()) {
    assert.equal(mem_total_mib, 256);
    break;
  }

  // A log that is followed through a cut, events, and a wait, up to the end.
  await using proxy = await CuttingProxy.start();
  const cut = await newClient({ url: proxy.url }).connect(sandbox.id);
  let log = "";
  const followed = (async () => {
    for await (const piece of cut.logs({ follow: true })) {
      log += Buffer.from(piece).toString();
      if (proxy.cuts === 0) proxy.cutAll();
    }
  })();
  const events = (async () => {
    const types = [];
    for await (const event of cut.events()) {
      types.push(event.type === "state" ? event.to : event.type);
      if (event.to === "Terminated") return types;
    }
    return assert.fail("the events ended");
  })();
  const over = sandbox.wait("Terminated", { timeout: 60_000 });
  await sandbox.files.write("/tmp/end", "");
  assert.equal((await over).status.reason, "ENTRYPOINT_EXITED");
  await followed;
  assert.equal(log, "hello\nbye\n");
  const types = await events;
  assert.deepEqual(
    types.filter((type) => type !== "stage" && type !== "progress"),
    ["Pending", "Running", "Pausing", "Paused", "Resuming", "Running", "renewed", "metadata", "Stopping", "Terminated"],
  );
  let kept = "";
  for await (const piece of sandbox.logs({ tail: 1 })) kept += Buffer.from(piece).toString();
  assert.equal(kept, "bye\n");
  await sandbox.delete(); // has ended already
  await assert.rejects(sandbox.wait("Running"), (error) => isKind(error, "failed"));
});

test("a sandbox that cannot start is an error with its reason, and is not left behind", async () => {
  const name = `never-${process.pid}`;
  const created = client.create(busybox, { entrypoint: ["/no/such/program"], metadata: { name } });
  await assert.rejects(created, (error) => isKind(error, "failed") && error.code !== "" && /no such/.test(error.message));
  for await (const { status } of client.list({ metadata: { name } })) assert.equal(status.state, "Failed");
});

test("a create that is aborted, or whose connection is cut, leaves nothing or one", async () => {
  const name = `aborted-${process.pid}`;
  const aborted = [0, 1, 5, 20, 100].map(async (milliseconds) => {
    const signal = AbortSignal.timeout(milliseconds);
    await assert.rejects(client.create(busybox, { metadata: { name }, signal }), { name: "TimeoutError" });
  });
  await Promise.all(aborted);
  for await (const { status } of client.list({ metadata: { name } })) {
    assert.ok(["Stopping", "Terminated", "Failed"].includes(status.state), status.state);
  }
  await using proxy = await CuttingProxy.start();
  proxy.longest = 1; // no body
  proxy.most = 2;
  const once = `once-${process.pid}`;
  await using sandbox = await newClient({ url: proxy.url }).create(busybox, { metadata: { name: once } });
  const ids = [];
  for await (const { id } of client.list({ metadata: { name: once } })) ids.push(id);
  assert.deepEqual([ids, proxy.cuts], [[sandbox.id], 2]);
});

test("a create with a key of its caller makes one sandbox, by whichever client", async () => {
  const options = { timeout: 600, metadata: mark, idempotencyKey: `typescript-${crypto.randomUUID()}` };
  await using sandbox = await client.create(busybox, options);
  assert.equal((await newClient().create(busybox, options)).id, sandbox.id);
  await assert.rejects(client.create(busybox, { ...options, timeout: 601 }), (error) => isKind(error, "conflict"));
});

test("the events of all sandboxes begin with what happens next", async () => {
  const abort = new AbortController();
  const seen: NumberedEvent[] = [];
  let sandbox;
  const name = `watched-${process.pid}`;
  const events = client.events({ signal: abort.signal })[Symbol.asyncIterator]();
  let next = events.next();
  sandbox = await client.create(busybox, { metadata: { name } });
  for (;;) {
    const { value } = await next;
    assert.ok(value);
    seen.push(value);
    if (value.sandboxId === sandbox.id && value.to === "Running") break;
    next = events.next();
  }
  await sandbox.delete();
  assert.ok(seen.every(({ id }, at) => at === 0 || id > (seen[at - 1]?.id ?? 0)));
  const parked = events.next();
  abort.abort(new Error("enough"));
  await assert.rejects(parked.then(async () => { for (;;) if ((await events.next()).done) return; }), /enough/);
});

test("refusals", async () => {
  await assert.rejects(client.get("no-such-sandbox"), (error) => isKind(error, "not_found") && error.code === "SANDBOX_NOT_FOUND");
  await assert.rejects(client.create(busybox, { timeout: 59 }), (error) => isKind(error, "invalid") && /timeout/.test(error.message));
  const stranger = newClient({ apiKey: "wrong" });
  await assert.rejects(stranger.get("a"), (error) => isKind(error, "unauthorized") && error.requestId !== undefined);
});

test("the life of a key", async () => {
  const { keys } = client;
  const name = `typescript/${process.pid}`;
  const expiresAt = new Date(Math.ceil(Date.now() / 1000) * 1000 + 86_400_000);
  const made = await keys.create(name, { expiresAt, limits: { maxSandboxes: 3 }, rateLimit: { requestsPerSecond: 50 } });
  try {
    assert.deepEqual([made.key.name, made.key.role], [name, "user"]);
    assert.equal(Date.parse(made.key.expiresAt ?? ""), expiresAt.getTime());
    const user = newClient({ apiKey: made.secret });
    for await (const { id } of user.list({ metadata: { none: name } })) assert.fail(id);
    await assert.rejects(user.keys.get(name), (error) => isKind(error, "forbidden"));
    const listed = [];
    for await (const key of keys.list()) if (key.name === name) listed.push(key);
    assert.equal(listed.length, 1);
    for (const { limits, source } of [...listed, await keys.get(name)]) assert.deepEqual([limits, source], [{ maxSandboxes: 3 }, "service"]);
    await assert.rejects(keys.create(name), (error) => isKind(error, "conflict"));

    const rotated = await keys.rotate(name, { grace: 60 });
    assert.ok(rotated.key.previousSecretExpiresAt);
    const last = await keys.rotate(name);
    await newClient({ apiKey: last.secret }).defaults();
    for (const apiKey of [made.secret, rotated.secret]) {
      await assert.rejects(newClient({ apiKey }).defaults(), (error) => isKind(error, "unauthorized"));
    }
  } finally {
    await keys.delete(name);
  }
  await assert.rejects(keys.get(name), (error) => isKind(error, "not_found"));
  await assert.rejects(keys.create(name, { role: "viewer" }), (error) => isKind(error, "conflict"));
  assert.equal((await keys.create(name, { role: "viewer", takeOver: true })).key.role, "viewer");
  await keys.delete(name);
});

test("a snapshot, a rollback, forks and a sandbox that begins with the snapshot", async () => {
  await using sandbox = await client.create(busybox, { env: { SECRET: "s" } });
  await sandbox.files.write("/root/note", "kept");
  const taken = await sandbox.snapshot({ name: "before", metadata: { by: sandbox.id }, ttl: 3_600 });
  assert.deepEqual([taken.status.state, taken.sandboxId, taken.name], ["Ready", sandbox.id, "before"]);
  const listed = [];
  for await (const { id } of sandbox.snapshots()) listed.push(id);
  for await (const { id } of client.snapshots.list({ name: "before", metadata: { by: sandbox.id } })) listed.push(id);
  assert.deepEqual(listed, [taken.id, taken.id]);
  await sandbox.files.write("/root/note", "changed");
  assert.equal((await sandbox.rollback(taken)).status.state, "Running");
  assert.equal(await sandbox.files.readText("/root/note"), "kept");
  assert.equal((await sandbox.commands.run("echo $SECRET")).stdout, "s\n");
  for (const fork of await sandbox.fork({ count: 2, env: { ATTEMPT: "1" } })) {
    assert.ok(fork instanceof Sandbox);
    await using other = fork;
    assert.equal((await other.commands.run("cat /root/note; echo $ATTEMPT$SECRET")).stdout, "kept1\n");
  }
  const { snapshots, sandboxes } = await sandbox.lineage();
  assert.deepEqual([snapshots.map(({ id }) => id), sandboxes.map(({ parentId }) => parentId)], [[taken.id], [undefined, sandbox.id, sandbox.id]]);
  await using begun = await client.create({ snapshotId: taken.id });
  assert.equal(await begun.files.readText("/root/note"), "kept");
  assert.equal(begun.info.snapshotId, taken.id);
  const { items } = await client.snapshots.diff(taken.id, { limit: 10 });
  assert.deepEqual(items.filter(({ path }) => path.startsWith("/root/")), [{ path: "/root/note", kind: "added", type: "file", size: 4 }]);
  const pieces = [];
  for await (const piece of client.snapshots.archive(taken.id)) pieces.push(piece);
  const name = `sandbox/typescript:${taken.id}`;
  assert.match((await client.snapshots.export(taken.id, name)).names.join(), /sandbox\/typescript/);
  await using exported = await client.create(name);
  assert.equal(await exported.files.readText("/root/note"), "kept");
  assert.match(Buffer.concat(pieces).toString("latin1"), /root\/note/);
  await client.snapshots.delete(taken.id);
  await assert.rejects(client.snapshots.delete(taken.id), (error) => isKind(error, "not_found") && error.code === "SNAPSHOT_NOT_FOUND");
});
