// The form for a new sandbox. Its rules are those of the contract, which contract.js repeats and a test compares.
import { useEffect, useRef, useState } from 'preact/hooks';
import { remember, useAgain } from './again.js';
import { call } from './api.js';
import { ByCode } from './bycode.js';
import { limits } from './contract.js';
import { store } from './store.js';
import { words } from './words.js';
import { html, Problem, useAction } from './ui.js';

/** pairs reads lines of NAME=VALUE. */
function pairs(text, field) {
  const found = {};
  for (const line of text.split('\n').filter((each) => each.trim())) {
    const at = line.indexOf('=');
    if (at < 1) throw new Error(`${field}: "${line}" is not NAME=VALUE`);
    found[line.slice(0, at).trim()] = line.slice(at + 1);
  }
  return found;
}

/** rules reads lines of "allow TARGET" and "deny TARGET". */
function rules(text) {
  return text.split('\n').filter((each) => each.trim()).map((line) => {
    const [action, target, ...rest] = line.trim().split(/\s+/);
    if (!limits.actions.includes(action) || !target || rest.length) throw new Error(`networkPolicy/egress: "${line}" is not "allow TARGET" or "deny TARGET"`);
    return { action, target };
  });
}

function json(text, field) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${field}: ${error.message}`);
  }
}

// What the contract has for services which publish no defaults.
const fallback = { timeout: 3600, resourceLimits: {}, entrypoint: ['/opt/sandbox/execd-init', 'idle'] };

/** bodyOf makes the request of what was typed; what is empty has the service's default, or is left out. */
export function bodyOf({ elements }, defaults) {
  const value = (name) => elements[name].value.trim();
  const body = { image: { uri: value('uri') || defaults.image || '' }, timeout: Number(value('timeout') || defaults.timeout), resourceLimits: {} };
  if (elements.imageEntrypoint.checked) body.imageEntrypoint = true;
  const typed = words(elements.entrypoint.value);
  if (typed.length) body.entrypoint = typed;
  else if (!body.imageEntrypoint) body.entrypoint = defaults.entrypoint;
  if (value('username') || elements.password.value) body.image.auth = { username: value('username'), password: elements.password.value };
  for (const name of ['cpu', 'memory', 'gpu']) if (value(name)) body.resourceLimits[name] = value(name);
  const env = pairs(elements.env.value, 'env');
  if (Object.keys(env).length) body.env = env;
  const metadata = pairs(elements.metadata.value, 'metadata');
  if (value('name')) metadata.name = value('name');
  if (Object.keys(metadata).length) body.metadata = metadata;
  if (elements.runtimeClass?.value) body.runtimeClass = elements.runtimeClass.value;
  if (value('defaultAction') || value('egress') || elements.dryRun.checked) {
    // Without it the service allows what no rule matches, which "no policy" does not say.
    if (!value('defaultAction')) throw new Error('networkPolicy/defaultAction: choose allow or deny for what no rule matches');
    body.networkPolicy = { egress: rules(elements.egress.value), defaultAction: value('defaultAction') };
    if (elements.dryRun.checked) body.networkPolicy.dryRun = true;
  }
  if (value('volumes')) body.volumes = json(value('volumes'), 'volumes');
  if (value('extensions')) body.extensions = json(value('extensions'), 'extensions');
  return body;
}

// The fields of the form by the place that an error of the API names. Some of its rules write body/resourceLimits/cpu, others resourceLimits.cpu.
const places = [['body/image/auth', 'username'], ['body/image', 'uri'], ['body/timeout', 'timeout'], ['body/resourceLimits/cpu', 'cpu'], ['body/resourceLimits/memory', 'memory'],
  ['body/resourceLimits/gpu', 'gpu'], ['body/entrypoint', 'entrypoint'], ['body/imageEntrypoint', 'imageEntrypoint'], ['body/env', 'env'], ['body/metadata', 'metadata'], ['body/networkPolicy/defaultAction', 'defaultAction'], ['body/networkPolicy', 'egress'],
  ['body/runtimeClass', 'runtimeClass'], ['body/volumes', 'volumes'], ['body/extensions', 'extensions']];

/** useChoices returns the defaults and the runtime classes of the service, and the images to suggest: those that its engine has, which it lists for
 * administrators alone, and those of the sandboxes that the session sees. */
function useChoices() {
  const [classes, setClasses] = useState([]);
  const [defaults, setDefaults] = useState(fallback);
  const [stored, setStored] = useState([]);
  useEffect(() => {
    const control = new AbortController();
    const read = (path, use) => call('GET', path, undefined, { signal: control.signal }).then(use, () => {}); // the form works without
    read('/v1/version', (version) => {
      setClasses(version.runtimeClasses);
      setDefaults(version.defaults ?? fallback);
    });
    if (store.session?.role === 'admin') read('/v1/images', (list) => setStored(list.items.flatMap((image) => image.names)));
    return () => control.abort();
  }, []);
  const used = [...store.sandboxes.values()].map((sandbox) => sandbox.image.uri);
  return { classes, defaults, images: [...new Set([...stored, ...used])].sort() };
}

/** Create is the form; again is the id of the ended sandbox whose request it begins with, if any. */
export function Create({ again }) {
  const [busy, run, error] = useAction();
  const [wrong, setWrong] = useState(null);
  const { classes, defaults, images } = useChoices();
  const { form: formRef, note } = useAgain(again, classes);
  const usual = (of, without) => (of ? `default: ${of}` : without);
  const sent = useRef({});
  useEffect(() => { document.title = 'New sandbox · Sandboxes'; }, []);
  const submit = (event) => {
    event.preventDefault();
    const form = event.target;
    setWrong(null);
    run(async () => {
      try {
        const body = bodyOf(form, defaults);
        const text = JSON.stringify(body);
        // A create that is repeated because its answer was lost makes no second sandbox.
        if (sent.current.text !== text) sent.current = { text, key: crypto.getRandomValues(new Uint32Array(4)).join('-') };
        const { id } = await call('POST', '/v1/sandboxes', body, { headers: { 'Idempotency-Key': sent.current.key } });
        remember(id, body);
        location.hash = `#/sandboxes/${id}`;
      } catch (failure) {
        const at = failure.message.replace(/^resourceLimits\./, 'resourceLimits/');
        const name = places.find(([place]) => at.startsWith(place) || at.startsWith(place.slice(5)))?.[1];
        if (name) {
          setWrong(name);
          form.elements[name].closest('details')?.setAttribute('open', '');
          form.elements[name].focus();
        }
        throw failure;
      }
    });
  };
  const field = (name, label, attributes, help) => html`<div class="field">
    <label for=${`f-${name}`}>${label}</label>
    <input id=${`f-${name}`} name=${name} spellcheck=${false} autocomplete="off" aria-describedby=${help ? `h-${name}` : undefined} aria-invalid=${wrong === name ? 'true' : undefined} ...${attributes} />
    ${help && html`<p class="dim" id=${`h-${name}`}>${help}</p>`}</div>`;
  const area = (name, label, placeholder, help) => html`<div class="field">
    <label for=${`f-${name}`}>${label}</label>
    <textarea id=${`f-${name}`} name=${name} class="code" rows="3" spellcheck=${false} placeholder=${placeholder} aria-describedby=${help ? `h-${name}` : undefined} aria-invalid=${wrong === name ? 'true' : undefined}></textarea>
    ${help && html`<p class="dim" id=${`h-${name}`}>${help}</p>`}</div>`;
  return html`<div class="head"><h1>New sandbox</h1></div>
    ${note}
    <form class="create" ref=${formRef} onSubmit=${submit}>
      ${field('uri', 'Image', { required: !defaults.image, placeholder: usual(defaults.image, 'python:3.12'), list: 'images' })}
      <datalist id="images">${images.map((name) => html`<option key=${name} value=${name} />`)}</datalist>
      ${field('entrypoint', 'Entrypoint', { placeholder: usual(defaults.entrypoint.join(' ')) }, 'The program and its arguments, with quotes as in a shell; nothing is expanded. The sandbox ends with it. The default is in every sandbox and does nothing.')}
      <label><input type="checkbox" name="imageEntrypoint" /> Run the image’s own entrypoint instead</label>
      ${field('name', 'Name', { maxlength: 4096 })}
      <div class="fields">
        ${field('timeout', 'Lifetime in seconds', { type: 'number', min: limits.timeout.minimum, max: limits.timeout.maximum, placeholder: usual(defaults.timeout) }, `${limits.timeout.minimum} to ${limits.timeout.maximum}`)}
        ${field('cpu', 'CPU', { pattern: limits.cpu, placeholder: usual(defaults.resourceLimits.cpu, 'no limit') }, 'Cores, or thousandths: 500m')}
        ${field('memory', 'Memory', { pattern: limits.memory, placeholder: usual(defaults.resourceLimits.memory, 'no limit') }, 'Bytes with a unit: 512Mi')}
        ${field('gpu', 'GPUs', { pattern: limits.gpu })}
        ${classes.length > 0 && html`<div class="field"><label for="f-runtimeClass">Runtime class</label>
          <select id="f-runtimeClass" name="runtimeClass" aria-invalid=${wrong === 'runtimeClass' ? 'true' : undefined}>
            <option value="">default</option>${classes.map((name) => html`<option key=${name}>${name}</option>`)}</select></div>`}
      </div>
      <details><summary>Environment and tags</summary>
        ${area('env', 'Environment', 'LANG=C.UTF-8', 'A NAME=VALUE on each line')}
        ${area('metadata', 'Metadata', 'team=research', 'A NAME=VALUE on each line')}
      </details>
      <details><summary>Network policy</summary>
        <div class="field"><label for="f-defaultAction">What no rule matches</label>
          <select id="f-defaultAction" name="defaultAction" aria-invalid=${wrong === 'defaultAction' ? 'true' : undefined}><option value="">no policy</option>${limits.actions.map((action) => html`<option>${action}</option>`)}</select></div>
        ${area('egress', 'Rules', 'allow *.example.com\nallow 10.20.0.0/16', 'allow or deny and a domain, wildcard domain or CIDR range on each line; the first that matches decides')}
        <label><input type="checkbox" name="dryRun" /> Dry run: record, and let everything pass</label>
      </details>
      <details><summary>Private registry</summary>
        ${field('username', 'Username')}
        ${field('password', 'Password or token', { type: 'password', autocomplete: 'off' })}
      </details>
      <details><summary>Volumes and extensions</summary>
        ${area('volumes', 'Volumes', '[{"name": "data", "mountPath": "/data", "pvc": {"claimName": "data"}}]', 'JSON')}
        ${area('extensions', 'Extensions', '{"example.priority": "high"}', 'JSON')}
      </details>
      <${Problem} error=${error} />
      <div class="actions"><a class="button" href="#/">Cancel</a><button class="primary" disabled=${busy}>Create</button></div>
    </form>
    <${ByCode} of="new" />`;
}
