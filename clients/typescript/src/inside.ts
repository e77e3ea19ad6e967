import type { Api } from "./calls.js";
import type { paths } from "./gen/execd.js";

/** What sandboxes' parts need of their client. */
export interface Inside {
  api: Api<paths>;
  /** For how many milliseconds without an event a stream is resumed. */
  resumeFor: number;
}
