// All sandboxes that the session may see.
import { useEffect, useState } from 'preact/hooks';
import { ActionButtons, Delete } from './actions.js';
import { HostLoad } from './host.js';
import { ended } from './state.js';
import { mayChange, useStore } from './store.js';
import { Ago, Empty, html, Left, nameOf, Problem, State } from './ui.js';

const order = ['Running', 'Pending', 'Pausing', 'Paused', 'Resuming', 'Stopping', 'Failed', 'Terminated'];
const step = 100; // rows that are shown at once

const text = (sandbox) => [sandbox.id, sandbox.image.uri, ...Object.entries(sandbox.metadata ?? {}).flat()].join('\n').toLowerCase();

export function Overview() {
  const { sandboxes, loaded, error } = useStore();
  const [wanted, setWanted] = useState(null);
  const [words, setWords] = useState('');
  const [limit, setLimit] = useState(step);
  const [doomed, setDoomed] = useState(null); // the sandbox that Delete asks about, whose row may go
  useEffect(() => { document.title = 'Sandboxes'; }, []);
  const all = [...sandboxes.values()].sort((a, b) => b.createdAt.localeCompare(a.createdAt) || a.id.localeCompare(b.id));
  const counts = new Map();
  for (const { status } of all) counts.set(status.state, (counts.get(status.state) ?? 0) + 1);
  const states = [...new Set([...order, ...counts.keys()])].filter((state) => counts.has(state));
  const needles = words.toLowerCase().split(/\s+/).filter(Boolean);
  const found = all.filter((sandbox) => (!wanted || sandbox.status.state === wanted) && needles.every((needle) => text(sandbox).includes(needle)));
  return html`<div class="head">
      <h1>Sandboxes</h1>
      <input id="search" type="search" placeholder="Name, image, id or tag" aria-label="Search" value=${words} onInput=${(event) => setWords(event.target.value)} />
      ${mayChange() && html`<a class="button primary" href="#/new">New sandbox</a>`}
    </div>
    <${Problem} error=${error} />
    <${HostLoad} />
    <div class="filters" role="group" aria-label="States">
      <button type="button" aria-pressed=${String(!wanted)} onClick=${() => setWanted(null)}>All <b>${all.length}</b></button>
      ${states.map((state) => html`<button type="button" key=${state} aria-pressed=${String(wanted === state)} onClick=${() => setWanted(wanted === state ? null : state)}>
        <${State} state=${state} /> <b>${counts.get(state)}</b></button>`)}
    </div>
    ${!loaded ? html`<${Empty}>Loading…<//>` : !all.length ? html`<${Empty}>There is no sandbox. ${mayChange() && html`<a href="#/new">Create one</a>`}<//>` :
    !found.length ? html`<${Empty}>No sandbox matches.<//>` : html`<table class="rows sandboxes">
      <caption class="hidden">Sandboxes, newest first</caption>
      <thead><tr><th scope="col">State</th><th scope="col">Name</th><th scope="col">Image</th><th scope="col">Created</th><th scope="col">Ends in</th>
        ${mayChange() && html`<th scope="col"><span class="hidden">Actions</span></th>`}</tr></thead>
      <tbody>${found.slice(0, limit).map((sandbox) => html`<${Row} key=${sandbox.id} sandbox=${sandbox} onDelete=${() => setDoomed(sandbox)} />`)}</tbody>
    </table>
    <p class="dim" role="status">${found.length === all.length ? `${all.length} in all` : `${found.length} of ${all.length}`}
      ${found.length > limit && html` <button type="button" onClick=${() => setLimit(limit + step)}>Show more</button>`}</p>`}
    ${doomed && html`<${Delete} sandbox=${doomed} onClose=${() => setDoomed(null)} />`}`;
}

function Row({ sandbox, onDelete }) {
  const { id, status, image, createdAt, expiresAt } = sandbox;
  return html`<tr>
    <td><${State} state=${status.state} /></td>
    <th scope="row"><a href=${`#/sandboxes/${id}`}>${nameOf(sandbox)}</a> ${nameOf(sandbox) !== id.slice(0, 8) && html`<code class="dim">${id.slice(0, 8)}</code>`}
      ${status.state === 'Failed' && html`<div class="reason">${status.reason}</div>`}</th>
    <td data-label="Image" class="image"><code>${image.uri}</code></td>
    <td data-label="Created"><${Ago} at=${createdAt} /></td>
    <td data-label="Ends in">${ended(status.state) ? '–' : html`<${Left} until=${expiresAt} />`}</td>
    ${mayChange() && html`<td class="tools"><${ActionButtons} sandbox=${sandbox} small onDelete=${onDelete} /></td>`}
  </tr>`;
}
