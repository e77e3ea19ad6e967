// What the page holds of the service: its session and its sandboxes, kept current by one stream of events.
import { useLayoutEffect, useReducer } from 'preact/hooks';
import { actAs, ApiError, call, follow, onRefused, pause, readSession, signIn, signOut } from './api.js';
import { drafts } from './drafts.js';

/** store is read by pages and changed in this file alone. */
export const store = {
  keyRequired: true,
  session: undefined, // undefined: not known yet; null: none
  ended: null, // why the last session ended
  sandboxes: new Map(),
  loaded: false,
  live: false,
  lostAt: null, // since when the service does not answer, ms
  error: null,
};

const listeners = new Set();
let scheduled = false;

function changed() {
  if (scheduled) return;
  scheduled = true;
  queueMicrotask(() => {
    scheduled = false;
    for (const listener of listeners) listener();
  });
}

/** useStore renders a component again whenever the store changes. */
export function useStore() {
  const [, again] = useReducer((n) => n + 1, 0);
  useLayoutEffect(() => { // before anything else happens: an effect of a hidden page comes late
    listeners.add(again);
    return () => listeners.delete(again);
  }, []);
  return store;
}

/** mayChange reports whether the session may change sandboxes and run something in them. */
export const mayChange = () => store.session?.role !== 'viewer';

let following;
let whose; // the name that everything in the page's memory belongs to, such as links and what cells gave back

function begin(session) {
  if (whose !== undefined && whose !== session.name) {
    drafts.clear(); // or the browser asks whether to leave the page
    return location.reload();
  }
  whose = session.name;
  actAs(session);
  if (store.session) { // in the same name: what the page shows goes on
    store.session = session;
    return changed();
  }
  Object.assign(store, { session, ended: null, sandboxes: new Map(), loaded: false, live: false, lostAt: null, error: null });
  following?.abort();
  following = new AbortController();
  followAll(following.signal).catch((error) => {
    if (error.name !== 'AbortError') {
      store.error = error;
      changed();
    }
  });
  changed();
}

function end(reason) {
  following?.abort();
  actAs(null);
  Object.assign(store, { session: null, ended: reason, sandboxes: new Map(), loaded: false, live: false, lostAt: null, error: null });
  changed();
}

const over = () => new ApiError(401, 'UNAUTHORIZED', 'The session has ended; sign in again.');

/** find looks for the session. A service without keys begins one for everybody. */
async function find() {
  const { keyRequired, session } = await readSession();
  store.keyRequired = keyRequired;
  if (session) begin(session);
  else if (!keyRequired) begin(await signIn(''));
  else end(store.session ? over() : store.ended);
}

let finding; // one at a time

const findOnce = () => (finding ??= find().finally(() => { finding = undefined; }));

/** start finds out whether there is a session, now and whenever that may have changed. */
export async function start() {
  onRefused(findOnce);
  await findOnce().catch(end);
}

/** enter signs in with a key. */
export async function enter(key) { begin(await signIn(key)); }

/** leave signs out. */
export async function leave() {
  await signOut();
  end(null);
}

/** followAll lists the sandboxes and applies what happens from then on. The stream is open before the list is read, so nothing falls
 * between the two. */
async function followAll(signal) {
  let early = [];
  let listing = false;
  const relist = async () => {
    if (listing) return;
    listing = true;
    early = [];
    try {
      const found = await listAll(signal);
      store.sandboxes = new Map(found.map((sandbox) => [sandbox.id, sandbox]));
      store.loaded = true;
      store.error = null;
    } finally {
      listing = false;
    }
    for (const event of early) apply(event, signal);
    changed();
  };
  const keepTrying = async () => {
    for (;;) {
      try {
        return await relist();
      } catch (error) {
        if (error.name === 'AbortError' || error.status === 401) return;
        store.error = error;
        changed();
        await pause(2000, signal).catch(() => {});
      }
    }
  };
  let known = false;
  await follow('/v1/events', {
    signal,
    onLive(live, error) {
      store.live = live;
      if (live) store.lostAt = null;
      else if (error?.name !== 'HiddenError') store.lostAt ??= Date.now();
      changed();
      if (live && !known) {
        known = true;
        keepTrying();
      }
    },
    onEvent(event) {
      if (event.type === 'reset') keepTrying();
      else if (listing || !store.loaded) early.push(event);
      else apply(event, signal);
    },
  });
}

async function listAll(signal) {
  const found = [];
  for (let page = 1; ; page++) {
    const list = await call('GET', `/v1/sandboxes?pageSize=1000&page=${page}`, undefined, { signal });
    found.push(...list.items);
    if (!list.pagination.hasNextPage) return found;
  }
}

function apply(event, signal) {
  if (!event.sandboxId) return;
  const old = store.sandboxes.get(event.sandboxId);
  if (event.type === 'forgotten') {
    store.sandboxes.delete(event.sandboxId);
    changed();
    return;
  }
  if (!old) {
    if (reading.has(event.sandboxId)) reading.get(event.sandboxId).push(event);
    else read(event.sandboxId, signal);
    return;
  }
  const next = { ...old };
  switch (event.type) {
    case 'state':
      // What the list has may be newer than an event that came while it was read.
      if (new Date(event.timestamp) < new Date(old.status.lastTransitionAt)) return;
      next.status = { state: event.to, reason: event.reason ?? '', message: event.message ?? '', lastTransitionAt: event.timestamp };
      break;
    case 'progress':
      next.status = { ...old.status, message: event.message ?? old.status.message };
      break;
    case 'renewed':
      next.expiresAt = event.expiresAt;
      break;
    case 'metadata':
      next.metadata = { ...old.metadata, ...event.metadata };
      for (const key of event.metadataRemoved ?? []) delete next.metadata[key];
      break;
    case 'lifecycle':
      next.lifecycle = event.lifecycle;
      break;
    case 'snapshot':
      next.snapshotEvent = event; // the page of its snapshots reads them again
      break;
    default:
      return;
  }
  store.sandboxes.set(next.id, next);
  changed();
}

const reading = new Map(); // the ids of sandboxes that are being read, and the events that came meanwhile

/** read gets one sandbox that the list did not have, and returns the error if that fails. */
export async function read(id, signal) {
  if (reading.has(id)) return undefined;
  reading.set(id, []);
  try {
    store.sandboxes.set(id, await call('GET', `/v1/sandboxes/${encodeURIComponent(id)}`, undefined, { signal }));
    return undefined;
  } catch (error) {
    return error instanceof ApiError ? error : undefined;
  } finally {
    const early = reading.get(id);
    reading.delete(id);
    if (store.sandboxes.has(id)) early.forEach((event) => apply(event, signal));
    changed();
  }
}
