import { SandboxError, clean, isKind, kindOf } from "./errors.js";
import { Pauses } from "./pauses.js";
import { refusedByProxy, unconnected } from "./proxy.js";

/** What every call takes. */
export interface CallOptions {
  /** Ends the call; it then throws the signal's reason. */
  signal?: AbortSignal;
}

/** For how many milliseconds at most a call that was aborted goes on, to end what it has begun. */
const takeBack = 5_000;

/** The options of the requests that do that. */
export const shortly = (): CallOptions => ({ signal: AbortSignal.timeout(takeBack) });

/** One request, relative to a base URL. */
export interface HttpRequest extends CallOptions {
  method: string;
  path: string;
  query?: Record<string, unknown>;
  headers?: Record<string, string>;
  body?: string | Blob | ReadableStream<Uint8Array>;
  /** Whether to repeat it after a cut connection and after 502, 503 and 504. */
  idempotent?: boolean;
  /** Whether a repetition says how old the request is: in an Idempotency-Age, for a key of {@link newKey}. */
  aged?: boolean;
  /**
   * Ends what the request has begun when its signal aborts before there is an answer: it is sent once more, and this is
   * given the answer, to find what that was.
   */
  undo?: (late: Answered, options: CallOptions) => Promise<void>;
  /** Milliseconds in which the answer must arrive, on top of the client's own timeout. */
  longer?: number;
}

/** What all requests of a client have in common. */
export interface HttpSettings {
  fetch: typeof fetch;
  /** Milliseconds until the header of an answer, and until the end of one that is no stream. */
  timeout: number;
  /** Milliseconds for which a request is repeated. */
  retryFor: number;
}

/** The longest answer that is read into memory and is no file, in bytes. */
const maxAnswer = 64 << 20;
const maxErrorBody = 64 << 10;

/** An answer whose body may still be on its way. */
export interface Answered {
  response: Response;
  /** To be called when nothing more is read; it ends a body that has not ended. */
  close(): void;
}

/** What ends one exchange: the caller's signal, or that nothing more of it is wanted. */
class Connection {
  readonly #controller = new AbortController();
  readonly #abort = () => this.#controller.abort();

  constructor(private readonly caller: AbortSignal | undefined) {
    caller?.addEventListener("abort", this.#abort, { once: true });
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  close(): void {
    this.caller?.removeEventListener("abort", this.#abort);
    this.#controller.abort();
  }
}

/** Sends requests below one URL, with the headers that they all need. */
export class Http {
  /** @param base - A URL without a slash at its end. */
  constructor(
    readonly base: string,
    private readonly headers: Record<string, string>,
    readonly settings: HttpSettings,
  ) {}

  /** The same service below a longer path. */
  below(path: string): Http {
    return new Http(this.base + path, this.headers, this.settings);
  }

  /** Sends a request and returns its answer, a success, with a body that is still to be read. */
  open(request: HttpRequest): Promise<Answered> {
    return this.#repeat(request, (attempt) => this.once(attempt));
  }

  /** Sends a request and returns its answer with the whole body. */
  read(request: HttpRequest): Promise<{ response: Response; body: Uint8Array<ArrayBuffer> }> {
    return this.#repeat(request, (attempt) =>
      this.#limited(attempt, async (connection) => {
        const response = await this.#send(attempt, connection.signal);
        const body = await readAll(response, maxAnswer);
        connection.close();
        return { response, body };
      }),
    );
  }

  /** {@link Http.open} without any repetition. */
  once(request: HttpRequest): Promise<Answered> {
    return this.#limited(request, async (connection) => {
      const response = await this.#send(request, connection.signal);
      return { response, close: () => connection.close() };
    });
  }

  /** Does work that has to be done within the request's time, and makes its errors ours. */
  async #limited<T>(request: HttpRequest, work: (connection: Connection) => Promise<T>): Promise<T> {
    request.signal?.throwIfAborted();
    const connection = new Connection(request.signal);
    const milliseconds = this.settings.timeout + (request.longer ?? 0);
    let late = false;
    const expire = () => {
      late = true;
      connection.close();
    };
    const timer = milliseconds === Infinity ? undefined : setTimeout(expire, milliseconds);
    try {
      return await work(connection);
    } catch (error) {
      connection.close();
      request.signal?.throwIfAborted();
      if (late) {
        throw new SandboxError("timeout", `${name(request)}: no answer within ${milliseconds} ms`);
      }
      throw cut(error, name(request));
    } finally {
      clearTimeout(timer);
    }
  }

  async #send(request: HttpRequest, signal: AbortSignal): Promise<Response> {
    const init: RequestInit & { duplex?: "half" } = {
      method: request.method,
      headers: { ...this.headers, ...request.headers },
      redirect: "manual", // the key is for this service alone
      signal,
    };
    if (request.body !== undefined) init.body = request.body;
    if (request.body instanceof ReadableStream) init.duplex = "half";
    const response = await this.settings.fetch(this.base + request.path + search(request.query), init);
    if (response.type === "opaqueredirect" || (response.status >= 300 && response.status < 400)) {
      await response.body?.cancel();
      throw new SandboxError("protocol", `${name(request)}: redirected, which is not followed`);
    }
    if (!response.ok) throw await problem(response, request);
    return response;
  }

  async #repeat<T>(request: HttpRequest, attempt: (request: HttpRequest) => Promise<T>): Promise<T> {
    const pauses = new Pauses(this.settings.retryFor);
    let since: number | undefined; // when it was first sent, of the times that it may have arrived
    const again = (begin: number, options: CallOptions = {}): HttpRequest => ({
      ...(since === undefined || !request.aged ? request : withAge(request, begin - since)),
      ...options,
    });
    try {
      for (;;) {
        request.signal?.throwIfAborted();
        const begin = performance.now();
        try {
          return await attempt(again(begin));
        } catch (error) {
          if (mayHaveArrived(error) || request.signal?.aborted === true) since ??= begin;
          const repeat =
            isKind(error, "rate_limited") || // it has had no effect
            (request.idempotent === true && isKind(error, "connection", "unavailable") && !isPermanent(error));
          const repeatable = !(request.body instanceof ReadableStream);
          if (!repeat || !repeatable) throw error;
          if (!(await pauses.next(error.retryAfter, request.signal))) throw error;
        }
      }
    } catch (error) {
      if (request.undo !== undefined && request.signal?.aborted === true && since !== undefined) {
        const soon = shortly();
        const late = this.once(again(performance.now(), soon));
        await late.then((answer) => request.undo?.(answer, soon)).catch(() => undefined); // the first error counts
      }
      throw error;
    }
  }
}

function withAge(request: HttpRequest, milliseconds: number): HttpRequest {
  return { ...request, headers: { ...request.headers, "Idempotency-Age": String(Math.ceil(milliseconds)) } };
}

/** Whether a request that failed may have arrived: not when there was no connection, where that is known. */
export function mayHaveArrived(error: unknown): boolean {
  if (isKind(error, "unavailable")) return true;
  if (!isKind(error, "connection")) return false;
  const cause = error.cause instanceof Error ? error.cause.cause : undefined; // what Node.js says
  return !(cause instanceof Error && "code" in cause && unconnected.includes(cause.code));
}

function name(request: HttpRequest): string {
  return `${request.method} ${request.path}`;
}

/** An error of fetch or of reading a body as one of ours. */
export function cut(error: unknown, what: string): SandboxError {
  if (error instanceof SandboxError) return error;
  return new SandboxError("connection", `${what}: ${clean(reason(error))}`, { cause: error });
}

/** What Node.js calls the errors that stay until the URL or a certificate is another, and what to say of them. */
const permanent: Record<string, string> = {
  CERT_HAS_EXPIRED: "it has expired",
  CERT_NOT_YET_VALID: "it is not valid yet; is this machine's clock right?",
  CERT_REJECTED: "it is rejected",
  CERT_UNTRUSTED: "it is not to be trusted for servers",
  DEPTH_ZERO_SELF_SIGNED_CERT: "it is signed by itself; a file that NODE_EXTRA_CA_CERTS names can have it",
  ERR_TLS_CERT_ALTNAME_INVALID: "it is not for the name of the URL",
  INVALID_CA: "the certificate of its authority is invalid",
  SELF_SIGNED_CERT_IN_CHAIN: "its authority is not known; a file that NODE_EXTRA_CA_CERTS names can have the authority's certificate",
  UNABLE_TO_GET_ISSUER_CERT: "its authority is not known; a file that NODE_EXTRA_CA_CERTS names can have the authority's certificate",
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: "its authority is not known; a file that NODE_EXTRA_CA_CERTS names can have the authority's certificate",
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: "its authority is not known; a file that NODE_EXTRA_CA_CERTS names can have the authority's certificate",
};
const noTLS: unknown[] = ["ERR_SSL_WRONG_VERSION_NUMBER", "ERR_SSL_PACKET_LENGTH_TOO_LONG", "ERR_SSL_TLSV1_ALERT_PROTOCOL_VERSION"];
const needsTLS = "the server speaks TLS: the URL should begin with https://, not http://";

/** What fetch gives as the cause of its error: Node.js has a code there. */
function causeOf(error: unknown): { cause: unknown; code: unknown } {
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  return { cause, code: cause instanceof Error && "code" in cause ? cause.code : undefined };
}

/** Why fetch failed, for people. */
function reason(error: unknown): string {
  const { cause, code } = causeOf(error);
  if (typeof code === "string" && code in permanent) return `the certificate of the server is not trusted: ${permanent[code]}`;
  if (noTLS.includes(code)) return "the server does not speak TLS: the URL should begin with http://, not https://";
  if (typeof code === "string" && code.startsWith("HPE_")) {
    const data = "data" in (cause as object) ? String((cause as { data: unknown }).data) : "";
    return /^[\x15\x16]\x03/.test(data) ? needsTLS : "the answer is not HTTP";
  }
  // Of a name with several addresses, each has an error, and all of them together have no message.
  if (cause instanceof AggregateError && !cause.message) return cause.errors.map((each) => (each instanceof Error ? each.message : String(each))).join("; ");
  return cause instanceof Error ? cause.message || cause.name : String(cause);
}

/** Whether a request that failed fails the same way again: the URL or a certificate has to change first. */
export function isPermanent(error: unknown): boolean {
  const { code } = causeOf(error instanceof SandboxError ? error.cause : error);
  return (typeof code === "string" && code in permanent) || noTLS.includes(code) || code === refusedByProxy;
}

/** What servers of Go, nginx and Apache that expect TLS answer without it. */
const plainToTLS = /HTTP request to an HTTPS server|HTTP request was sent to HTTPS port|speaking plain HTTP to an SSL-enabled server/;

/** The error that an answer describes. */
async function problem(response: Response, request: HttpRequest): Promise<SandboxError> {
  let code: string | undefined;
  let message = response.statusText || "no reason is given";
  try {
    const body = new TextDecoder().decode(await readAll(response, maxErrorBody));
    if (response.status === 400 && plainToTLS.test(body)) message = needsTLS;
    const parsed = JSON.parse(body) as { code?: unknown; message?: unknown };
    if (typeof parsed.code === "string") code = clean(parsed.code);
    if (typeof parsed.message === "string") message = parsed.message;
  } catch {
    // Something between us and the service answered: its status says enough.
  }
  const { status } = response;
  const requestId = response.headers.get("X-Request-ID");
  const seconds = response.headers.get("Retry-After");
  const retryAfter = seconds === null || seconds === "" ? NaN : Number(seconds);
  return new SandboxError(kindOf(status), `${name(request)}: ${status} ${code ?? ""}: ${clean(message)}`, {
    status,
    ...(code === undefined ? {} : { code }),
    ...(requestId === null ? {} : { requestId: clean(requestId) }),
    ...(retryAfter >= 0 ? { retryAfter } : {}),
  });
}

function search(query: Record<string, unknown> = {}): string {
  const pairs = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (value === undefined) continue;
    for (const one of Array.isArray(value) ? (value as unknown[]) : [value]) {
      pairs.append(key, String(one));
    }
  }
  const text = pairs.toString();
  return text && `?${text}`;
}

/** Reads a body into memory; one with more than max bytes is an error. */
export async function readAll(response: Response, max: number): Promise<Uint8Array<ArrayBuffer>> {
  const pieces: Uint8Array[] = [];
  let length = 0;
  const reader = response.body?.getReader();
  for (;;) {
    const next = await reader?.read();
    if (next?.value === undefined) return join(pieces, length);
    length += next.value.length;
    if (length > max) {
      await reader?.cancel();
      throw new SandboxError("protocol", `the answer is longer than ${max} bytes`);
    }
    pieces.push(next.value);
  }
}

/** A unique value. randomUUID is missing on pages without TLS. */
export function randomName(): string {
  return crypto.getRandomValues(new Uint32Array(4)).join("-");
}

/** How a request with {@link newKey} is repeated to a daemon, which does not know the keys of the one before it. */
export const repeatedOnce = { idempotent: true, aged: true } as const;

/** The header that makes a request safe to repeat: what it makes is made once, as long as its key is known. */
export function newKey(): { "Idempotency-Key": string } {
  return { "Idempotency-Key": randomName() };
}

/** Several pieces as one. */
export function join(pieces: Uint8Array[], length: number): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}
