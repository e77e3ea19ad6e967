// What can be done to several sandboxes at once.
import { useState } from 'preact/hooks';
import { LifeChoice } from './actions.js';
import { call } from './api.js';
import { ended } from './state.js';
import { Confirm, html, Modal, nameOf, Problem, useAction } from './ui.js';

const parallel = 4; // requests at a time

const verbs = {
  Pause: { past: 'paused', allows: (state) => state === 'Running', send: ({ id }) => call('POST', `/v1/sandboxes/${id}/pause`) },
  Resume: { past: 'resumed', allows: (state) => state === 'Paused', send: ({ id }) => call('POST', `/v1/sandboxes/${id}/resume`) },
  Renew: { past: 'renewed', allows: (state) => !ended(state) && state !== 'Stopping', send: ({ id }, until) => call('POST', `/v1/sandboxes/${id}/renew-expiration`, { expiresAt: until.toISOString() }) },
  Delete: { past: 'deleted', allows: (state) => !ended(state) && state !== 'Stopping', send: ({ id }) => call('DELETE', `/v1/sandboxes/${id}`) },
};

/** applyTo sends the request of a verb for each sandbox, and returns {done, failed: [{sandbox, error}]}. */
async function applyTo(verb, sandboxes, argument) {
  const left = [...sandboxes];
  const failed = [];
  let done = 0;
  const work = async () => {
    while (left.length) {
      const sandbox = left.shift();
      try {
        await verb.send(sandbox, argument);
        done++;
      } catch (error) {
        if (error.status === 404 && verb === verbs.Delete) done++; // another client was first
        else failed.push({ sandbox, error });
      }
    }
  };
  await Promise.all(Array.from({ length: parallel }, work));
  return { done, failed };
}

const count = (n) => `${n} ${n === 1 ? 'sandbox' : 'sandboxes'}`;

/** Selection is the bar with the actions for the sandboxes that are selected. */
export function Selection({ sandboxes, onClear }) {
  const [busy, run] = useAction();
  const [asked, ask] = useState(null); // {name, chosen}: the sandboxes at the time of the question
  const [seconds, setSeconds] = useState(3600);
  const [result, setResult] = useState(null);
  const chosenFor = (name) => sandboxes.filter(({ status: { state } }) => verbs[name].allows(state));
  const perform = (name, chosen, argument) => run(async () => setResult({ name, ...await applyTo(verbs[name], chosen, argument) }));
  if (!sandboxes.length && !result && !asked) return null;
  return html`<div class="selection" role="group" aria-label="Selected sandboxes">
      <b role="status">${sandboxes.length} selected</b>
      ${Object.keys(verbs).map((name) => {
    const chosen = chosenFor(name);
    const question = name === 'Renew' || name === 'Delete';
    return html`<button type="button" key=${name} class=${name === 'Delete' ? 'danger' : ''} disabled=${busy || !chosen.length}
          onClick=${() => (question ? ask({ name, chosen }) : perform(name, chosen))}>${name}${question ? '…' : ''} <b>${chosen.length}</b></button>`;
  })}
      <button type="button" class="quiet" onClick=${() => { setResult(null); onClear(); }}>Clear the selection</button>
      ${result && html`<span class="dim" role="status">${count(result.done)} ${verbs[result.name].past}${result.failed.length ? `, ${result.failed.length} failed` : ''}</span>`}
    </div>
    ${asked?.name === 'Delete' && html`<${Confirm} title=${`Delete ${count(asked.chosen.length)}?`} verb="Delete" onClose=${() => ask(null)} onConfirm=${() => { perform('Delete', asked.chosen); }}>
      <p>Their processes end and their files are lost.</p>
      <ul class="names">${asked.chosen.map((sandbox) => html`<li key=${sandbox.id}>${nameOf(sandbox)}</li>`)}</ul><//>`}
    ${asked?.name === 'Renew' && html`<${Confirm} title=${`Renew ${count(asked.chosen.length)}`} verb="Renew" look="primary" onClose=${() => ask(null)}
      onConfirm=${() => { perform('Renew', asked.chosen, new Date(Date.now() + seconds * 1000 - 1000)); }}>
      <${LifeChoice} seconds=${seconds} onChange=${setSeconds} /><//>`}
    ${result?.failed.length > 0 && html`<${Modal} title=${`${result.name}: ${result.failed.length} failed`} onClose=${() => setResult({ ...result, failed: [] })}>
      ${result.failed.slice(0, 20).map(({ sandbox, error }) => html`<p key=${sandbox.id}><b>${nameOf(sandbox)}</b></p><${Problem} error=${error} />`)}
      ${result.failed.length > 20 && html`<p>And ${result.failed.length - 20} more.</p>`}
      <div class="actions"><button type="button" autofocus onClick=${() => setResult({ ...result, failed: [] })}>Close</button></div><//>`}`;
}
