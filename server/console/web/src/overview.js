// The sandboxes that the session may see: those that have not ended first.
import { useEffect, useRef, useState } from 'preact/hooks';
import { ActionButtons, Delete } from './actions.js';
import { ByCode } from './bycode.js';
import { HostLoad } from './host.js';
import { Selection } from './selection.js';
import { ended } from './state.js';
import { mayChange, useStore } from './store.js';
import { Ago, bytes, Empty, html, Left, nameOf, Problem, State } from './ui.js';
import { useUsage } from './usage.js';

const order = ['Running', 'Pending', 'Pausing', 'Paused', 'Resuming', 'Stopping', 'Failed', 'Terminated'];
const step = 100; // rows that are shown at once

const text = (sandbox) => [sandbox.id, sandbox.image.uri, sandbox.owner ?? '', ...Object.entries(sandbox.metadata ?? {}).flat()].join('\n').toLowerCase();

// What a column sorts by. Those of numbers and times begin with the largest.
const columns = {
  state: { label: 'State', of: ({ status }) => order.indexOf(status.state) },
  name: { label: 'Name', of: nameOf },
  owner: { label: 'Owner', of: ({ owner }) => owner ?? '' },
  image: { label: 'Image', of: ({ image }) => image.uri },
  cpu: { label: 'CPU', of: ({ limits }) => limits?.cpuMillis ?? Infinity, down: true, by: 'limit' },
  memory: { label: 'Memory', of: ({ limits }) => limits?.memoryBytes ?? Infinity, down: true, by: 'limit' },
  created: { label: 'Created', of: ({ createdAt }) => createdAt, down: true },
  ends: { label: 'Ends in', of: ({ status, expiresAt }) => (ended(status.state) ? '9' : expiresAt) },
};

function compare(column, down) {
  const { of } = columns[column];
  const sign = down ? -1 : 1;
  return (a, b) => {
    const [x, y] = [of(a), of(b)];
    return (x < y ? -sign : x > y ? sign : 0) || b.createdAt.localeCompare(a.createdAt) || a.id.localeCompare(b.id);
  };
}

const groups = {
  open: { label: 'Not ended', has: (state) => !ended(state) },
  ended: { label: 'Ended', has: ended },
  all: { label: 'All', has: () => true },
};

const view = { wanted: 'open', words: '', sort: ['created', true] }; // is kept while another page is shown

export function Overview() {
  const { sandboxes, loaded, error } = useStore();
  const [wanted, setWanted] = useState(view.wanted);
  const [words, setWords] = useState(view.words);
  const [[column, down], setSort] = useState(view.sort);
  const [limit, setLimit] = useState(step);
  const [doomed, setDoomed] = useState(null); // the sandbox that Delete asks about, whose row may go
  const [selected, select] = useState(new Set());
  const [usage, samples] = useUsage(mayChange());
  useEffect(() => { document.title = 'Sandboxes'; }, []);
  useEffect(() => { Object.assign(view, { wanted, words, sort: [column, down] }); }, [wanted, words, column, down]);
  const all = [...sandboxes.values()];
  const counts = new Map();
  for (const { status } of all) counts.set(status.state, (counts.get(status.state) ?? 0) + 1);
  const states = [...new Set([...order, ...counts.keys()])].filter((state) => counts.has(state));
  const needles = words.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = all.filter((sandbox) => needles.every((needle) => text(sandbox).includes(needle)));
  const wants = groups[wanted]?.has ?? ((state) => state === wanted);
  const found = matches.filter(({ status }) => wants(status.state)).sort(compare(column, down));
  const shown = found.slice(0, limit);
  const chosen = found.filter(({ id }) => selected.has(id)); // what the filter hides is not acted on
  const choose = (ids, on) => select((old) => new Set(on ? [...old, ...ids] : [...old].filter((id) => !ids.includes(id))));
  const owned = all.some(({ owner }) => owner);
  const sortBy = (name) => setSort(name === column ? [name, !down] : [name, Boolean(columns[name].down)]);
  const filter = (name, label, n) => html`<button type="button" key=${name} aria-pressed=${String(wanted === name)}
    onClick=${() => { setWanted(wanted === name ? 'open' : name); setLimit(step); }}>${label} <b>${n}</b></button>`;
  const size = (name) => all.reduce((n, { status }) => n + Number(groups[name].has(status.state)), 0);
  const hidden = needles.length ? matches.length - found.length : 0;
  return html`<div class="head">
      <h1>Sandboxes</h1>
      <input id="search" type="search" placeholder="Name, image, owner, id or tag" aria-label="Search" value=${words} onInput=${(event) => setWords(event.target.value)} />
      ${mayChange() && html`<a class="button primary" href="#/new">New sandbox</a>`}
    </div>
    <${Problem} error=${error} />
    <${HostLoad} />
    <div class="filters" role="group" aria-label="Filter">
      ${Object.entries(groups).map(([name, { label }]) => filter(name, label, size(name)))}
      ${states.map((state) => filter(state, html`<${State} state=${state} />`, counts.get(state)))}
      <label class="narrow">Sort by <select value=${column} onChange=${(event) => sortBy(event.target.value)}>
        ${Object.entries(columns).map(([name, { label }]) => html`<option value=${name}>${label}</option>`)}</select></label>
    </div>
    ${mayChange() && html`<${Selection} sandboxes=${chosen} onClear=${() => select(new Set())} />`}
    ${!loaded ? html`<${Empty}>Loading…<//>` : !all.length ? html`<${Empty}>There is no sandbox. ${mayChange() && html`<a href="#/new">Create one</a>`}<//>` :
    !found.length ? html`<${Empty}>${wanted === 'open' && !needles.length ? 'Every sandbox has ended.' : 'No sandbox matches.'}<//>` : html`<table class="rows sandboxes">
      <caption class="hidden">Sandboxes, sorted by ${columns[column].label}</caption>
      <thead><tr>
        ${mayChange() && html`<th scope="col"><input type="checkbox" aria-label="Select all that are shown" checked=${shown.every(({ id }) => selected.has(id))}
          onChange=${(event) => choose(shown.map(({ id }) => id), event.target.checked)} /></th>`}
        ${Object.entries(columns).filter(([name]) => name !== 'owner' || owned).map(([name, { label, by }]) => html`<th scope="col" key=${name} aria-sort=${column === name ? (down ? 'descending' : 'ascending') : undefined}>
          <button type="button" class="sort" title=${by && `Sorted by ${by}`} onClick=${() => sortBy(name)}>${label}<span aria-hidden="true">${column === name ? (down ? ' ↓' : ' ↑') : ''}</span></button></th>`)}
        ${mayChange() && html`<th scope="col"><span class="hidden">Actions</span></th>`}</tr></thead>
      <tbody>${shown.map((sandbox) => html`<${Row} key=${sandbox.id} sandbox=${sandbox} owned=${owned} usage=${usage} sample=${samples.get(sandbox.id)}
        selected=${selected.has(sandbox.id)} onSelect=${(on) => choose([sandbox.id], on)} onDelete=${() => setDoomed(sandbox)} />`)}</tbody>
    </table>`}
    <p class="dim" role="status">${loaded && all.length > 0 && (found.length === all.length ? `${all.length} in all` : `${found.length} of ${all.length}`)}
      ${found.length > limit && html` <button type="button" onClick=${() => setLimit(limit + step)}>Show more</button>`}
      ${hidden > 0 && html` <button type="button" class="link" onClick=${() => setWanted('all')}>${hidden} more match outside of this filter</button>`}</p>
    <${ByCode} of="list" />
    ${doomed && html`<${Delete} sandbox=${doomed} onClose=${() => setDoomed(null)} />`}`;
}

const cores = (millis) => `${Number((millis / 1000).toFixed(2))} ${millis === 1000 ? 'core' : 'cores'}`;

function Row({ sandbox, owned, usage, sample, selected, onSelect, onDelete }) {
  const { id, status, image, owner, limits, createdAt, expiresAt } = sandbox;
  const row = useRef();
  const over = ended(status.state);
  const running = status.state === 'Running';
  useEffect(() => (usage && running ? usage.watch(row.current) : undefined), [usage, running]);
  const used = running ? sample : null;
  const cpu = limits?.cpuMillis ? cores(limits.cpuMillis) : used ? cores(used.cpu_count * 1000) : 'no limit';
  const memory = limits?.memoryBytes ? bytes(limits.memoryBytes) : used ? bytes(used.mem_total_mib * 2 ** 20) : 'no limit';
  return html`<tr ref=${row} data-id=${id} aria-selected=${mayChange() ? String(selected) : undefined}>
    ${mayChange() && html`<td class="pick"><input type="checkbox" aria-label=${`Select ${nameOf(sandbox)}`} checked=${selected} onChange=${(event) => onSelect(event.target.checked)} /></td>`}
    <td><${State} state=${status.state} /></td>
    <th scope="row"><a href=${`#/sandboxes/${id}`}>${nameOf(sandbox)}</a> ${nameOf(sandbox) !== id.slice(0, 8) && html`<code class="dim">${id.slice(0, 8)}</code>`}
      ${status.state === 'Failed' && html`<div class="reason">${status.reason}</div>`}</th>
    ${owned && html`<td data-label="Owner" class="owner">${owner ?? '–'}</td>`}
    <td data-label="Image" class="image"><code>${image.uri}</code></td>
    <td data-label="CPU" class="use" data-used=${used ? 'true' : undefined}>${used && `${used.cpu_used_pct.toFixed(0)} % of `}${over ? '–' : cpu}</td>
    <td data-label="Memory" class="use">${used && `${bytes(used.mem_used_mib * 2 ** 20)} of `}${over ? '–' : memory}</td>
    <td data-label="Created"><${Ago} at=${createdAt} /></td>
    <td data-label="Ends in">${over ? '–' : html`<${Left} until=${expiresAt} />`}</td>
    ${mayChange() && html`<td class="tools"><${ActionButtons} sandbox=${sandbox} small onDelete=${onDelete} /></td>`}
  </tr>`;
}
