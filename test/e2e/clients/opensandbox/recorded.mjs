// Compares answers of the service with those that OpenSandbox gives, field by field: recorded.json has them, as its contracts and tests have
// them. $text, $number and $time stand for a value of that kind; every other value, and which fields there are, must be the same. {ID} and the like stand for what an earlier answer had.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

const kinds = {
  $text: (value) => typeof value === "string" && value !== "",
  $number: (value) => typeof value === "number",
  $time: (value) => typeof value === "string" && !Number.isNaN(Date.parse(value)),
};

function compare(got, want, at) {
  if (typeof want === "string" && want in kinds) {
    assert.ok(kinds[want](got), `${at}: ${JSON.stringify(got)} is no ${want}`);
  } else if (want !== null && typeof want === "object") {
    assert.ok(got !== null && typeof got === "object" && Array.isArray(got) === Array.isArray(want), `${at}: ${JSON.stringify(got)}`);
    assert.deepEqual(Object.keys(got).sort(), Object.keys(want).sort(), `the fields of ${at}`);
    for (const name of Object.keys(want)) compare(got[name], want[name], `${at}.${name}`);
  } else {
    assert.equal(got, want, at);
  }
}

// events returns the events of a stream, but for those that keep it alive.
const events = (text) => text.split("\n").filter((line) => line.startsWith("data: ")).map((line) => JSON.parse(line.slice(6)))
  .filter((event) => event.type !== "ping");

export async function compareWithRecorded(domain, key, image) {
  const names = { IMAGE: image, ARCH: { x64: "amd64" }[process.arch] ?? process.arch };
  const put = (text) => Object.entries(names).reduce((done, [name, value]) => done.replaceAll(`{${name}}`, value), text);
  let daemon = {};
  for (const recorded of JSON.parse(readFileSync(new URL("recorded.json", import.meta.url), "utf8"))) {
    const filled = JSON.parse(put(JSON.stringify(recorded)));
    const [method, path] = filled.ask.split(" ");
    const headers = path.startsWith("/") ? {} : { ...daemon };
    const presented = "key" in filled ? filled.key : key;
    if (presented) headers["OPEN-SANDBOX-API-KEY"] = presented;
    if (filled.body) headers["Content-Type"] = "application/json";
    const ask = () => fetch(path.startsWith("/") ? `http://${domain}${path}` : path,
      { method, headers, body: filled.body && JSON.stringify(filled.body), signal: AbortSignal.timeout(60_000) });
    let response = await ask();
    let text = await response.text();
    for (const deadline = Date.now() + 60_000; filled.until && Object.entries(filled.until).some(([name, value]) => JSON.parse(text)[name] !== value);) {
      assert.ok(Date.now() < deadline, `${filled.name}: after a minute it is ${text}`);
      response = await ask();
      text = await response.text();
    }
    assert.equal(response.status, filled.status, `${filled.name}: ${text}`);
    assert.ok(response.headers.get("X-Request-ID"), `${filled.name}: no X-Request-ID`);
    if (filled.answer !== undefined) compare(JSON.parse(text), filled.answer, filled.name);
    if (filled.text !== undefined) assert.equal(text, filled.text, filled.name);
    if (filled.names) assert.ok(JSON.parse(text).message.includes(filled.names), `${filled.name}: ${text}`);
    for (const [name, value] of Object.entries(filled.headers ?? {})) assert.equal(response.headers.get(name), value, `${filled.name}: ${name}`);
    if (filled.stream) {
      assert.deepEqual(events(text).map((event) => event.type), filled.stream, `${filled.name}: ${text}`);
      if (filled.stdout) assert.deepEqual(events(text).filter((event) => event.type === "stdout").map((event) => event.text), filled.stdout, filled.name);
    }
    // What later requests name.
    if (filled.as === "sandbox") names.ID = JSON.parse(text).id;
    if (filled.as === "command") names.COMMAND = events(text)[0].text;
    if (filled.as === "execd") {
      names.EXECD = `http://${JSON.parse(text).endpoint}`;
      daemon = JSON.parse(text).headers;
    }
  }
}
