import assert from "node:assert/strict";
import { type IncomingMessage, type ServerResponse, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, test } from "node:test";

import { Client, type Sandbox, SandboxError } from "@sandbox.internal/sdk";
// @ts-expect-error The package has no types.
import { WebSocket } from "ws";

/** What a create needs, so that it does not ask the service for its defaults. */
const complete = { timeout: 60, entrypoint: ["x"] };

type Handler = (request: IncomingMessage, response: ServerResponse) => void;
const servers: (() => void)[] = [];
after(() => servers.forEach((close) => close()));

/** A client of a server that answers as a test wants, and what the server was asked. */
async function clientOf(handler: Handler, options = {}): Promise<{ client: Client; asked: IncomingMessage[]; port: number }> {
  const asked: IncomingMessage[] = [];
  const server = createServer((request, response) => {
    asked.push(request);
    handler(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  servers.push(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  const url = `http://127.0.0.1:${port}/`;
  return { client: new Client({ url, apiKey: "secret", retryFor: 2_000, ...options }), asked, port };
}

function refuse(response: ServerResponse, status: number, code: string, headers = {}): void {
  response.writeHead(status, { "X-Request-ID": "r1", ...headers }).end(JSON.stringify({ code, message: "no\u001b[31m\n" }));
}

async function errorOf(work: Promise<unknown>): Promise<SandboxError> {
  const error: unknown = await work.then(() => assert.fail("it succeeded"), (reason: unknown) => reason);
  assert.ok(error instanceof SandboxError, String(error));
  return error;
}

test("errors have what the service said, without control characters", async () => {
  const { client, asked } = await clientOf((_, response) => refuse(response, 404, "SANDBOX_NOT_FOUND"));
  const error = await errorOf(client.get("a/b"));
  assert.deepEqual(
    [error.kind, error.status, error.code, error.requestId, error.message],
    ["not_found", 404, "SANDBOX_NOT_FOUND", "r1", "GET /v1/sandboxes/{id}: 404 SANDBOX_NOT_FOUND: no [31m ".replace("{id}", "a%2Fb")],
  );
  assert.equal(asked[0]?.headers["service-api-key"], "secret");
});

test("a redirect is not followed", async () => {
  const { client, asked } = await clientOf((_, response) => response.writeHead(307, { Location: "/elsewhere" }).end());
  assert.equal((await errorOf(client.get("a"))).kind, "protocol");
  assert.equal(asked.length, 1);
});

test("requests that may be repeated are, until the limit and not before Retry-After", async () => {
  let times = 0;
  const { client, asked } = await clientOf((request, response) => {
    times++;
    if (times === 1) return void request.socket.resetAndDestroy();
    if (times === 2) return refuse(response, 503, "SERVICE_UNAVAILABLE");
    if (times === 3) return refuse(response, 429, "RATE_LIMITED", { "Retry-After": "1" });
    if (times === 4) return void response.end(JSON.stringify({ id: "a" }));
    refuse(response, 429, "RATE_LIMITED", { "Retry-After": "60" });
  });
  const begin = Date.now();
  assert.equal((await client.get("a")).id, "a");
  assert.ok(Date.now() - begin >= 990, `it took ${Date.now() - begin} ms`);
  assert.equal(asked.length, 4);
  const error = await errorOf(client.get("a"));
  assert.deepEqual([error.kind, error.retryAfter, asked.length], ["rate_limited", 60, 5]);
});

test("what may have had an effect is not repeated, and a create carries one key", async () => {
  const { client, asked } = await clientOf((request, response) => {
    if (request.method === "DELETE") return void response.writeHead(204).end();
    if (asked.length % 2 === 1) return void request.socket.resetAndDestroy();
    refuse(response, 400, "INVALID_REQUEST_BODY");
  });
  const id = { path: { sandboxId: "a" } };
  assert.equal((await errorOf(client.api.json("post", "/v1/sandboxes/{sandboxId}/pause", id))).kind, "connection");
  assert.equal(asked.length, 1);
  asked.length = 0;
  assert.equal((await errorOf(client.create("image", complete))).kind, "invalid");
  const keys = asked.map(({ headers }) => headers["idempotency-key"]);
  assert.equal(keys.length, 2);
  assert.ok(keys[0]);
  assert.equal(keys[0], keys[1]);
});

test("what a daemon makes is repeated with its age, and not any more when it does not know", async () => {
  const work: ((sandbox: Sandbox) => Promise<unknown>)[] = [
    ({ commands }) => commands.start("true"),
    ({ commands }) => commands.run("true"),
    ({ code }) => code.run("1"),
    ({ code }) => code.contexts.create("python"),
    ({ terminals }) => terminals.create(),
  ];
  for (const make of work) {
    let times = 0;
    const { client, asked } = await clientOf((request, response) => {
      if (request.method === "GET") return void response.end(JSON.stringify({ id: "a", status: { state: "Running" } }));
      times++;
      if (times === 1) return refuse(response, 429, "RATE_LIMITED", { "Retry-After": "0" });
      if (times === 2) return void request.socket.resetAndDestroy();
      if (times === 3) return refuse(response, 502, "SANDBOX_NOT_ANSWERING");
      refuse(response, 409, "CONFLICT");
    });
    const sandbox = await client.connect("a");
    const begin = Date.now();
    assert.equal((await errorOf(make(sandbox))).kind, "conflict");
    const longest = Date.now() - begin + 1;
    const sent = asked.filter(({ method }) => method === "POST").map(({ headers }) => headers);
    assert.equal(new Set(sent.map((headers) => headers["idempotency-key"])).size, 1);
    assert.deepEqual(sent.slice(0, 2).map((headers) => headers["idempotency-age"]), [undefined, undefined]);
    const ages = sent.slice(2).map((headers) => headers["idempotency-age"]);
    assert.equal(ages.length, 2);
    assert.ok(ages.every((age) => /^[1-9][0-9]*$/.test(String(age))), String(ages));
    assert.ok(Number(ages[0]) < Number(ages[1]) && Number(ages[1]) <= longest, `${ages} of ${longest} ms`);
  }
});

test("what could not be sent has no age", async () => {
  const { client, asked } = await clientOf((_, response) => response.end(JSON.stringify({ id: "a", status: {} })));
  const closed = createServer();
  await new Promise<void>((resolve) => closed.listen(0, "127.0.0.1", resolve));
  const { port } = closed.address() as AddressInfo;
  await new Promise((resolve) => closed.close(resolve));
  let refused = 0;
  const send: typeof fetch = (input, init) => {
    if (init?.method === "POST" && refused++ < 2) return fetch(`http://127.0.0.1:${port}`, init);
    return fetch(input, init);
  };
  const other = new Client({ url: client.api.http.base, apiKey: "secret", fetch: send });
  await (await other.connect("a")).commands.start("true");
  assert.equal(refused, 3);
  assert.equal(asked.at(-1)?.headers["idempotency-age"], undefined);
});

test("an answer that does not come is a timeout, and an aborted call throws its reason", async () => {
  const { client } = await clientOf(() => undefined, { timeout: 50 });
  assert.equal((await errorOf(client.get("a"))).kind, "timeout");
  const reason = new Error("enough");
  await assert.rejects(client.get("a", { signal: AbortSignal.abort(reason) }), reason);
  const { client: patient } = await clientOf(() => undefined);
  const abort = new AbortController();
  const asked = patient.get("a", { signal: abort.signal });
  abort.abort(reason);
  await assert.rejects(asked, reason);
});

test("an aborted create returns soon when the service hangs, and deletes what it made when it does not", async (t) => {
  const limits: AbortController[] = []; // of what the client does after the abort: they end when the service hangs
  t.mock.method(AbortSignal, "timeout", (milliseconds: number) => {
    assert.ok(milliseconds <= 5_000);
    const limit = new AbortController();
    limits.push(limit);
    return limit.signal;
  });
  const moment = "2026-01-02T15:04:05Z";
  const status = { state: "Pending", reason: "", message: "", lastTransitionAt: moment };
  const created = { id: "box", status, metadata: {}, entrypoint: ["x"], expiresAt: moment, createdAt: moment };
  // How many requests are answered, and the first that is not is when the caller gives up.
  for (const [before, after] of [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]] as const) {
    const abort = new AbortController();
    let answers: number = before;
    const { client, asked } = await clientOf((request, response) => {
      if (answers-- > 0) {
        if (request.method === "POST") return void response.writeHead(202).end(JSON.stringify(created));
        return void response.writeHead(204).end();
      }
      if (abort.signal.aborted) return limits.forEach((limit) => limit.abort(new DOMException("over", "TimeoutError")));
      answers = after;
      abort.abort(new Error("enough"));
    }, { timeout: 600_000 });
    await assert.rejects(client.create("x", { ...complete, signal: abort.signal }), /enough/);
    const taken = before === 0 ? ["POST", "POST", "DELETE"].slice(0, after + 2) : ["POST", "GET", "DELETE"];
    assert.deepEqual(asked.map(({ method }) => method), taken);
  }
});

test("what was started by a call that was aborted before its answer is interrupted", async () => {
  for (const cut of [false, true]) { // whether the abort comes in the pause after a cut
    for (const [path, run] of [
      ["/command", (sandbox: Sandbox, signal: AbortSignal) => sandbox.commands.run("x", { signal })],
      ["/command", (sandbox: Sandbox, signal: AbortSignal) => sandbox.commands.start("x", { signal })],
      ["/code", (sandbox: Sandbox, signal: AbortSignal) => sandbox.code.run("1", { signal })],
    ] as const) {
      const abort = new AbortController();
      const stop = () => abort.abort(new Error("enough"));
      const { client, asked } = await clientOf((request, response) => {
        if (request.method !== "POST") return void response.end(JSON.stringify({ id: "a" }));
        if (!abort.signal.aborted) {
          if (!cut) return stop();
          if (asked.length === 3) { // the second attempt: there is a pause after it
            const end = request.socket.resetAndDestroy();
            return void end.on("close", () => setTimeout(stop));
          }
          return void request.socket.resetAndDestroy();
        }
        response.writeHead(200, { "Content-Type": "text/event-stream", "X-Command-ID": "c", "X-Execution-ID": "c" });
        response.flushHeaders(); // and it runs on
      });
      const sandbox = await client.connect("a");
      await assert.rejects(run(sandbox, abort.signal), /enough/);
      const posts = asked.filter(({ method }) => method === "POST");
      assert.equal(posts.length, cut ? 3 : 2);
      assert.equal(new Set(posts.map(({ headers }) => headers["idempotency-key"])).size, 1);
      assert.ok(Number(posts.at(-1)?.headers["idempotency-age"]) > 0);
      const last = asked.at(-1);
      assert.ok(last?.method === "DELETE" && last.url?.endsWith(`${path}?id=c`), `${last?.method} ${last?.url}`);
      const before = asked.length;
      await assert.rejects(run(sandbox, abort.signal), /enough/);
      assert.equal(asked.length, before); // it never began
    }
  }
});

test("what was sent of a write that was given up is not taken for other bytes", async () => {
  // How many bytes the daemon takes before the caller gives up.
  for (const takes of [0, 2, 6]) {
    const abort = new AbortController();
    let [text, closed] = ["", false];
    const { client } = await clientOf((request, response) => {
      const { pathname, searchParams } = new URL(request.url ?? "", "http://service");
      if (request.method === "GET") return void response.end(JSON.stringify({ id: "a", running: true }));
      if (!pathname.endsWith("/stdin")) return void response.end(JSON.stringify({ id: "c" }));
      const pieces: Buffer[] = [];
      request.on("data", (piece: Buffer) => pieces.push(piece));
      request.on("end", () => {
        const hangs = !abort.signal.aborted;
        const body = Buffer.concat(pieces).toString().slice(0, hangs ? takes : 4); // a pipe with little room
        text += body.slice(text.length - Number(searchParams.get("offset")));
        if (hangs) return abort.abort(new Error("enough"));
        closed = searchParams.has("end");
        response.end(JSON.stringify({ offset: text.length, closed }));
      });
    });
    const { stdin } = await (await client.connect("a")).commands.start("cat", { stdin: true });
    const first = new TextEncoder().encode("first\n");
    await assert.rejects(stdin.write(first, { signal: abort.signal }), /enough/);
    first.fill(0);
    await assert.rejects(stdin.write("never sent\n", { signal: abort.signal }), /enough/);
    await stdin.write("other\n");
    assert.equal(text, "first\nother\n", `${takes} bytes were taken`);
    await stdin.end();
    assert.ok(closed);
  }
});

test("an answer that is no JSON, and one without an end, are errors of the protocol", async () => {
  const { client } = await clientOf((_, response) => response.end("<html>"));
  assert.equal((await errorOf(client.get("a"))).kind, "protocol");
  const piece = Buffer.alloc(1 << 20, " ");
  const { client: flooded } = await clientOf((_, response) => {
    const more = () => {
      while (!response.destroyed && response.write(piece));
    };
    response.on("drain", more);
    more();
  });
  const error = await errorOf(flooded.get("a"));
  assert.equal(error.kind, "protocol");
  assert.match(error.message, /longer than/);
});

test("a log that was cut is compared with what had arrived, and a gap is an error", async () => {
  const logs = ["one\ntwo\n", "one\ntwo\nthree\n", "two\nthree\nfour\n"];
  const { client } = await clientOf((request, response) => {
    if (!request.url?.includes("/logs")) return void response.end(JSON.stringify({ id: "a", status: { state: "Running" } }));
    response.write(logs.shift() ?? "", () => request.socket.destroySoon()); // before its end
  });
  const sandbox = await client.connect("a");
  let seen = "";
  const follow = async (options = {}) => {
    for await (const piece of sandbox.logs({ follow: true, ...options })) seen += Buffer.from(piece).toString();
  };
  assert.equal((await errorOf(follow())).kind, "stream");
  assert.equal(seen, "one\ntwo\nthree\n");
  logs.push("one\n");
  assert.equal((await errorOf(follow({ tail: 1 }))).kind, "stream");
});

test("a log that is not followed and has become shorter has a gap", async () => {
  for (const rest of ["two\n", ""]) {
    const logs: (string | [string, "cut"])[] = [["one\ntwo\n", "cut"], rest];
    const short: LogServer = { followed: [], states: ["Running"], kept: logs };
    assert.deepEqual(await followed(short, { follow: false }), ["one\ntwo\n", "stream"]);
  }
  const whole: LogServer = { followed: [], states: ["Running"], kept: [["one\n", "cut"], "one\ntwo\n"] };
  assert.deepEqual(await followed(whole, { follow: false }), ["one\ntwo\n"]);
});

test("the log of a command says what is missing", async () => {
  const { client } = await clientOf((request, response) => {
    if (!request.url?.includes("/command/")) return void response.end(JSON.stringify({ id: "a", status: { state: "Running" } }));
    if (!request.url.includes("/logs")) return void response.end(JSON.stringify({ id: "c", running: false }));
    response.setHeader("EXECD-COMMANDS-TAIL-CURSOR", "0").setHeader("EXECD-COMMANDS-DROPPED-BYTES", "4096").end("one\n");
  });
  const command = await (await client.connect("a")).commands.connect("c");
  assert.deepEqual(await command.logs(), { text: "one\n", cursor: 0, dropped: 4096 });
});

/** What a service answers to those who read the log of a sandbox. */
interface LogServer {
  /** What each connection for a followed log brings; "cut" after it breaks the connection off. */
  followed: (string | [string, "cut"])[];
  /** What the service says about the state, the last from then on; it is away where it is "cut". */
  states: string[];
  /** What it answers when it is asked for the log that is kept: the log, as above, or a status. */
  kept: (string | [string, "cut"] | number)[];
}

/** Follows a log to its end and returns what arrived, and the kind of the error if there is one. */
async function followed(server: LogServer, options = {}): Promise<[string, string?]> {
  const { followed, states, kept } = server;
  let connected = false;
  const { client } = await clientOf((request, response) => {
    const url = new URL(request.url ?? "", "http://service");
    if (!url.pathname.endsWith("/logs")) {
      const state = connected ? (states.length > 1 ? states.shift() : states[0]) : "Running";
      if (state === "cut") return void request.socket.resetAndDestroy();
      return void response.end(JSON.stringify({ id: "a", status: { state } }));
    }
    connected = true;
    const wanted = url.searchParams.get("follow") === "true" ? followed : kept;
    const early = wanted === kept && states.length > 1; // nothing is kept before the end
    const next = early ? "" : wanted.shift();
    if (typeof next === "number") return refuse(response, next, "NO_LOG");
    if (!Array.isArray(next)) return void response.end(next);
    response.write(next[0], () => request.socket.destroySoon()); // before its end
  });
  const sandbox = await client.connect("a");
  let seen = "";
  try {
    const log = sandbox.logs({ follow: true, ...options });
    for await (const piece of log) seen += Buffer.from(piece).toString();
    return [seen];
  } catch (error) {
    assert.ok(error instanceof SandboxError, String(error));
    return [seen, error.kind];
  }
}

test("a followed log has what was printed after the service ended it, up to the end", async () => {
  const ended = { followed: ["one\n"], states: ["cut", "Terminated"] };
  assert.deepEqual(await followed({ ...ended, kept: ["one\ntwo\n"] }), ["one\ntwo\n"]);
  const ending = { followed: ["one\n"], states: ["Stopping", "Stopping", "Terminated"] };
  assert.deepEqual(await followed({ ...ending, kept: ["one\ntwo\n"] }), ["one\ntwo\n"]);
  // While the container is removed there is no log; until then, there is more than is kept at last.
  const long = "line\n".repeat(50_000);
  const failed = { followed: [long.slice(0, 200_001)], states: ["Failed"], kept: [500, 503, long] };
  assert.deepEqual(await followed(failed), [long]);
});

test("a followed log ends where what is kept of it ends, else it has a gap", async () => {
  const states = ["Terminated"];
  const long = Array.from({ length: 100 }, (_, at) => `${at}`.padEnd(1_000) + "\n").join("");
  const end = long.slice(-(64 << 10));
  assert.deepEqual(await followed({ followed: [long], states, kept: [end] }), [long]);
  const begin = long.slice(0, -1_000);
  assert.deepEqual(await followed({ followed: [begin], states, kept: [end] }), [begin, "stream"]);
  const other = { followed: ["two\n"], states, kept: ["one\ntwo\n"] };
  assert.deepEqual(await followed(other), ["two\n", "stream"]);
  // That the last lines are like those that arrived says nothing: there may have been any number.
  const same = { states, kept: ["y\n".repeat(1_000)] };
  assert.deepEqual(await followed({ followed: ["y\n"], ...same }), ["y\n", "stream"]);
  same.kept = [`${"y\n".repeat(999)}y`];
  assert.deepEqual(await followed({ followed: ["y\n"], ...same }), ["y\n", "stream"]);
  // Nor does it after a cut.
  const lines = "y\n".repeat(1_000);
  const cut: LogServer = { followed: [["y\n", "cut"], lines], states, kept: [lines] };
  assert.deepEqual(await followed(cut), ["y\n", "stream"]);
  // When nothing is kept, only what was cut is known to lack something.
  const lost: LogServer = { followed: [["y\n", "cut"], "y\n"], states, kept: [409] };
  assert.deepEqual(await followed(lost), ["y\n", "stream"]);
  assert.deepEqual(await followed({ followed: ["one\n"], states, kept: [409] }), ["one\n"]);
});

test("a log that began with its last lines ends with them", async () => {
  const states = ["Terminated"];
  const last = { followed: ["two\n"], states, kept: ["one\ntwo\n"] };
  assert.deepEqual(await followed(last, { tail: 1 }), ["two\n"]);
  const same = { followed: ["y\n"], states, kept: ["y\nx\ny\n"] };
  assert.deepEqual(await followed(same, { tail: 1 }), ["y\n"]);
  const lost = { followed: ["two\n"], states, kept: ["one\ntwo\nthree\n"] };
  assert.deepEqual(await followed(lost, { tail: 1 }), ["two\n", "stream"]);
});

test("results and notices are kept up to maxOutput, and callbacks get all of them", async () => {
  const text = "x".repeat(1_000);
  const event = (id: number, fields: object) => `id: ${id}\ndata: ${JSON.stringify(fields)}\n\n`;
  const { client } = await clientOf((request, response) => {
    if (request.method === "GET") return void response.end(JSON.stringify({ id: "a", status: {} }));
    response.writeHead(200, {
      "Content-Type": "text/event-stream", "X-Execution-ID": "e", "X-Command-ID": "c",
    });
    for (let id = 1; id <= 6; id++) {
      const result = { type: "result", results: { "text/plain": text } };
      const isResult = id % 2 === 1 && request.url?.endsWith("/code");
      response.write(event(id, isResult ? result : { type: "status", text }));
    }
    response.end(event(7, { type: "execution_complete", exit_code: 0 }));
  });
  const sandbox = await client.connect("a");
  let came = 0;
  const onResult = () => void came++;
  const few = await sandbox.code.run("1", { maxOutput: 2_500, onResult });
  assert.deepEqual([few.results.length, few.notices.length, few.truncated, came], [2, 2, true, 3]);
  const all = await sandbox.code.run("1", { maxOutput: 5_000 });
  assert.deepEqual([all.results.length, all.notices.length, all.truncated], [3, 3, false]);
  const command = await sandbox.commands.run("true", { maxOutput: 2_500 });
  assert.deepEqual([command.notices.length, command.truncated], [2, true]);
  assert.equal((await sandbox.commands.run("true")).notices.length, 6);
});

test("an event without an end is an error of the protocol, and nothing is resumed", async () => {
  const piece = "data:\n".repeat(1 << 16);
  let left = 100; // pieces: without a limit the client would take them all, and wait for the next
  const { client, asked } = await clientOf((_, response) => {
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    const more = () => {
      while (left-- > 0 && !response.destroyed && response.write(piece));
      if (left < 0) response.end();
    };
    response.on("drain", more);
    more();
  }, { resumeFor: 300 });
  const read = async () => {
    for await (const { id } of client.events()) assert.fail(`event ${id}`);
  };
  assert.equal((await errorOf(read())).kind, "protocol");
  assert.equal(asked.length, 1);
});

test("a list has each sandbox once, whatever leaves it between its pages", async () => {
  let there = Array.from({ length: 250 }, (_, at) => `box-${at}`);
  const [all, others] = [there, there.slice(0, 2)];
  const end = (id: string | undefined) => (there = there.filter((other) => other !== id));
  const { client } = await clientOf((request, response) => {
    const query = new URL(request.url ?? "", "http://service").searchParams;
    const [page, pageSize] = [Number(query.get("page")), Number(query.get("pageSize"))];
    if (page > 1) end(others.shift()); // one of a page that was read
    const items = there.slice((page - 1) * pageSize, page * pageSize);
    const pagination = { totalItems: there.length, hasNextPage: page * pageSize < there.length };
    const createdAt = (id: string) => new Date(-1_000 * all.indexOf(id)).toISOString();
    response.end(JSON.stringify({ items: items.map((id) => ({ id, createdAt: createdAt(id) })), pagination }));
  });
  const seen: string[] = [];
  for await (const { id } of client.list({ state: "Running" })) {
    seen.push(id);
    end(id); // as when it is deleted
  }
  assert.deepEqual(seen, all);
});

test("only what the service itself says about it is missing", async () => {
  let code = "SANDBOX_NOT_FOUND";
  const { client } = await clientOf((request, response) => {
    if (request.url === "/v1/sandboxes/a" && request.method === "GET") return void response.end(JSON.stringify({ id: "a" }));
    if (code !== "") return refuse(response, 404, code);
    response.writeHead(404).end("<html>"); // a proxy on the way
  });
  const sandbox = await client.connect("a");
  assert.equal((await errorOf(sandbox.files.exists("x"))).code, "SANDBOX_NOT_FOUND");
  await sandbox.delete();
  code = "FILE_NOT_FOUND";
  assert.equal(await sandbox.files.exists("x"), false);
  code = "";
  assert.equal((await errorOf(sandbox.files.exists("x"))).kind, "not_found");
  assert.equal((await errorOf(sandbox.delete())).kind, "not_found");
});

test("a terminal whose WebSocket is refused is not attached to for ever", async () => {
  const answer = { id: "a", signature: "1.x" }; // to everything, handshakes too
  const { client, asked } = await clientOf((_, response) => response.end(JSON.stringify(answer)), { webSocket: WebSocket });
  const terminal = await (await client.connect("a")).terminals.connect("t");
  const error = await errorOf(terminal.attach());
  assert.equal(error.kind, "connection");
  assert.match(error.message, /refused: Unexpected server response: 200/);
  const handshakes = asked.filter(({ headers }) => headers.upgrade === "websocket");
  assert.equal(handshakes.length, 5);
  assert.match(handshakes[0]?.url ?? "", /\/proxy\/44772\/pty\/t\/attach\?sandbox-signature=1\.x$/);
});

test("a stream that cannot be resumed fails, and says so", async () => {
  const { client, asked } = await clientOf(
    (request, response) => {
      if (asked.length > 1) return void request.socket.resetAndDestroy();
      response.writeHead(200, { "Content-Type": "text/event-stream" });
      response.write('id: 7\ndata: {"type":"reset","timestamp":"2026-01-02T15:04:05Z"}\n\nid: 8\ndata: {"ty', () =>
        request.socket.destroySoon(),
      );
    },
    { resumeFor: 300 },
  );
  const seen: number[] = [];
  const read = async () => {
    for await (const { id } of client.events({ after: 5 })) seen.push(id);
  };
  assert.equal((await errorOf(read())).kind, "stream");
  assert.deepEqual(seen, [7]);
  assert.ok(asked.length > 2, `${asked.length} requests`);
  assert.ok(asked.slice(1).every(({ headers }) => headers["last-event-id"] === "7"));
});

test("an empty network policy is refused before it is sent", async () => {
  const { client, asked } = await clientOf((_, response) => response.end("{}"));
  for (const networkPolicy of [{}, { egress: [] }, { dryRun: true }]) {
    const error = await errorOf(client.create("image", { networkPolicy }));
    assert.equal(error.kind, "invalid");
    assert.match(error.message, /networkPolicy: must have a defaultAction or egress rules/);
  }
  assert.equal(asked.length, 0);
});

test("what a create leaves out has the service's default, which is asked for once", async () => {
  const idle = ["/opt/sandbox/execd-init", "idle"]; // in every sandbox
  const own = { image: "own:1", timeout: 70, entrypoint: ["own"], resourceLimits: { cpu: "1" } };
  for (const [status, answer, defaults] of [
    [200, { defaults: own }, own],
    [200, {}, { timeout: 3_600, entrypoint: idle }], // of a service that publishes none
    [404, { code: "NOT_FOUND", message: "no" }, { timeout: 3_600, entrypoint: idle }],
  ] as const) {
    const bodies: unknown[] = [];
    const { client, asked } = await clientOf((request, response) => {
      if (request.method === "GET") {
        return void response.writeHead(status).end(JSON.stringify(answer));
      }
      let body = "";
      request.on("data", (piece: Buffer) => (body += piece.toString()));
      request.on("end", () => {
        bodies.push(JSON.parse(body));
        refuse(response, 400, "INVALID");
      });
    });
    const image = "image" in defaults ? defaults.image : undefined;
    assert.match((await errorOf(client.create())).message, image ? /INVALID/ : /no default one/);
    await errorOf(client.create("x"));
    await errorOf(client.create("x", { imageEntrypoint: true }));
    await errorOf(client.create("x", complete));
    const { timeout, entrypoint } = defaults;
    assert.deepEqual(bodies, [
      ...(image ? [{ image: { uri: image }, timeout, entrypoint, resourceLimits: {} }] : []),
      { image: { uri: "x" }, timeout, entrypoint, resourceLimits: {} },
      { image: { uri: "x" }, timeout, imageEntrypoint: true, resourceLimits: {} },
      { image: { uri: "x" }, ...complete, resourceLimits: {} },
    ]);
    const gets = asked.filter(({ method }) => method === "GET");
    assert.deepEqual(gets.map(({ url }) => url), ["/v1/version"]);
  }
  const { client, asked } = await clientOf((_, response) => refuse(response, 400, "INVALID"));
  await errorOf(client.create("x", complete));
  assert.deepEqual(asked.map(({ method }) => method), ["POST"]); // it leaves nothing out
});

test("a create that is aborted while it asks for the defaults makes nothing", async () => {
  const abort = new AbortController();
  const { client, asked } = await clientOf(() => abort.abort(new Error("enough")));
  await assert.rejects(client.create("x", { signal: abort.signal }), /enough/);
  assert.deepEqual(asked.map(({ method, url }) => `${method} ${url}`), ["GET /v1/version"]);
});

test("each failure of a connection has its own words", async () => {
  const plain = await clientOf((_, response) => response.end("{}"));
  const failing = (code: string, message = "") => () => Promise.reject(new TypeError("fetch failed", { cause: Object.assign(new Error(message), { code }) }));
  const says = async (code: string, message?: string) => {
    let times = 0;
    const reject = failing(code, message);
    const client = new Client({ url: "https://service.example", retryFor: 300, fetch: () => (times++, reject()) });
    return { message: (await errorOf(client.get("a"))).message, times };
  };
  for (const code of ["DEPTH_ZERO_SELF_SIGNED_CERT", "CERT_HAS_EXPIRED", "ERR_TLS_CERT_ALTNAME_INVALID", "UNABLE_TO_VERIFY_LEAF_SIGNATURE"]) {
    const got = await says(code);
    assert.match(got.message, /the certificate of the server is not trusted: it/);
    assert.equal(got.times, 1, code);
  }
  assert.match((await says("ERR_SSL_WRONG_VERSION_NUMBER")).message, /the URL should begin with http:/);
  assert.match((await says("ECONNREFUSED", "connect ECONNREFUSED 127.0.0.1:9")).message, /ECONNREFUSED/);
  const several = new AggregateError([new Error("connect ECONNREFUSED ::1:9"), new Error("connect ECONNREFUSED 127.0.0.1:9")]);
  const client = new Client({ url: "http://localhost:9", retryFor: 0, fetch: () => Promise.reject(new TypeError("fetch failed", { cause: several })) });
  assert.match((await errorOf(client.get("a"))).message, /ECONNREFUSED ::1:9; connect ECONNREFUSED 127/);
  // A real one: TLS to a server without it.
  const url = `https://127.0.0.1:${plain.port}`;
  assert.match((await errorOf(new Client({ url, retryFor: 0 }).get("a"))).message, /the URL should begin with http:/);
});

test("modes are strings of octal digits", async () => {
  const sent: string[] = [];
  const { client } = await clientOf((request, response) => {
    const pieces: Buffer[] = [];
    request.on("data", (piece: Buffer) => pieces.push(piece)).on("end", () => {
      if (request.method === "GET") return void response.end(JSON.stringify({ id: "a", status: { state: "Running" } }));
      sent.push(Buffer.concat(pieces).toString());
      response.end("{}");
    });
  });
  const { files } = await client.connect("box");
  await files.write("/a", "", { mode: "0640" });
  await files.makeDirectory("/b", { mode: "4755" });
  await files.setPermissions({ "/c": { mode: "0" }, "/d": { owner: "1000" } });
  assert.match(sent[0] ?? "", /\{"path":"\/a","mode":640\}/);
  assert.deepEqual(sent.slice(1).map((body) => JSON.parse(body) as unknown),
    [{ "/b": { mode: 4755 } }, { "/c": { mode: 0 }, "/d": { owner: "1000" } }]);
  for (const wrong of ["u+x", "999", "", "07555", "0o644", "644\n", 644, 0o644, null]) {
    const mode = wrong as string;
    for (const work of [
      files.write("/a", "", { mode }),
      files.writeAll([{ path: "/a", content: "" }, { path: "/b", content: "", mode }]),
      files.makeDirectory("/b", { mode }),
      files.setPermissions({ "/c": { mode } }),
    ]) {
      const error = await errorOf(work);
      assert.equal(error.kind, "invalid");
      assert.match(error.message, /^mode: must be a string of one to four octal digits, such as "644" or "0755", not /);
    }
  }
  assert.equal(sent.length, 3);
});
