import type { Api } from "./calls.js";
import { SandboxError, isKind } from "./errors.js";
import type { paths } from "./gen/execd.js";
import { type Answered, type CallOptions, cut } from "./http.js";
import { Pauses } from "./pauses.js";

/** Which bytes of a file to read. */
export interface ByteRange {
  /** The position of the first byte; 0 without it. */
  start?: number;
  /** The position after the last byte; the end of the file without it. */
  end?: number;
}

/**
 * The bytes of a file. After a cut it goes on where it was, if the file is still the same; otherwise
 * it throws, so that what is read is never a mixture of two files.
 */
export async function* download(
  api: Api<paths>,
  path: string,
  range: ByteRange & CallOptions,
  resumeFor: number,
): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
  const { start = 0, end, signal } = range;
  const call = { ...(signal ? { signal } : {}), accept: "application/octet-stream" };
  const last = end === undefined ? "" : String(end - 1);
  const ask = (position: number, tag?: string) => ({
    query: { path },
    header: {
      ...(position === 0 && last === "" ? {} : { Range: `bytes=${position}-${last}` }),
      ...(tag === undefined ? {} : { "If-Range": tag }),
    },
  });
  const pauses = new Pauses(resumeFor);
  let position = start;
  let answered: Answered = await api.open("get", "/files/download", ask(start), call);
  const tag = answered.response.headers.get("ETag");
  for (;;) {
    let broken: SandboxError;
    try {
      const reader = answered.response.body?.getReader();
      for (;;) {
        const next = await reader?.read();
        if (next?.value === undefined) return;
        pauses.progress();
        position += next.value.length;
        yield next.value;
      }
    } catch (error) {
      signal?.throwIfAborted();
      broken = cut(error, `read ${path}`);
    } finally {
      answered.close();
    }
    if (tag === null) throw broken; // whether the file is the same cannot be known
    answered = await again(broken);
    // The whole file instead of the range: it has changed.
    const changed = position > 0 && answered.response.status !== 206;
    if (changed || answered.response.headers.get("ETag") !== tag) {
      answered.close();
      throw new SandboxError("stream", `read ${path}: the connection was cut, and the file has changed since`);
    }
  }

  async function again(broken: SandboxError): Promise<Answered> {
    for (let error = broken; await pauses.next(error.retryAfter, signal); ) {
      try {
        return await api.once("get", "/files/download", ask(position, tag ?? undefined), call);
      } catch (failure) {
        if (!isKind(failure, "connection", "timeout", "unavailable", "rate_limited", "conflict")) throw failure;
        error = failure;
      }
    }
    throw new SandboxError("stream", `read ${path}: not resumed within ${resumeFor} ms`, { cause: broken });
  }
}
