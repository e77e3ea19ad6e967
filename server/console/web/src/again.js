// A sandbox that has ended, created again: the form for a new one with what is known of the request for the old one.
import { useEffect, useRef, useState } from 'preact/hooks';
import { limits } from './contract.js';
import { read, store } from './store.js';
import { html, nameOf, Problem } from './ui.js';

const most = 100; // requests that are kept
const sent = new Map(); // what this page has asked for, by the id of the sandbox; in the page's memory alone

/** remember keeps the request that a sandbox was created with, without the credentials of a registry. */
export function remember(id, { image: { uri }, ...rest }) {
  sent.set(id, { image: { uri }, ...rest });
  if (sent.size > most) sent.delete(sent.keys().next().value);
}

/** memoryOf writes bytes in a unit that the contract takes, rounded down to KiB where none fits. */
function memoryOf(bytes) {
  const units = [['Gi', 2 ** 30], ['Mi', 2 ** 20], ['G', 1e9], ['M', 1e6], ['Ki', 2 ** 10], ['k', 1e3]];
  const [unit, size] = units.find(([, each]) => bytes % each === 0) ?? ['Ki', 2 ** 10];
  return `${Math.floor(bytes / size)}${unit}`;
}

/** requestOf makes a request of what the service shows of a sandbox. */
function requestOf({ image, createdAt, expiresAt, limits: { cpuMillis, memoryBytes, gpus } = {}, entrypoint, metadata, runtimeClass, extensions }) {
  const { minimum, maximum } = limits.timeout;
  const life = Math.round((new Date(expiresAt) - new Date(createdAt)) / 1000);
  return {
    image, entrypoint, metadata, runtimeClass, extensions,
    timeout: Math.min(maximum, Math.max(minimum, life)),
    resourceLimits: {
      cpu: cpuMillis && `${cpuMillis}m`,
      memory: memoryBytes && memoryOf(memoryBytes),
      gpu: gpus && (gpus < 0 ? 'all' : String(gpus)),
    },
  };
}

const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
const lines = (pairs) => Object.entries(pairs ?? {}).map(([name, value]) => `${name}=${value}`).join('\n');
const json = (value) => (value === undefined ? '' : JSON.stringify(value, null, 2));

/** fill writes a request into the fields of the form. */
function fill({ elements }, { image, timeout, resourceLimits, entrypoint = [], imageEntrypoint = false, env, metadata: { name, ...metadata } = {}, networkPolicy, runtimeClass, volumes, extensions }) {
  const values = {
    uri: image.uri, timeout, ...{ cpu: '', memory: '', gpu: '' }, ...resourceLimits, entrypoint: entrypoint.map(quoted).join(' '), name, env: lines(env), metadata: lines(metadata),
    defaultAction: networkPolicy && (networkPolicy.defaultAction ?? 'allow'), runtimeClass, volumes: json(volumes), extensions: json(extensions),
    egress: networkPolicy?.egress?.map(({ action, target }) => `${action} ${target}`).join('\n'),
  };
  for (const [field, value] of Object.entries(values)) {
    if (!elements[field]) continue;
    elements[field].value = value ?? '';
    if (value) elements[field].closest('details')?.setAttribute('open', '');
  }
  if (elements.imageEntrypoint) elements.imageEntrypoint.checked = imageEntrypoint;
  if (elements.dryRun) elements.dryRun.checked = Boolean(networkPolicy?.dryRun);
}

/** useAgain fills the form that the returned ref is put on for the sandbox with an id, and returns what the page says about that.
 * It fills the form again when ready changes: choices that the form has loaded. */
export function useAgain(id, ready) {
  const form = useRef();
  const [error, setError] = useState(null);
  const [old, setOld] = useState(null);
  useEffect(() => {
    if (!id) return;
    (async () => {
      const failure = store.sandboxes.has(id) ? undefined : await read(id);
      if (failure) setError(failure);
      else setOld(store.sandboxes.get(id) ?? null);
    })();
  }, [id]);
  const filled = useRef(false);
  useEffect(() => {
    if (!old || !form.current) return;
    const request = sent.get(id) ?? requestOf(old);
    if (!filled.current) fill(form.current, request);
    else if (request.runtimeClass && form.current.elements.runtimeClass) form.current.elements.runtimeClass.value = request.runtimeClass;
    filled.current = true;
  }, [old, ready]);
  const note = !id ? null : error ? html`<${Problem} error=${error} />` : old && html`<p class="note" role="status">${sent.has(id) ?
    html`The form has the request for <b>${nameOf(old)}</b>, as this page sent it. Enter the password of a private registry again.` :
    html`The form has what the service keeps of <b>${nameOf(old)}</b>: image, entrypoint, lifetime, limits, metadata, runtime class and extensions.
      It does not keep environment variables, volumes, the network policy and the credentials of a registry: enter them again where the sandbox needs them.`}</p>`;
  return { form, note };
}
