/**
 * What went wrong, for branching:
 *
 * - `invalid` (400, 413, 416, 422): the request breaks a rule; the message names it.
 * - `unauthorized` (401), `forbidden` (403), `not_found` (404), `conflict` (409).
 * - `rate_limited` (429): {@link SandboxError.retryAfter} says when to try again.
 * - `unavailable` (502, 503, 504): the service or the sandbox does not answer now.
 * - `internal`: any other status.
 * - `connection`: no complete answer arrived.
 * - `timeout`: a limit of this client elapsed.
 * - `failed`: the sandbox is Failed, or ended before it reached the state that was waited for.
 * - `closed`: the command has closed its standard input or has ended.
 * - `stream`: a stream broke off and cannot be resumed without a gap.
 * - `protocol`: the answer is not what the contract says, larger than the client reads, or a
 *   redirect, which is never followed.
 * - `unsupported`: this runtime lacks something; the message says what.
 */
export type ErrorKind =
  | "invalid"
  | "unauthorized"
  | "forbidden"
  | "not_found"
  | "conflict"
  | "rate_limited"
  | "unavailable"
  | "internal"
  | "connection"
  | "timeout"
  | "failed"
  | "closed"
  | "stream"
  | "protocol"
  | "unsupported";

/** What is known about an error beyond its message. */
export interface ErrorDetails {
  /** The HTTP status; absent where there was no answer. */
  status?: number;
  /** The contract's code, such as `SANDBOX_NOT_FOUND`, or the reason of a Failed sandbox. */
  code?: string;
  /** The request's id in the service's log. */
  requestId?: string;
  /** Seconds after which to try again. */
  retryAfter?: number;
  cause?: unknown;
}

/** The error of every call, except that an aborted call throws its signal's reason. */
export class SandboxError extends Error {
  override readonly name = "SandboxError";
  readonly kind: ErrorKind;
  readonly status: number | undefined;
  readonly code: string | undefined;
  readonly requestId: string | undefined;
  readonly retryAfter: number | undefined;

  constructor(kind: ErrorKind, message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.kind = kind;
    this.status = details.status;
    this.code = details.code;
    this.requestId = details.requestId;
    this.retryAfter = details.retryAfter;
  }
}

/** Whether an error is a {@link SandboxError} of one of some kinds. */
export function isKind(error: unknown, ...kinds: ErrorKind[]): error is SandboxError {
  return error instanceof SandboxError && kinds.includes(error.kind);
}

/** The kind of an HTTP status that is no success. */
export function kindOf(status: number): ErrorKind {
  switch (status) {
    case 400:
    case 413:
    case 416:
    case 422:
      return "invalid";
    case 401:
      return "unauthorized";
    case 403:
      return "forbidden";
    case 404:
      return "not_found";
    case 409:
      return "conflict";
    case 429:
      return "rate_limited";
    case 502:
    case 503:
    case 504:
      return "unavailable";
    default:
      return "internal";
  }
}

/**
 * A text from elsewhere as a part of a message: a sandbox may have written it, so it gets no control
 * characters, and at most 1000 characters.
 */
export function clean(text: string): string {
  return text.slice(0, 1000).replace(/[\u0000-\u001f\u007f-\u009f]+/g, " ");
}
