// The connection of a terminal on the page to one in a sandbox.
import { ApiError, call, daemon, pause, socket } from './api.js';

const largest = 32 * 1024; // bytes of a message
const mostInput = 1 << 20; // bytes that wait while there is no connection

/**
 * attach connects to a terminal until the signal aborts or the terminal has ended, and reconnects whenever the connection is cut. The
 * daemon then replays what was missed, and what was typed meanwhile is sent.
 *
 * @returns {{input: (bytes: Uint8Array) => void, resize: (rows: number, cols: number) => void}}
 */
export function attach(id, terminal, view, { signal, onStatus }) {
  let connection;
  let waiting = [];
  let size = view.size();
  const ready = () => connection?.readyState === WebSocket.OPEN;
  const sendSize = () => connection.send(JSON.stringify({ type: 'resize', ...size }));
  const path = daemon(id, `/pty/${terminal}`);

  // once returns true when the terminal has ended, and false when the connection is to be made again.
  const once = async () => {
    const { running, exit_code: code } = await call('GET', path, undefined, { signal });
    connection = await socket(`${path}/attach`, signal);
    if (signal.aborted) {
      connection.close();
      return false;
    }
    connection.binaryType = 'arraybuffer';
    let ended = !running && { code };
    let past = 0; // bytes of a replay that are still to come
    return new Promise((resolve) => {
      const abort = () => connection.close();
      signal.addEventListener('abort', abort, { once: true });
      connection.onopen = () => {
        if (running) sendSize();
        waiting.forEach((part) => connection.send(part));
        waiting = [];
        onStatus({ live: true });
      };
      connection.onmessage = ({ data }) => {
        if (typeof data === 'string') {
          const news = JSON.parse(data);
          if (news.type === 'replay') {
            if (past > 0) view.replayed();
            past = news.bytes;
            view.replay();
            if (past === 0) view.replayed();
          } else if (news.type === 'exit') {
            ended = { code: news.exit_code };
          }
          return;
        }
        view.write(new Uint8Array(data));
        if (past > 0 && (past -= data.byteLength) <= 0) view.replayed();
      };
      connection.onclose = ({ code: reason }) => {
        signal.removeEventListener('abort', abort);
        if (past > 0) view.replayed();
        resolve(reason === 1000 && ended);
      };
    });
  };

  const keep = async () => {
    for (let wait = 250; !signal.aborted; wait = Math.min(wait * 2, 5000)) {
      try {
        const began = Date.now();
        const ended = await once();
        if (signal.aborted) return;
        if (ended) {
          onStatus({ ended });
          return;
        }
        if (Date.now() - began > 10_000) wait = 250;
        onStatus({ live: false });
      } catch (error) {
        if (signal.aborted) return;
        onStatus({ live: false, error });
        if (error instanceof ApiError && error.status === 404) return;
        if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429 && error.status !== 409) return;
      }
      await pause(wait, signal);
    }
  };
  keep().catch(() => {});

  return {
    input(bytes) {
      for (let at = 0; at < bytes.length; at += largest) {
        const part = bytes.slice(at, at + largest);
        if (ready()) connection.send(part);
        else if (waiting.reduce((sum, { length }) => sum + length, part.length) <= mostInput) waiting.push(part);
      }
    },
    resize(rows, cols) {
      size = { rows, cols };
      if (ready()) sendSize();
    },
  };
}
