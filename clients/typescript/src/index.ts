/**
 * Client of the sandbox service.
 *
 * ```ts
 * import { Client } from "@sandbox.internal/sdk";
 *
 * await using sandbox = await new Client().create("python:3.12");
 * const { stdout, exitCode } = await sandbox.commands.run("echo hello");
 * ```
 *
 * @packageDocumentation
 */
export { Client, type ClientOptions, type CreateOptions, type ListOptions } from "./client.js";
export {
  type ActivityEntry,
  type Endpoint,
  type ForkError,
  type ForkOptions,
  type Holds,
  type Lifecycle,
  type KeepAwakeRequest,
  type KeptAwake,
  type Metrics,
  Sandbox,
  type SandboxInfo,
  type SandboxState,
} from "./sandbox.js";
export type { EventOptions, NumberedEvent, SandboxEvent } from "./events.js";
export {
  Command,
  type CommandEvent,
  type CommandOptions,
  type CommandResult,
  type Commands,
  type CommandStatus,
  type ExecutionError,
  type InputOptions,
  type OutputOptions,
  type StartOptions,
} from "./commands.js";
export type { Stdin } from "./stdin.js";
export { type Code, type CodeContext, type CodeOptions, type Contexts, type Execution, Result } from "./code.js";
export type { FileEvent, FileInfo, Files, ReadOptions, Replacement } from "./files.js";
export type { Permission } from "./mode.js";
export type { ByteRange } from "./download.js";
export type { FileContent, FileToWrite } from "./upload.js";
export {
  Attachment,
  Terminal,
  type TerminalEvent,
  type TerminalRequest,
  type Terminals,
  type TerminalStatus,
} from "./terminals.js";
export type { WebSocketConstructor, WebSocketLike } from "./websocket.js";
export type { EgressRule, Network, NetworkDecision, NetworkPolicy } from "./network.js";
export type { CreateKeyOptions, IssuedKey, Key, Keys, RotateOptions } from "./keys.js";
export type { Lineage, Snapshot, SnapshotDiff, SnapshotDiffOptions, SnapshotListOptions, SnapshotOptions, Snapshots, SnapshotState, StoredImage } from "./snapshots.js";
export type { LogOptions } from "./logs.js";
export { type DeepagentsOptions, deepagentsBackend } from "./deepagents.js";
export {
  type HarnessErrors,
  type HarnessNetworkPolicy,
  type HarnessOptions,
  type HarnessSandboxes,
  type HarnessSession,
  harnessSandboxes,
} from "./harness.js";
export type { HarnessProcess, RestrictedHarnessSession, WritableHarnessProcess } from "./harness-session.js";
export { type ErrorDetails, type ErrorKind, isKind, SandboxError } from "./errors.js";
export type { Api, ApiOptions } from "./calls.js";
export type { Answered, CallOptions } from "./http.js";
export type { components as execd, paths as ExecdPaths } from "./gen/execd.js";
export type { components as lifecycle, paths as LifecyclePaths } from "./gen/lifecycle.js";
