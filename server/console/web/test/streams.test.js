// What a browser has and Node.js does not is made here; the service is a scripted one.
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { after, test } from 'node:test';

let serve;
const server = createServer((request, response) => serve(request, response));
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
after(() => {
  server.closeAllConnections();
  server.close();
});
const origin = `http://127.0.0.1:${server.address().port}`;
const { fetch } = globalThis;
globalThis.fetch = (path, options) => fetch(new URL(path, origin), options);
globalThis.location = { href: origin };
globalThis.document = Object.assign(new EventTarget(), { hidden: false });

const { ApiError, events } = await import('../src/api.js');
const { attach } = await import('../src/attach.js');
const { readLog } = await import('../src/log.js');

/** A body of some pieces. */
const body = (pieces) => ReadableStream.from(pieces).pipeThrough(new TextEncoderStream());

test('events in pieces', async () => {
  const stream = 'id: 1\ndata: {"a":1}\n\n: ping\n\ndata: 2\nid: 2\n\ndata: "ü"\n\ndata: half';
  for (let size = 1; size < 9; size++) {
    const seen = [];
    for await (const event of events(body(stream.match(new RegExp(`.{1,${size}}`, 'gs'))))) seen.push(event);
    assert.deepEqual(seen, [{ id: '1', data: { a: 1 } }, { id: '2', data: 2 }, { id: undefined, data: 'ü' }]);
  }
});

test('a large event takes time in proportion to its length', async () => {
  const began = performance.now();
  function* pieces() {
    yield 'data: "';
    for (let at = 0; at < 64 << 20; at += 1 << 14) yield 'x'.repeat(1 << 14);
    yield '"\n\n';
  }
  for await (const { data } of events(body(pieces()))) assert.equal(data.length, 64 << 20);
  // A second or so; more than three minutes when each piece has the whole line read again. A timeout would not be noticed meanwhile.
  const took = performance.now() - began;
  assert.ok(took < 60_000, `${took} ms`);
});

test('an event without an end is an error, which is not repeated', async () => {
  function* pieces() {
    for (let at = 0; at < 100; at++) yield 'data:\n'.repeat(1 << 16);
  }
  const read = async () => {
    for await (const { id } of events(body(pieces()))) assert.fail(`event ${id}`);
  };
  await assert.rejects(read(), (error) => error instanceof ApiError && error.status === 413);
});

test('a log goes on when the service that ended it is back', async () => {
  const control = new AbortController();
  const follows = [];
  serve = (request, response) => {
    follows.push(new URL(request.url, origin).searchParams.get('follow'));
    response.write(`line ${follows.length}\n`);
    if (follows.length === 1) response.end(); // as a service does that stops
  };
  const shown = [];
  const options = { signal: control.signal, begin: () => shown.push(''), fail: assert.fail };
  const add = (text) => {
    shown[shown.length - 1] += text;
    if (shown.length === 2) control.abort();
  };
  await readLog('box', { ...options, over: false, add });
  assert.deepEqual([shown, follows], [['line 1\n', 'line 2\n'], ['true', 'true']]);
  follows.length = shown.length = 0;
  await readLog('box', { ...options, signal: new AbortController().signal, over: true, add });
  assert.deepEqual([shown, follows], [['line 1\n'], ['false']]);
});

test('a terminal that is left while its ticket is requested keeps no connection', { timeout: 20_000 }, async () => {
  const control = new AbortController();
  let signalOfTicket;
  globalThis.fetch = (path, { signal, ...options }) => { // the ticket comes all the same, as when the abort is late
    if (path.endsWith('/tickets')) signalOfTicket = signal;
    return fetch(new URL(path, origin), options);
  };
  serve = (request, response) => {
    if (request.url.endsWith('/tickets')) control.abort();
    response.end('{"running":true,"ticket":"t"}');
  };
  await new Promise((resolve, reject) => {
    globalThis.WebSocket = class {
      constructor() {
        setTimeout(() => reject(new Error('the connection is kept'))); // after what is done with it at once
      }

      close() {
        resolve();
      }
    };
    attach('box', 't', { size: () => ({ rows: 1, cols: 1 }) }, { signal: control.signal, onStatus: () => {} });
  });
  assert.equal(signalOfTicket, control.signal);
});
