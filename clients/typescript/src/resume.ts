import { SandboxError, clean, isKind } from "./errors.js";
import { type Answered, cut } from "./http.js";
import { Pauses } from "./pauses.js";
import { EventParser, type ServerSentEvent } from "./sse.js";

/** The services send a ping every 10 s: a connection that is silent for this long, in ms, is dead. */
const silence = 30_000;
/** A connection that was open for this long, in ms, counts as progress even without an event. */
const held = 5_000;
/** How long the end of a stream may take after its last event, in ms. */
const lastWait = 1_000;

/** How a stream is opened and where it ends. */
export interface StreamOptions<T> {
  /** What the stream is, for messages. */
  name: string;
  /** Opens the stream for the first time, with whatever repetitions that permits. */
  start(): Promise<Answered>;
  /** Opens it once after an event; without an id at its beginning. */
  resume(lastEventId: string | undefined): Promise<Answered>;
  /** Whether an event is the last; absent for streams without an end. */
  last?: (event: T) => boolean;
  /** For how many milliseconds without an event to try to resume. */
  resumeFor: number;
  signal?: AbortSignal | undefined;
}

/** The data of a stream's events; see {@link numbered}. */
export async function* resumable<T extends object>(options: StreamOptions<T>): AsyncGenerator<T, void, undefined> {
  for await (const { data } of numbered(options)) yield data;
}

/**
 * The data of a stream's events with their ids and the length of their JSON, across as many
 * connections as it takes: after a cut the next one goes on after the last event. Nothing comes
 * twice, and a stream with a last event ends after it or throws. Leaving the loop closes the
 * connection.
 */
export async function* numbered<T extends object>(
  options: StreamOptions<T>,
): AsyncGenerator<{ id: string | undefined; data: T; length: number }, void, undefined> {
  const pauses = new Pauses(options.resumeFor);
  let position: string | undefined;
  for (let connection = await options.start(); ; connection = await reopen(options, pauses, position)) {
    const events = eventsOf(connection, options.name);
    const opened = Date.now();
    try {
      for await (const event of events) {
        if (event.id !== "") position = event.id;
        pauses.progress();
        if (event.data === "") continue; // a ping of the egress sidecar
        const data = parseObject<T>(event.data, options.name);
        yield { id: position, data, length: event.data.length };
        if (options.last?.(data) === true) {
          await ended(events, connection, options.name);
          return;
        }
      }
    } catch (error) {
      options.signal?.throwIfAborted();
      if (!isKind(error, "connection")) throw error;
    } finally {
      connection.close();
    }
    if (Date.now() - opened > held) pauses.progress();
  }
}

async function reopen<T>(options: StreamOptions<T>, pauses: Pauses, position: string | undefined): Promise<Answered> {
  let broken: SandboxError | undefined;
  while (await pauses.next(broken?.retryAfter, options.signal)) {
    try {
      return await options.resume(position);
    } catch (error) {
      options.signal?.throwIfAborted();
      // A conflict is a sandbox that is paused for a while.
      if (!isKind(error, "connection", "timeout", "unavailable", "rate_limited", "conflict")) throw error;
      broken = error;
    }
  }
  const why = broken?.message ?? "every connection was cut before an event arrived";
  throw new SandboxError("stream", `${options.name}: not resumed within ${options.resumeFor} ms: ${why}`, {
    cause: broken,
  });
}

/** Takes the end of a stream after its last event, so that its connection can be used again. */
async function ended(
  events: AsyncGenerator<ServerSentEvent>,
  connection: Answered,
  name: string,
): Promise<void> {
  const timer = setTimeout(() => connection.close(), lastWait);
  const next = await events.next().catch(() => undefined); // cut now, nothing is lost
  clearTimeout(timer);
  if (next?.done === false) throw new SandboxError("protocol", `${name}: went on after its last event`);
}

/** The events of one connection. */
async function* eventsOf({ response, close }: Answered, name: string): AsyncGenerator<ServerSentEvent> {
  const type = response.headers.get("Content-Type") ?? "";
  if (!type.startsWith("text/event-stream") || response.body === null) {
    throw new SandboxError("protocol", `${name}: the answer is no event stream, but ${clean(type)}`);
  }
  const reader = response.body.getReader();
  const parser = new EventParser();
  const decoder = new TextDecoder();
  for (;;) {
    const timer = setTimeout(close, silence);
    let next;
    try {
      next = await reader.read();
    } catch (error) {
      throw cut(error, name);
    } finally {
      clearTimeout(timer);
    }
    if (next.value === undefined) return;
    yield* parser.feed(decoder.decode(next.value, { stream: true }));
  }
}

/** The object that JSON from a sandbox is; anything else is an error. */
export function parseObject<T extends object>(json: string, name: string): T {
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch (cause) {
    throw new SandboxError("protocol", `${name}: a message is no JSON`, { cause });
  }
  if (typeof value === "object" && value !== null) return value as T;
  throw new SandboxError("protocol", `${name}: a message is no object`);
}
