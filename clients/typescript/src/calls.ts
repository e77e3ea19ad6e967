import { SandboxError } from "./errors.js";
import type { Answered, CallOptions, Http, HttpRequest } from "./http.js";

/** The methods that the contracts use. */
export type Verb = "get" | "put" | "post" | "patch" | "delete";

/** The paths of a contract that have a method. */
export type PathOf<Paths, V extends Verb> = {
  [P in keyof Paths]: Paths[P] extends { [K in V]: object } ? P : never;
}[keyof Paths] &
  string;

/** The operation of a path and a method. */
export type Operation<Paths, P extends keyof Paths, V extends Verb> =
  Paths[P] extends { [K in V]: infer Op } ? Op : never;

/** What an operation takes: `path`, `query` and `header` parameters, and a JSON `body`. */
export type Input<Op> = (Op extends { parameters: infer Q } ? Omit<Q, "cookie"> : object) &
  (Op extends { requestBody: { content: { "application/json": infer B } } } ? { body: B } : object);

/** The JSON of an operation's success; undefined where that has none. */
export type Output<Op> = Op extends { responses: infer R } ? JsonOf<R[keyof R & (200 | 202 | 204)]> : never;
type JsonOf<R> = R extends { content: { "application/json": infer T } } ? T : undefined;

/** What the types of an operation say about one call of it, at run time. */
interface Parts {
  path?: Record<string, string | number>;
  query?: Record<string, unknown>;
  header?: Record<string, string>;
  body?: unknown;
}

/** Options of one call that no contract has. */
export interface ApiOptions extends CallOptions, Pick<HttpRequest, "idempotent" | "aged" | "undo" | "longer"> {
  /** The media type to ask for; JSON without it. */
  accept?: string;
}

/**
 * The calls of one contract: methods, paths, parameters, bodies and answers have the types that are
 * generated from it.
 */
export class Api<Paths> {
  constructor(readonly http: Http) {}

  /** Calls an operation and returns the JSON of its answer. */
  async json<V extends Verb, P extends PathOf<Paths, V>>(
    verb: V,
    path: P,
    input: Input<Operation<Paths, P, V>>,
    options: ApiOptions = {},
  ): Promise<Output<Operation<Paths, P, V>>> {
    const { body } = await this.http.read(request(verb, path, input, options));
    try {
      const value: unknown = body.length === 0 ? undefined : JSON.parse(new TextDecoder().decode(body));
      return value as Output<Operation<Paths, P, V>>;
    } catch (cause) {
      throw new SandboxError("protocol", `${verb} ${path}: the answer is no JSON`, { cause });
    }
  }

  /** Calls an operation and returns the bytes of its answer. */
  bytes<V extends Verb, P extends PathOf<Paths, V>>(
    verb: V,
    path: P,
    input: Input<Operation<Paths, P, V>>,
    options: ApiOptions = {},
  ): Promise<{ response: Response; body: Uint8Array<ArrayBuffer> }> {
    return this.http.read(request(verb, path, input, options));
  }

  /** Calls an operation and returns the text of its answer. */
  async text<V extends Verb, P extends PathOf<Paths, V>>(
    verb: V,
    path: P,
    input: Input<Operation<Paths, P, V>>,
    options: ApiOptions = {},
  ): Promise<{ response: Response; text: string }> {
    const call = { ...options, accept: "text/plain" };
    const { response, body } = await this.bytes(verb, path, input, call);
    return { response, text: new TextDecoder().decode(body) };
  }

  /** Calls an operation and returns its answer with a body that is still to be read. */
  open<V extends Verb, P extends PathOf<Paths, V>>(
    verb: V,
    path: P,
    input: Input<Operation<Paths, P, V>>,
    options: ApiOptions = {},
  ): Promise<Answered> {
    return this.http.open(request(verb, path, input, options));
  }

  /** {@link Api.open} without any repetition, for a caller that repeats by itself. */
  once<V extends Verb, P extends PathOf<Paths, V>>(
    verb: V,
    path: P,
    input: Input<Operation<Paths, P, V>>,
    options: ApiOptions = {},
  ): Promise<Answered> {
    return this.http.once(request(verb, path, input, options));
  }
}

/** Methods that may be repeated whatever they do (RFC 9110, 9.2.2). */
const idempotent: Verb[] = ["get", "put", "delete"];

function request(verb: Verb, path: string, input: Parts, options: ApiOptions): HttpRequest {
  const { accept = "application/json", ...rest } = options;
  const whole: HttpRequest = {
    idempotent: idempotent.includes(verb),
    ...rest,
    method: verb.toUpperCase(),
    path: path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(input.path?.[name] ?? "")),
    headers: { Accept: accept, ...input.header },
  };
  if (input.query !== undefined) whole.query = input.query;
  if (input.body !== undefined) {
    whole.headers = { ...whole.headers, "Content-Type": "application/json" };
    whole.body = JSON.stringify(input.body);
  }
  return whole;
}
