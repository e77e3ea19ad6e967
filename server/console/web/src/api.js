// Requests to the service. A path is one of the published contracts; the console's server passes it on in the name of the session.

const base = '/console';
const tokenKey = 'sandbox-console-token';

/** ApiError is an answer that is no success. */
export class ApiError extends Error {
  constructor(status, code, message, requestId, retryAfter) {
    super(message);
    Object.assign(this, { name: 'ApiError', status, code, requestId, retryAfter });
  }
}

// The tabs of a browser share one session, and one of them may begin another in another name. This one acts in the name that it shows.
let token = '';

/** actAs sets the session that requests are sent in, null for none. */
export const actAs = (session) => { token = session?.token ?? ''; };

let refused = async () => {};

/** onRefused sets what is called, and waited for, when a request is refused or another tab has signed in or out: it looks for the session. */
export function onRefused(callback) {
  refused = callback;
  addEventListener('storage', ({ key }) => {
    if (key === tokenKey || key === null) callback().catch(() => {}); // the next request looks again
  });
}

const credentials = (of = token) => ({ 'X-Sandbox-Console': of });

const shared = () => localStorage.getItem(tokenKey) ?? '';

/** admitted sends a request, and sends it again if it was refused and there is another session now. */
async function admitted(attempt) {
  const used = token;
  try {
    return await attempt();
  } catch (error) {
    if (error.status !== 401) throw error;
    await refused(); // what runs in a sandbox may answer with 401, too
    if (!token || token === used) throw error;
    return attempt();
  }
}

const attempts = 4;

async function send(url, { method = 'GET', body, headers = {}, signal } = {}) {
  let response;
  // Browsers break requests off whenever a network of the machine comes or goes. What only reads is sent again.
  for (let attempt = 1; !response; attempt++) {
    try {
      response = await fetch(url, {
        method,
        headers: { ...credentials(), ...(body === undefined ? {} : { 'Content-Type': 'application/json' }), ...headers },
        body: body === undefined ? undefined : JSON.stringify(body),
        signal,
        cache: 'no-store',
        redirect: 'error',
      });
    } catch (failure) {
      if (signal?.aborted) throw failure;
      if (method !== 'GET' || attempt === attempts) throw new ApiError(0, 'UNREACHABLE', 'the service does not answer');
      await pause(200 * attempt, signal);
    }
  }
  if (response.ok) return response;
  const text = await response.text();
  let answer = {};
  try {
    answer = JSON.parse(text);
  } catch { /* an answer of something between here and the service */ }
  throw new ApiError(response.status, answer.code ?? `HTTP ${response.status}`, answer.message ?? text.slice(0, 500),
    response.headers.get('X-Request-ID'), Number(response.headers.get('Retry-After')) || 0);
}

/** request sends a request to the API and returns the response. */
export const request = (path, options) => admitted(() => send(`${base}/api${path}`, options));

/** call sends a request to the API and returns the JSON of its answer, undefined where there is none. */
export async function call(method, path, body, options = {}) {
  const response = await request(path, { ...options, method, body });
  const text = await response.text();
  return text ? JSON.parse(text) : undefined;
}

/** daemon is the path of the execution API of a sandbox. */
export const daemon = (id, path) => `/v1/sandboxes/${id}/proxy/44772${path}`;

const sharing = 2000; // ms for which a tab that has signed in may take to share its token

/** reshared waits until the tabs share another token than this one, and gives up after a while. */
const reshared = (old) => new Promise((resolve) => {
  const done = () => {
    removeEventListener('storage', look);
    clearTimeout(timer);
    resolve();
  };
  const look = () => { if (shared() !== old) done(); };
  const timer = setTimeout(done, sharing);
  addEventListener('storage', look);
  look();
});

/** readSession returns {keyRequired, session}, of the session that the tabs share. */
export async function readSession() {
  for (;;) {
    const of = shared();
    const { keyRequired, session } = await (await send(`${base}/session`, { headers: credentials(of) })).json();
    // Another tab has the answer to its sign-in, which replaces the cookie, some time before it shares the token.
    // What a tab shows goes on if that is in the same name, so it waits before it says that its session has ended.
    if (keyRequired && !session && of && of === token) await reshared(of);
    if (of === shared()) return { keyRequired, session: session && { ...session, token: of } };
  }
}

/** signIn begins a session and returns it. The key is kept nowhere. */
export async function signIn(key) {
  const session = await (await send(`${base}/session`, { method: 'POST', body: { key }, headers: credentials(shared()) })).json();
  localStorage.setItem(tokenKey, session.token);
  return session;
}

/** signOut ends the session. */
export async function signOut() {
  await send(`${base}/session`, { method: 'DELETE' });
  localStorage.removeItem(tokenKey);
}

/** socket opens a WebSocket to a path of the API, with a ticket for this one connection. */
export async function socket(path, signal) {
  const response = await admitted(() => send(`${base}/tickets`, { method: 'POST', body: { path }, signal }));
  const { ticket } = await response.json();
  const url = new URL(`${base}/api${path}`, location.href);
  url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
  url.searchParams.set('console-ticket', ticket);
  return new WebSocket(url);
}

/** upload sends one file to a path in a sandbox, and reports the part that is sent, 0 to 1. */
export function upload(id, path, file, { onProgress = () => {}, signal } = {}) {
  const form = new FormData();
  form.append('metadata', JSON.stringify({ path }));
  form.append('file', file, 'file');
  return admitted(() => new Promise((resolve, reject) => {
    const xhr = new XMLHttpRequest(); // fetch does not report progress
    xhr.open('POST', `${base}/api${daemon(id, '/files/upload')}`);
    for (const [name, value] of Object.entries(credentials())) xhr.setRequestHeader(name, value);
    xhr.upload.onprogress = (event) => onProgress(event.loaded / event.total);
    xhr.onerror = () => reject(new ApiError(0, 'UNREACHABLE', 'the service does not answer'));
    xhr.onabort = () => reject(new DOMException('aborted', 'AbortError'));
    xhr.onload = () => {
      if (xhr.status === 200) return resolve();
      let answer = {};
      try {
        answer = JSON.parse(xhr.responseText);
      } catch { /* as above */ }
      return reject(new ApiError(xhr.status, answer.code ?? `HTTP ${xhr.status}`, answer.message ?? xhr.responseText.slice(0, 500), xhr.getResponseHeader('X-Request-ID')));
    };
    signal?.addEventListener('abort', () => xhr.abort());
    xhr.send(form);
  }));
}

/** pause waits, or throws when the signal aborts. */
export const pause = (milliseconds, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, milliseconds);
  signal?.addEventListener('abort', () => { clearTimeout(timer); reject(new DOMException('aborted', 'AbortError')); }, { once: true });
});

const maxEvent = 160 << 20; // characters: the JSON of a kernel's longest message
const perPiece = 64; // what each piece of an event counts beside its characters: an empty one takes memory, too

/** events reads a body of server-sent events and yields {id, data}. It throws an ApiError for an event without an end. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pieces = []; // of the line that has not ended: a result may be one line of many MiB
  let size = 0; // of the event
  let event = { id: undefined, data: '' };
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = value.split('\n');
      for (const [at, piece] of lines.entries()) {
        pieces.push(piece);
        size += piece.length + perPiece;
        if (size > maxEvent) throw new ApiError(413, 'TOO_LARGE', `an event is longer than ${maxEvent} characters`);
        if (at === lines.length - 1) break;
        const line = pieces.join('');
        pieces = [];
        if (line === '') {
          if (event.data) yield { id: event.id, data: JSON.parse(event.data) };
          event = { id: undefined, data: '' };
          size = 0;
        } else if (line.startsWith('id:')) {
          event.id = line.slice(3).trim();
        } else if (line.startsWith('data:')) {
          event.data += line.slice(5).trim();
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

const hiddenFor = 15_000;

/** whileVisible calls an action with a signal that also aborts when the page was hidden for a while: a browser opens six
 * connections to a host, for all of its tabs together. */
export async function whileVisible(signal, action) {
  while (document.hidden) {
    await new Promise((resolve, reject) => {
      document.addEventListener('visibilitychange', resolve, { once: true });
      signal.addEventListener('abort', () => reject(signal.reason), { once: true });
    });
  }
  const inner = new AbortController();
  let timer;
  const look = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => inner.abort(new DOMException('hidden', 'HiddenError')), hiddenFor);
  };
  document.addEventListener('visibilitychange', look);
  try {
    return await action(AbortSignal.any([signal, inner.signal]));
  } finally {
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', look);
  }
}

/** transient reports whether a request may succeed when it is repeated. */
const transient = (error) => error.status === undefined || error.status === 0 || error.status === 429 || (error.status >= 500 && error.status !== 501);

/**
 * follow reads a stream of events, and goes on after the last one when the connection is cut or the page was hidden. It returns when
 * onEvent returns true, and throws what repeating cannot mend, or AbortError.
 *
 * @param {string} path of the stream
 * @param {{signal: AbortSignal, onEvent: (data: object, id?: string) => boolean|void, onLive?: (live: boolean, error?: Error) => void,
 *   first?: {method: string, body: object}, resume?: () => string, after?: string, whenHidden?: boolean}} options first is a request
 *   that begins the stream, which resume then gives the path to go on with; whenHidden keeps the stream of a page that is hidden.
 */
export async function follow(path, { signal, onEvent, onLive = () => {}, first, resume, after, whenHidden = false }) {
  const during = whenHidden ? (own, action) => action(own) : whileVisible;
  let last = after;
  let wait = 500;
  let begin = first;
  for (;;) {
    try {
      const done = await during(signal, async (both) => {
        const at = begin ? path : resume?.() ?? path;
        const response = await request(at, { ...(begin ?? {}), signal: both, headers: { Accept: 'text/event-stream', ...(last && !begin ? { 'Last-Event-ID': last } : {}) } });
        begin = undefined;
        onLive(true);
        wait = 500;
        for await (const event of events(response.body)) {
          if (event.id) last = event.id;
          if (onEvent(event.data, event.id)) return true;
        }
        return false;
      });
      if (done) return;
      onLive(false);
    } catch (error) {
      if (signal.aborted) throw new DOMException('aborted', 'AbortError');
      onLive(false, error);
      if (begin || (error instanceof ApiError && !transient(error))) throw error;
      wait = Math.max(wait, (error.retryAfter ?? 0) * 1000);
    }
    await pause(wait * (0.75 + Math.random() / 2), signal);
    wait = Math.min(wait * 2, 10_000);
  }
}
