import type { Api } from "./calls.js";
import { SandboxError, isKind } from "./errors.js";
import type { paths } from "./gen/lifecycle.js";
import { type Answered, type CallOptions, cut } from "./http.js";
import { Pauses } from "./pauses.js";

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

/**
 * The bytes that the entrypoint of a sandbox printed. A log has no positions to resume from: after a
 * cut it is read again from its beginning, and what had arrived is compared and left out. Where that
 * cannot be done - with `tail`, or when the engine has forgotten the beginning - it throws.
 */
export async function* logs(
  api: Api<paths>,
  sandboxId: string,
  options: LogOptions,
  resumeFor: number,
): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
  const { tail, since, follow = false, signal } = options;
  const call = { ...(signal ? { signal } : {}), accept: "text/plain" };
  const path = { sandboxId };
  const query = { follow, ...(tail === undefined ? {} : { tail }), ...(since ? { since: since.toISOString() } : {}) };
  const pauses = new Pauses(resumeFor);
  const arrived = new Tail();
  let answered: Answered = await api.open("get", "/v1/sandboxes/{sandboxId}/logs", { path, query }, call);
  for (;;) {
    let broken = new SandboxError("connection", "the service ended the log");
    try {
      const again = new Tail();
      const until = arrived.length;
      for await (const piece of piecesOf(answered)) {
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
      if (!follow) return;
      // The log of a sandbox ends with it, and every log that is followed with the service.
      const { status } = await api.json("get", "/v1/sandboxes/{sandboxId}", { path }, signal ? { signal } : {});
      if (["Stopping", "Terminated", "Failed"].includes(status.state)) {
        if (again.length < until && !arrived.endsWith(again)) throw gap(sandboxId);
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

function gap(sandboxId: string, cause?: SandboxError): SandboxError {
  return new SandboxError("stream", `the log of ${sandboxId}: broke off and cannot be resumed without a gap`, { cause });
}

async function* piecesOf({ response }: Answered): AsyncGenerator<Uint8Array<ArrayBuffer>> {
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
