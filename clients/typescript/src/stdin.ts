import { SandboxError, clean, isKind } from "./errors.js";
import { type CallOptions, mayHaveArrived } from "./http.js";
import type { Inside } from "./inside.js";
import { Pauses } from "./pauses.js";
import { parseObject } from "./resume.js";
import { type FileContent, piecesOfAll } from "./upload.js";

/** How many bytes one request has at most. */
const piece = 256 << 10;

/** How far the standard input of a command is. */
interface State {
  offset: number;
  closed: boolean;
}

/**
 * The standard input of a command. One call at a time: a write resolves when the command's pipe has taken
 * the bytes, so a slow command slows its writer down. A request whose connection was cut is sent again,
 * and its bytes arrive once. After one that was given up, such as by its signal, it is not known which of
 * its at most 256 KiB the command has: the next call sends it to its end first. So do not write them again.
 */
export class Stdin {
  #closed = false;
  /** What was sent last, from the offset on, when there was no answer that says how much of it was taken. */
  #pending: Uint8Array = new Uint8Array();

  /** @param offset - How many bytes were written before. */
  constructor(
    private readonly inside: Inside,
    private readonly id: string,
    private offset: number,
  ) {}

  /** Writes text, as UTF-8, or bytes. `closed` when the command has closed its standard input or has ended. */
  async write(data: string | Uint8Array, options: CallOptions = {}): Promise<void> {
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
    for (let at = 0; at < bytes.length; at += piece) {
      await this.#send(bytes.subarray(at, at + piece), false, options);
    }
  }

  /** Closes it: the command reads an end of file. Once it is closed, nothing happens. */
  async end(options: CallOptions = {}): Promise<void> {
    if (this.#closed) return;
    try {
      await this.#send(new Uint8Array(), true, options);
    } catch (error) {
      if (!isKind(error, "closed")) throw error;
    }
  }

  /** Writes all of a content and ends. Succeeds when the command reads no further. */
  async feed(content: FileContent, options: CallOptions): Promise<void> {
    try {
      for await (const bytes of piecesOfAll(content)) await this.write(bytes, options);
      await this.end(options);
    } catch (error) {
      if (!isKind(error, "closed", "not_found")) throw error;
    }
  }

  async #send(bytes: Uint8Array, end: boolean, options: CallOptions): Promise<void> {
    // Other bytes at the same offset would be taken for these.
    if (this.#pending.length > 0) await this.#complete(this.#pending, false, options);
    await this.#complete(bytes, end, options);
  }

  async #complete(bytes: Uint8Array, end: boolean, options: CallOptions): Promise<void> {
    for (let rest = bytes; ; ) {
      if (this.#closed) throw this.#error("closed", "is closed");
      const state = await this.#request(rest, end, options);
      const taken = state.offset - this.offset;
      if (!(taken >= 0 && taken <= rest.length)) {
        throw this.#error("protocol", `is at ${state.offset} bytes: another client writes, too`);
      }
      this.offset = state.offset;
      this.#closed = state.closed;
      this.#pending = this.#pending.subarray(taken);
      rest = rest.subarray(taken);
      if (rest.length === 0 && (!end || state.closed)) return;
    }
  }

  /** Sends one request, and again while the connection is cut. */
  async #request(bytes: Uint8Array, end: boolean, options: CallOptions): Promise<State> {
    const name = `the standard input of command ${this.id}`;
    const pauses = new Pauses(this.inside.resumeFor);
    for (;;) {
      options.signal?.throwIfAborted();
      try {
        const { body } = await this.inside.api.http.read({
          method: "POST",
          path: `/command/${encodeURIComponent(this.id)}/stdin`,
          query: { offset: this.offset, ...(end ? { end } : {}) },
          headers: { "Content-Type": "application/octet-stream" },
          body: new Blob([bytes as Uint8Array<ArrayBuffer>]),
          ...options,
        });
        return parseObject<State>(new TextDecoder().decode(body), name);
      } catch (error) {
        const refused = error instanceof SandboxError && (error.status ?? 500) < 500;
        const unsent = isKind(error, "connection") && !mayHaveArrived(error);
        if (!refused && !unsent) this.#pending = bytes.slice(); // the caller may change its own
        if (!isKind(error, "connection", "timeout", "unavailable", "rate_limited")) throw error;
        if (!(await pauses.next(error.retryAfter, options.signal))) throw error;
      }
    }
  }

  #error(kind: "closed" | "protocol", what: string): SandboxError {
    return new SandboxError(kind, `the standard input of command ${clean(this.id)} ${what}`);
  }
}
