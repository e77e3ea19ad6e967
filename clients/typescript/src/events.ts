import type { Api } from "./calls.js";
import type { components, paths } from "./gen/lifecycle.js";
import type { CallOptions } from "./http.js";
import { numbered } from "./resume.js";

/** Something that happened to a sandbox. Which fields there are depends on `type`. */
export type SandboxEvent = components["schemas"]["SandboxEvent"];

/** Where a stream of events begins. */
export interface EventOptions extends CallOptions {
  /** The id of the last event that is known; 0 for all that are kept. */
  after?: number;
}

/** An event and where to go on after it. */
export type NumberedEvent = SandboxEvent & {
  /** For {@link EventOptions.after}. */
  id: number;
};

/** The events of one sandbox, or of all. */
export async function* followEvents(
  api: Api<paths>,
  resumeFor: number,
  sandboxId: string | undefined,
  options: EventOptions,
): AsyncGenerator<NumberedEvent, void, undefined> {
  const { after, signal } = options;
  const call = { ...(signal ? { signal } : {}), accept: "text/event-stream" };
  const input = (last?: string) => ({
    ...(after === undefined ? {} : { query: { after } }),
    ...(last === undefined ? {} : { header: { "Last-Event-ID": last } }),
  });
  const open = (how: "open" | "once", last?: string) =>
    sandboxId === undefined
      ? api[how]("get", "/v1/events", input(last), call)
      : api[how]("get", "/v1/sandboxes/{sandboxId}/events", { path: { sandboxId }, ...input(last) }, call);
  const events = numbered<SandboxEvent>({
    name: sandboxId === undefined ? "the events" : `the events of ${sandboxId}`,
    start: () => open("open"),
    resume: (last) => open("once", last),
    ...(sandboxId === undefined ? {} : { last: ({ type }) => type === "forgotten" }),
    resumeFor,
    signal,
  });
  for await (const { id, data } of events) {
    if (data.type !== "ping") yield { ...data, id: Number(id) };
  }
}
