import assert from "node:assert/strict";
import { randomBytes, randomUUID } from "node:crypto";
import { afterEach, test } from "node:test";
import { inspect } from "node:util";

import { Client, type ClientOptions, SandboxError } from "@sandbox.internal/sdk";

import { busybox, variable } from "../support.js";

const variables = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"].flatMap((name) => [name, name.toLowerCase()]);
const clear = () => variables.forEach((name) => delete process.env[name]);
clear();
afterEach(clear);

/** The URL of the proxy, which has TLS itself or not. */
function proxied(tls: boolean, password = variable("PROXY_PASSWORD")): string {
  const url = new URL(variable(tls ? "PROXY_TLS_URL" : "PROXY_URL"));
  return `${url.protocol}//${variable("PROXY_USER")}:${encodeURIComponent(password)}@${url.host}`;
}

/** What the proxy has seen of a host. */
async function counts(host: string): Promise<{ requests: number; connects: number; refused: number; leaked: number }> {
  return (await (await fetch(`${variable("PROXY_URL")}/counts?host=${host}`)).json()) as never;
}

/** A client that finds a proxy in the environment. */
function clientWith(environment: Record<string, string>, url: string, options: ClientOptions = {}): Client {
  Object.assign(process.env, environment);
  try {
    return new Client({ url, ...options });
  } finally {
    clear();
  }
}

const ask = (client: Client) => client.api.json("get", "/v1/version", {});

/** The error of a request: it has no password, and is not tried again. */
async function errorOf(client: Client): Promise<string> {
  const error: unknown = await ask(client).then(() => assert.fail("it succeeded"), (reason: unknown) => reason);
  assert.ok(error instanceof SandboxError && error.kind === "connection", inspect(error));
  assert.doesNotMatch(inspect([error, client], { depth: 9 }), /secret/);
  return error.message;
}

/** Requests of every kind. */
async function use(client: Client): Promise<void> {
  await using sandbox = await client.create(busybox);
  const command = await sandbox.commands.start("echo one; read x; echo two$x", { stdin: true });
  let seen = "";
  for await (const event of command) {
    if (event.type !== "stdout") continue;
    seen += new TextDecoder().decode(event.bytes);
    if (seen === "one\n") await command.stdin.write("3\n"); // the command waits for it
  }
  assert.equal(seen, "one\ntwo3\n");
  const content = new Uint8Array(randomBytes(3 << 20));
  await sandbox.files.write("/tmp/file", content);
  assert.deepEqual(await sandbox.files.read("/tmp/file"), content);
  const pieces = new Blob([content]).stream() as unknown as ReadableStream<Uint8Array>;
  await sandbox.files.write("/tmp/streamed", pieces);
  assert.deepEqual(await sandbox.files.read("/tmp/streamed"), content);
  await using terminal = await (await sandbox.terminals.create({ command: "sh" })).attach();
  await terminal.write("exit 7\n");
  let code: number | null | undefined;
  for await (const event of terminal) if (event.type === "exit") code = event.exitCode;
  assert.equal(code, 7);
}

for (const scheme of ["http", "https"]) {
  for (const tls of [false, true]) {
    test(`everything goes to ${scheme} through a proxy ${tls ? "with" : "without"} TLS`, { timeout: 120_000 }, async () => {
      const host = `${randomUUID()}.sandbox.test`;
      await use(clientWith({ [`${scheme.toUpperCase()}_PROXY`]: proxied(tls) }, `${scheme}://${host}`));
      const seen = await counts(host);
      assert.deepEqual([seen.refused, seen.leaked], [0, 0]);
      assert.ok(seen.connects >= 1, inspect(seen)); // the WebSocket is one of them
      assert.equal(seen.requests > 5, scheme === "http" && !tls, inspect(seen));
    });
  }
}

test("an option wins over the environment", { timeout: 60_000 }, async () => {
  const host = `${randomUUID()}.sandbox.test`;
  await ask(clientWith({ HTTP_PROXY: "http://127.0.0.1:1", NO_PROXY: "*" }, `http://${host}`, { proxy: proxied(false) }));
  assert.equal((await counts(host)).requests, 1);
  const direct = clientWith({ HTTP_PROXY: proxied(false) }, `http://${host}`, { proxy: false, retryFor: 0 });
  assert.match(await errorOf(direct), /getaddrinfo/);
  assert.equal((await counts(host)).requests, 1);
  assert.throws(() => new Client({ fetch, proxy: false }), /proxy: must not be given together with fetch/);
});

test("ALL_PROXY is for both, and NO_PROXY and this machine are left out", { timeout: 60_000 }, async () => {
  const host = `${randomUUID()}.sandbox.test`;
  for (const scheme of ["http", "https"]) await ask(clientWith({ all_proxy: proxied(false) }, `${scheme}://${host}`));
  const before = await counts(host);
  assert.deepEqual([before.requests, before.connects], [1, 1]);
  for (const NO_PROXY of ["sandbox.test", "x, .sandbox.test:80", "*"]) {
    const direct = clientWith({ HTTP_PROXY: proxied(false), NO_PROXY }, `http://${host}`, { retryFor: 0 });
    assert.match(await errorOf(direct), /getaddrinfo/);
  }
  await ask(clientWith({ HTTP_PROXY: "http://127.0.0.1:1" }, variable("SANDBOX_URL")));
  assert.deepEqual(await counts(host), before);
});

test("a proxy that refuses is an error that says so, at once", { timeout: 60_000 }, async () => {
  const host = `${randomUUID()}.sandbox.test`;
  const patient = { retryFor: 600_000 };
  for (const scheme of ["http", "https"]) {
    for (const tls of [false, true]) {
      const said = await errorOf(clientWith({ ALL_PROXY: proxied(tls, "secret") }, `${scheme}://${host}`, patient));
      assert.match(said, /: the proxy https?:\/\/127\.0\.0\.1:\d+ of ALL_PROXY refused the request: 407 Proxy Authentication Required: the user or password in ALL_PROXY is missing or wrong$/);
    }
  }
  assert.deepEqual(await counts(host), { requests: 0, connects: 0, refused: 4, leaked: 0 });
  assert.match(await errorOf(clientWith({ ALL_PROXY: proxied(false) }, "https://elsewhere.test", patient)), /of ALL_PROXY refused the request: 403$/);
  const away = clientWith({ HTTPS_PROXY: "http://127.0.0.1:1" }, `https://${host}`, { retryFor: 0 });
  assert.match(await errorOf(away), /the proxy http:\/\/127\.0\.0\.1:1 of HTTPS_PROXY cannot be reached: /);
});
