// Compiled against the types of the AI SDK, and not run: a program of a user.
import * as harness from "@ai-sdk/harness";
import { HarnessAgent, type HarnessAgentAdapter } from "@ai-sdk/harness/agent";
import { type Experimental_SandboxSession, type LanguageModel, ToolLoopAgent } from "ai";
import { type Client, harnessSandboxes } from "./sdk/index.js";

/** An agent whose sessions have a sandbox each. */
export function agent(client: Client, adapter: HarnessAgentAdapter): HarnessAgent {
  const sandbox: harness.HarnessV1SandboxProvider = harnessSandboxes(harness, client, { ports: [4000], cwd: "/work" });
  return new HarnessAgent({ harness: adapter, sandbox });
}

/** An agent whose tools are given a sandbox. */
export async function answer(client: Client, model: LanguageModel): Promise<string> {
  const session = await harnessSandboxes(harness, client).createSession({ sessionId: "one" });
  const restricted: Experimental_SandboxSession = session.restricted();
  const agent = new ToolLoopAgent({ model });
  return (await agent.generate({ prompt: "work", experimental_sandbox: restricted })).text;
}
