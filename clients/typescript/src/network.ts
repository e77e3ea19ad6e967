import type { Api } from "./calls.js";
import { SandboxError } from "./errors.js";
import type { components, paths } from "./gen/lifecycle.js";
import type { CallOptions } from "./http.js";
import { resumable } from "./resume.js";

/** What a sandbox may reach. */
export type NetworkPolicy = components["schemas"]["NetworkPolicy"];
/** A rule of a policy. */
export type EgressRule = components["schemas"]["EgressRule"];
/** What became of all attempts that are alike. */
export type NetworkDecision = components["schemas"]["NetworkDecision"];

/**
 * Refuses a policy that is there and empty: the service takes it for one that allows everything, which whoever forgot to fill it
 * in did not mean.
 */
export function checkPolicy(policy: NetworkPolicy | undefined): void {
  if (policy === undefined || policy.defaultAction !== undefined || (policy.egress?.length ?? 0) > 0) return;
  throw new SandboxError("invalid", "networkPolicy: must have a defaultAction or egress rules: an empty one would allow everything");
}

/** What one sandbox may reach, and what it reached. It is a `conflict` without an egress sidecar. */
export class Network {
  readonly #path: { sandboxId: string };

  constructor(
    private readonly api: Api<paths>,
    sandboxId: string,
    private readonly resumeFor: number,
  ) {
    this.#path = { sandboxId };
  }

  /** The policy in force. */
  policy(options: CallOptions = {}): Promise<NetworkPolicy> {
    return this.api.json("get", "/v1/sandboxes/{sandboxId}/network-policy", { path: this.#path }, options);
  }

  /** Replaces the whole policy. An empty one is `invalid`; `{ defaultAction: "allow" }` allows everything. */
  async replace(policy: NetworkPolicy, options: CallOptions = {}): Promise<NetworkPolicy> {
    checkPolicy(policy);
    const input = { path: this.#path, body: policy };
    return this.api.json("put", "/v1/sandboxes/{sandboxId}/network-policy", input, options);
  }

  /** Adds rules before all others; a rule for a target that has one takes its place. */
  addRules(rules: EgressRule[], options: CallOptions = {}): Promise<NetworkPolicy> {
    const input = { path: this.#path, body: rules };
    return this.api.json("patch", "/v1/sandboxes/{sandboxId}/network-policy", input, {
      ...options,
      idempotent: true, // the same rules for the same targets
    });
  }

  /** Deletes the rules of some targets. */
  deleteRules(targets: string[], options: CallOptions = {}): Promise<NetworkPolicy> {
    const input = { path: this.#path, body: targets };
    return this.api.json("delete", "/v1/sandboxes/{sandboxId}/network-policy", input, options);
  }

  /** What was allowed and denied, the newest last. */
  async decisions(options: CallOptions = {}): Promise<NetworkDecision[]> {
    const input = { path: this.#path };
    return (await this.api.json("get", "/v1/sandboxes/{sandboxId}/network-decisions", input, options)).items;
  }

  /** The decisions there are, and then each again whenever its count grows. It does not end. */
  watchDecisions(options: CallOptions = {}): AsyncGenerator<NetworkDecision, void, undefined> {
    const call = { ...options, accept: "text/event-stream" };
    return resumable<NetworkDecision>({
      name: `the decisions of ${this.#path.sandboxId}`,
      start: () => this.api.open("get", "/v1/sandboxes/{sandboxId}/network-decisions", { path: this.#path }, call),
      resume: (after) =>
        this.api.once(
          "get", "/v1/sandboxes/{sandboxId}/network-decisions",
          { path: this.#path, ...(after === undefined ? {} : { header: { "Last-Event-ID": after } }) },
          call,
        ),
      resumeFor: this.resumeFor,
      signal: options.signal,
    });
  }

  /** The smallest allow-list for what was seen. */
  proposal(options: CallOptions = {}): Promise<NetworkPolicy> {
    const input = { path: this.#path };
    return this.api.json("get", "/v1/sandboxes/{sandboxId}/network-decisions/proposal", input, options);
  }
}
