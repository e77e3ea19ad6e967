// Compiled against the types of deepagents, and not run: a program of a user.
import { BaseSandbox, type SandboxBackendProtocolV2, createDeepAgent } from "deepagents";
import { type Sandbox, deepagentsBackend } from "./sdk/index.js";

/** An agent that works in a sandbox. */
export function agent(sandbox: Sandbox): unknown {
  const backend: BaseSandbox & SandboxBackendProtocolV2 = deepagentsBackend(BaseSandbox, sandbox, { cwd: "/work" });
  return createDeepAgent({ model: "model", backend });
}
