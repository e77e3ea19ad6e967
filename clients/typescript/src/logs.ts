import type { Api } from "./calls.js";
import { SandboxError, isKind } from "./errors.js";
import type { paths } from "./gen/lifecycle.js";
import { type Answered, type CallOptions, cut } from "./http.js";
import { Pauses, sleep } from "./pauses.js";

/** Which part of the entrypoint's output to read. */
export interface LogOptions extends CallOptions {
  /** How many of the last lines to begin with; all that are kept without it. */
  tail?: number;
  /** Leaves out what was printed before. */
  since?: Date;
  /** Whether to go on until the sandbox ends. */
  follow?: boolean;
}

/** How many of the last bytes show that a log which is read again is the same, in bytes. */
const compared = 64 << 10;
/** What the service keeps of an ended sandbox's log, at most: its last bytes and lines. */
const keptBytes = 64 << 10;
const keptLines = 1_000;
/** How long one request waits for a sandbox that is ending, in seconds. */
const longestWait = 30;
/** The pause between two such requests, in ms: a service that is stopping answers at once. */
const betweenWaits = 200;

/**
 * The bytes that the entrypoint of a sandbox printed. A log has no positions to resume from: after a
 * cut it is read again from its beginning, and what had arrived is compared and left out. Where that
 * cannot be done - with `tail`, when the engine has forgotten the beginning, or when the sandbox
 * has ended meanwhile and what the service keeps of its log does not reach back far enough - it
 * throws.
 */
export async function* logs(
  api: Api<paths>,
  sandboxId: string,
  options: LogOptions,
  resumeFor: number,
): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
  const { tail, since, follow = false, signal } = options;
  const abort = signal ? { signal } : {};
  const call = { ...abort, accept: "text/plain" };
  const path = { sandboxId };
  const query = { follow, ...(tail === undefined ? {} : { tail }), ...(since ? { since: since.toISOString() } : {}) };
  const pauses = new Pauses(resumeFor);
  const whole = tail === undefined && since === undefined;
  const arrived = new Tail();
  let answered: Answered = await api.open("get", "/v1/sandboxes/{sandboxId}/logs", { path, query }, call);
  for (let resumed = false; ; resumed = true) {
    let broken = new SandboxError("connection", "the service ended the log");
    try {
      const again = new Tail();
      const until = arrived.length;
      let begun = !resumed;
      for await (const piece of piecesOf(answered)) {
        // What is kept of an ended sandbox's log may begin elsewhere. The state is asked for once
        // the log is open: if the sandbox has not ended by then, this is its whole log.
        if (!begun && isFinal(await stateOf())) {
          const kept = await keptLog();
          if (kept === undefined) throw gap(sandboxId);
          const missing = missingOf(kept);
          if (missing.length > 0) yield missing;
          return;
        }
        begun = true;
        const old = Math.min(piece.length, until - again.length);
        if (old > 0) {
          again.add(piece.subarray(0, old));
          if (again.length === until && !again.equals(arrived)) throw gap(sandboxId);
        }
        if (old === piece.length) continue;
        pauses.progress();
        const fresh = piece.subarray(old);
        arrived.add(fresh);
        yield fresh;
      }
      if (!follow) {
        if (again.length < until) throw gap(sandboxId); // there is less of it now than arrived
        return;
      }
      // The log of a sandbox ends with it. What is in between may end one that is followed, too.
      if (await hasEnded()) {
        const kept = await keptLog();
        const missing = kept && missingOf(kept);
        if (missing?.length) yield missing;
        return;
      }
    } catch (error) {
      signal?.throwIfAborted();
      broken = cut(error, `the log of ${sandboxId}`);
      if (!isKind(broken, "connection", "timeout", "unavailable")) throw broken;
    } finally {
      answered.close();
    }
    if (tail !== undefined) throw gap(sandboxId, broken);
    answered = await reopen(broken);
  }

  /** The state of the sandbox, after waiting at most so many seconds for the end of a change. */
  async function stateOf(wait = 0): Promise<string> {
    const input = { path, ...(wait === 0 ? {} : { header: { Prefer: `wait=${wait}` } }) };
    const options = { ...abort, longer: wait * 1_000 };
    return (await api.json("get", "/v1/sandboxes/{sandboxId}", input, options)).status.state;
  }

  /** Whether the sandbox has ended. One that is ending is waited for: it may print until then. */
  async function hasEnded(): Promise<boolean> {
    for (;;) {
      const state = await stateOf(longestWait);
      if (state !== "Stopping") return isFinal(state);
      await sleep(betweenWaits, signal);
    }
  }

  /** What is kept of the log of an ended sandbox; undefined when nothing is. */
  async function keptLog(): Promise<Uint8Array<ArrayBuffer> | undefined> {
    for (;;) {
      try {
        return (await api.bytes("get", "/v1/sandboxes/{sandboxId}/logs", { path }, call)).body;
      } catch (error) {
        if (isKind(error, "conflict")) return undefined; // such as on a cluster, after a delete
        // While a container is being removed, its engine has no log, which is an internal error.
        if (!isKind(error, "internal")) throw error;
        if (!(await pauses.next(error.retryAfter, signal))) throw error;
      }
    }
  }

  /** What had not arrived of the log of an ended sandbox, by what is kept of it. */
  function missingOf(kept: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer> {
    const begin = new Tail(kept.subarray(0, arrived.length));
    if (whole && isComplete(kept) && begin.equals(arrived)) return kept.subarray(arrived.length);
    const end = new Tail(kept);
    // What began with the last lines may be less than what is kept.
    if (arrived.endsWith(end) || (!whole && end.endsWith(arrived))) return new Uint8Array();
    throw gap(sandboxId);
  }

  async function reopen(broken: SandboxError): Promise<Answered> {
    for (let error = broken; await pauses.next(error.retryAfter, signal); ) {
      try {
        return await api.once("get", "/v1/sandboxes/{sandboxId}/logs", { path, query }, call);
      } catch (failure) {
        // While a container is being removed, its engine has no log, which is an internal error.
        if (!isKind(failure, "connection", "timeout", "unavailable", "rate_limited", "internal")) throw failure;
        error = failure;
      }
    }
    throw new SandboxError("stream", `the log of ${sandboxId}: not resumed within ${resumeFor} ms`, {
      cause: broken,
    });
  }
}

function isFinal(state: string): boolean {
  return state === "Terminated" || state === "Failed";
}

/** Whether what is kept of the log of an ended sandbox is all of it. */
function isComplete(kept: Uint8Array): boolean {
  // More than is kept is the log of a container that is still there.
  if (kept.length >= keptBytes) return kept.length > keptBytes;
  const newlines = kept.filter((byte) => byte === 10).length;
  return newlines < keptLines - 1; // the last line may have none
}

function gap(sandboxId: string, cause?: SandboxError): SandboxError {
  return new SandboxError("stream", `the log of ${sandboxId}: broke off and cannot be resumed without a gap`, { cause });
}

export async function* piecesOf({ response }: Answered): AsyncGenerator<Uint8Array<ArrayBuffer>> {
  const reader = response.body?.getReader();
  for (;;) {
    const next = await reader?.read();
    if (next?.value === undefined) return;
    yield next.value;
  }
}

/** How many bytes have gone by, and the last of them. */
class Tail {
  length = 0;
  #last = new Uint8Array();

  constructor(piece = new Uint8Array()) {
    this.add(piece);
  }

  add(piece: Uint8Array): void {
    this.length += piece.length;
    const kept = Math.min(this.#last.length, Math.max(0, compared - piece.length));
    const last = new Uint8Array(kept + Math.min(piece.length, compared));
    last.set(this.#last.subarray(this.#last.length - kept));
    last.set(piece.subarray(Math.max(0, piece.length - compared)), kept);
    this.#last = last;
  }

  equals(other: Tail): boolean {
    return this.length === other.length && this.#last.length === other.#last.length && this.endsWith(other);
  }

  /** Whether what is kept of another one is how this one ends. */
  endsWith(other: Tail): boolean {
    const from = this.#last.length - other.#last.length;
    return from >= 0 && other.#last.every((byte, at) => byte === this.#last[from + at]);
  }
}
