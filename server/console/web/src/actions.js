// What can be done to a sandbox as a whole.
import { useState } from 'preact/hooks';
import { call } from './api.js';
import { Confirm, html, Modal, moment, nameOf, Problem, useAction } from './ui.js';

// One button, so that it keeps the focus while the sandbox changes.
const switches = { Running: ['Pause', 'pause'], Pausing: ['Pause'], Paused: ['Resume', 'resume'], Resuming: ['Resume'] };

/** ActionButtons are the actions that the state of the sandbox permits. onDelete, if given, is called in place of the question. */
export function ActionButtons({ sandbox, small = false, onDelete }) {
  const [busy, run, error, clear] = useAction();
  const [asked, ask] = useState(null);
  const { id, status: { state } } = sandbox;
  const path = `/v1/sandboxes/${id}`;
  const name = nameOf(sandbox);
  const [label, action] = switches[state] ?? [];
  const over = state === 'Terminated' || state === 'Failed' || state === 'Stopping';
  return html`
    ${label && html`<button type="button" aria-disabled=${String(busy || !action)} aria-label=${`${label} ${name}`}
      onClick=${() => { if (!busy && action) run(() => call('POST', `${path}/${action}`)); }}>${label}</button>`}
    ${!over && !small && html`<button type="button" aria-label=${`Renew ${name}`} onClick=${() => ask('renew')}>Renew…</button>`}
    ${!over && html`<button type="button" class="danger" aria-label=${`Delete ${name}`} onClick=${onDelete ?? (() => ask('delete'))}>Delete…</button>`}
    ${(state === 'Failed' || state === 'Terminated') && html`<a class="button" aria-label=${`Create ${name} again`} href=${`#/new/${id}`}>Again…</a>`}
    ${error && html`<${Modal} title="The request failed" onClose=${clear}>
      <${Problem} error=${error} />
      <div class="actions"><button type="button" autofocus onClick=${clear}>Close</button></div>
    <//>`}
    ${asked === 'delete' && html`<${Delete} sandbox=${sandbox} onClose=${() => ask(null)} />`}
    ${asked === 'renew' && html`<${Renew} sandbox=${sandbox} onClose=${() => ask(null)} />`}`;
}

/** Delete asks before a sandbox is deleted. */
export function Delete({ sandbox, onClose }) {
  return html`<${Confirm} title=${`Delete ${nameOf(sandbox)}?`} verb="Delete" onClose=${onClose} onConfirm=${() => call('DELETE', `/v1/sandboxes/${sandbox.id}`)}>
    <p>Its processes end and its files are lost.</p>
  <//>`;
}

const steps = [['15 minutes', 900], ['1 hour', 3600], ['4 hours', 14400], ['12 hours', 43200], ['24 hours', 86400]];

/** LifeChoice asks for how long a sandbox is to stay. */
export function LifeChoice({ seconds, onChange }) {
  return html`<label for="renew">Time until the end, from now</label>
    <select id="renew" autofocus onChange=${(event) => onChange(Number(event.target.value))}>
      ${steps.map(([label, value]) => html`<option value=${value} selected=${value === seconds}>${label}</option>`)}
    </select>`;
}

function Renew({ sandbox, onClose }) {
  const [busy, run, error] = useAction();
  const [seconds, setSeconds] = useState(3600);
  const until = new Date(Date.now() + seconds * 1000 - 1000); // at most 24 hours from when it arrives
  const submit = (event) => {
    event.preventDefault();
    run(async () => {
      await call('POST', `/v1/sandboxes/${sandbox.id}/renew-expiration`, { expiresAt: until.toISOString() });
      onClose();
    });
  };
  return html`<${Modal} title=${`Renew ${nameOf(sandbox)}`} onClose=${onClose}>
    <form onSubmit=${submit}>
      <p>It ends ${moment(sandbox.expiresAt)}.</p>
      <${LifeChoice} seconds=${seconds} onChange=${setSeconds} />
      <p class="dim">Until ${moment(until)}</p>
      <${Problem} error=${error} />
      <div class="actions"><button type="button" onClick=${onClose}>Cancel</button><button class="primary" disabled=${busy}>Renew</button></div>
    </form>
  <//>`;
}
