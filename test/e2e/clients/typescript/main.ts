// Takes a sandbox through its life with clients that openapi-typescript generated from the two contracts. It is run by a test in e2e,
// which generates gen/lifecycle.ts and gen/execd.ts beside it first:
//
//   SERVICE_URL=http://127.0.0.1:8080 SERVICE_API_KEY=... node built/main.js IMAGE
//
// It throws, and so ends with an exit code that is not 0, when something is not as the contract says.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";

import type { components as inside, paths as ExecdPaths } from "./gen/execd.js";
import type { paths as LifecyclePaths } from "./gen/lifecycle.js";

type Metrics = inside["schemas"]["Metrics"];
type StreamEvent = inside["schemas"]["StreamEvent"];

const url = env("SERVICE_URL");
const image = process.argv[2] ?? "";
const service = createClient<LifecyclePaths>({ baseUrl: url, headers: { "SERVICE-API-KEY": env("SERVICE_API_KEY") } });

function env(name: string): string {
  const value = process.env[name];
  assert.ok(value, `${name} is not set`);
  return value;
}

/** The body of a success; an error says what came instead. */
function body<T>(answer: { data?: T; error?: unknown; response: Response }): T {
  assert.ok(answer.data !== undefined, `${answer.response.url}: ${answer.response.status} ${JSON.stringify(answer.error)}`);
  return answer.data;
}

async function until(sandboxId: string, wanted: string): Promise<void> {
  for (;;) {
    const { status } = body(await service.GET("/v1/sandboxes/{sandboxId}", { params: { path: { sandboxId } } }));
    if (status.state === wanted) return;
    assert.ok(!["Failed", "Terminated"].includes(status.state), `the sandbox is ${status.state}: ${status.message}`);
    await new Promise((resolve) => setTimeout(resolve, 50)); // between two looks
  }
}

/**
 * The events of a stream, as they come. Leaving the loop closes the connection.
 * No generator makes this: the language of the contracts has no word for the events of a stream.
 */
async function* events<T>(answer: { data?: unknown; error?: unknown; response: Response }): AsyncGenerator<{ id: string; data: T }> {
  const stream = body(answer);
  assert.ok(stream instanceof ReadableStream, "the answer is no stream"); // its type says that it is a string
  const reader = stream.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const lines = text.slice(0, end).split("\n");
        text = text.slice(end + 2);
        const field = (name: string) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2) ?? "";
        yield { id: field("id"), data: JSON.parse(field("data")) as T };
      }
    }
  } finally {
    await reader.cancel();
  }
}

async function collect(answer: { data?: unknown; error?: unknown; response: Response }): Promise<{ id: string; data: StreamEvent }[]> {
  const all = [];
  for await (const event of events<StreamEvent>(answer)) all.push(event);
  return all;
}

async function life(): Promise<void> {
  assert.equal(body(await service.GET("/health")).status, "healthy");
  const created = await service.POST("/v1/sandboxes", {
    body: {
      image: { uri: image },
      timeout: 600,
      resourceLimits: { memory: "256Mi" },
      entrypoint: ["sleep", "1000"],
      env: { GREETING: "hello" },
      metadata: { client: "typescript" },
      extensions: { "example.priority": "high" },
    },
  });
  const { id: sandboxId, status } = body(created);
  const path = { params: { path: { sandboxId } } };
  try {
    assert.equal(created.response.status, 202);
    assert.equal(created.response.headers.get("Location"), `/v1/sandboxes/${sandboxId}`);
    assert.ok(created.response.headers.get("X-Request-ID"));
    assert.equal(status.state, "Pending");
    await until(sandboxId, "Running");
    console.log("create ok");

    const query = { state: ["Running", "Paused"], metadata: "client=typescript", pageSize: 5 };
    const page = body(await service.GET("/v1/sandboxes", { params: { query } }));
    assert.deepEqual(page.items.map((item) => item.id), [sandboxId]);
    assert.equal(page.pagination.totalItems, 1);
    console.log("list ok");

    const endpoint = body(await service.GET("/v1/sandboxes/{sandboxId}/endpoints/{port}", { params: { path: { sandboxId, port: 44772 } } }));
    await execd(endpoint.url, endpoint.headers);
    console.log("inside ok");

    assert.equal((await service.POST("/v1/sandboxes/{sandboxId}/pause", path)).response.status, 202);
    await until(sandboxId, "Paused");
    const conflict = await service.POST("/v1/sandboxes/{sandboxId}/pause", path);
    assert.equal(conflict.response.status, 409);
    assert.equal(conflict.error?.code, "CONFLICT");
    assert.equal((await service.POST("/v1/sandboxes/{sandboxId}/resume", path)).response.status, 202);
    await until(sandboxId, "Running");
    console.log("pause and resume ok");

    const expiresAt = new Date(Math.ceil(Date.now() / 1000) * 1000 + 7_200_000).toISOString();
    const renewed = body(await service.POST("/v1/sandboxes/{sandboxId}/renew-expiration", { ...path, body: { expiresAt } }));
    assert.equal(Date.parse(renewed.expiresAt), Date.parse(expiresAt));
    console.log("renew ok");
    await errors(path);
    console.log("errors ok");
  } finally {
    const deleted = await service.DELETE("/v1/sandboxes/{sandboxId}", path);
    assert.equal(deleted.response.status, 204, JSON.stringify(deleted.error));
  }
  await until(sandboxId, "Terminated");
  console.log("delete ok");
}

async function errors(path: { params: { path: { sandboxId: string } } }): Promise<void> {
  const past = await service.POST("/v1/sandboxes/{sandboxId}/renew-expiration", { ...path, body: { expiresAt: "2020-01-01T00:00:00Z" } });
  assert.equal(past.response.status, 400);
  assert.equal(past.error?.detail, past.error?.message);

  const missing = await service.GET("/v1/sandboxes/{sandboxId}", { params: { path: { sandboxId: "no-such-sandbox" } } });
  assert.equal(missing.response.status, 404);
  assert.equal(missing.error?.code, "SANDBOX_NOT_FOUND");

  const short = await service.POST("/v1/sandboxes", {
    body: { image: { uri: image }, timeout: 59, resourceLimits: {}, entrypoint: ["true"] },
  });
  assert.equal(short.response.status, 400);
  assert.match(short.error?.message ?? "", /timeout/);

  const stranger = createClient<LifecyclePaths>({ baseUrl: url, headers: { "SERVICE-API-KEY": "wrong" } });
  const refused = await stranger.GET("/v1/sandboxes");
  assert.equal(refused.response.status, 401);
  assert.equal(refused.error?.code, "UNAUTHORIZED");
}

async function execd(baseUrl: string, headers: Record<string, string>): Promise<void> {
  const daemon = createClient<ExecdPaths>({ baseUrl, headers });
  assert.equal((await daemon.GET("/ping", { parseAs: "text" })).response.status, 200);
  const metrics = body(await daemon.GET("/metrics")) as Metrics; // or a text, for those who ask for Prometheus' format
  assert.equal(metrics.mem_total_mib, 256);

  // A stream is read while it comes: the first line arrives long before the command ends, which waits for a file.
  const started = await daemon.POST("/command", {
    body: { command: "echo $GREETING; until test -e /tmp/go-on; do sleep 0.05; done; echo end >&2; exit 7" },
    parseAs: "stream",
  });
  let id = "";
  let seen = "";
  for await (const { id: number, data } of events<StreamEvent>(started)) {
    if (data.type === "init") id = data.text ?? "";
    if (data.type !== "stdout") continue;
    assert.equal(data.text, "hello");
    seen = number;
    break;
  }
  assert.equal(started.response.headers.get("X-Command-ID"), id);
  assert.equal(body(await daemon.GET("/command/status/{id}", { params: { path: { id } } })).running, true);

  // The connection is cut here; the stream goes on where it was.
  await upload(baseUrl, headers, { path: "/tmp/go-on", mode: 600 }, "");
  const rest = await daemon.GET("/command/{id}/stream", { params: { path: { id }, header: { "Last-Event-ID": seen } }, parseAs: "stream" });
  const tail = await collect(rest);
  assert.deepEqual(tail.filter(({ data }) => data.type === "stderr").map(({ data }) => data.text), ["end"]);
  const last = tail.at(-1)?.data;
  assert.equal(last?.type, "error");
  assert.equal(last?.exit_code, 7);
  assert.equal(last?.error?.ename, "CommandExecError");
  const ended = body(await daemon.GET("/command/status/{id}", { params: { path: { id } } }));
  assert.deepEqual([ended.running, ended.exit_code], [false, 7]);

  for await (const { data } of events<Metrics>(await daemon.GET("/metrics/watch", { parseAs: "stream" }))) {
    assert.equal(data.mem_total_mib, 256);
    break; // it has no end
  }
  await files(daemon, baseUrl, headers);

  const stranger = createClient<ExecdPaths>({ baseUrl });
  const refused = await stranger.GET("/metrics");
  assert.equal(refused.response.status, 401);
  assert.equal(refused.error?.code, "UNAUTHORIZED");
}

async function files(daemon: ReturnType<typeof createClient<ExecdPaths>>, baseUrl: string, headers: Record<string, string>): Promise<void> {
  const path = "/tmp/typescript/a b.txt";
  await upload(baseUrl, headers, { path, mode: 640 }, "one two");
  body(await daemon.POST("/files/replace", { body: { [path]: { old: "two", new: "three" } } }));
  const infos = body(await daemon.GET("/files/info", { params: { query: { path: [path] } } }));
  assert.equal(infos[path]?.size, "one three".length);
  assert.equal(infos[path]?.mode, 640);
  const whole = await daemon.GET("/files/download", { params: { query: { path } }, parseAs: "text" });
  assert.equal(body(whole), "one three");
  const part = await daemon.GET("/files/download", { params: { query: { path }, header: { Range: "bytes=4-" } }, parseAs: "text" });
  assert.equal(part.response.status, 206);
  assert.equal(body(part), "three");
  const found = body(await daemon.GET("/files/search", { params: { query: { path: "/tmp/typescript", pattern: "*.txt" } } }));
  assert.deepEqual(found.map((file) => file.path), [path]);
  const missing = await daemon.GET("/files/download", { params: { query: { path: "/tmp/typescript/none" } } });
  assert.equal(missing.response.status, 404);
  assert.equal(missing.error?.code, "FILE_NOT_FOUND");
}

/** Uploads one file. FormData keeps the order of its fields; the generated types know neither that nor a pair for each of several files. */
async function upload(baseUrl: string, headers: Record<string, string>, metadata: inside["schemas"]["UploadMetadata"], content: string): Promise<void> {
  const form = new FormData();
  form.append("metadata", JSON.stringify(metadata));
  form.append("file", new Blob([content]), "file");
  const answer = await fetch(`${baseUrl}/files/upload`, { method: "POST", headers, body: form });
  assert.equal(answer.status, 200, await answer.text());
}

await life();
