// Cells of code, run in contexts of the sandbox.
import { useEffect, useReducer, useState } from 'preact/hooks';
import { call, daemon, follow } from './api.js';
import { BookFile } from './bookfile.js';
import { freshCell as fresh, languages } from './ipynb.js';
import { Output, append } from './output.js';
import { unusable } from './state.js';
import { html, Problem, useAction } from './ui.js';

const notebooks = new Map(); // by sandbox: cells outlive the tab that shows them

const active = ({ status }) => ['queued', 'waiting', 'running'].includes(status);

// A notebook that was opened from a file or saved into one is lost with the page, unlike the file.
addEventListener('beforeunload', (event) => { if ([...notebooks.values()].some(({ dirty, path }) => dirty && path)) event.preventDefault(); });

function notebookOf(id) {
  if (!notebooks.has(id)) notebooks.set(id, { cells: [fresh()], language: 'python', context: '', listeners: new Set() });
  return notebooks.get(id);
}

export function Notebook({ sandbox }) {
  const { id } = sandbox;
  const book = notebookOf(id);
  const reason = unusable(sandbox);
  const [, again] = useReducer((n) => n + 1, 0);
  const [contexts, setContexts] = useState([]);
  const [busy, run, error] = useAction();
  useEffect(() => {
    book.listeners.add(again);
    return () => book.listeners.delete(again);
  }, [id]);
  const changed = () => book.listeners.forEach((listener) => listener());
  const edited = () => {
    book.dirty = true;
    changed();
  };
  const list = async () => setContexts(await call('GET', daemon(id, `/code/contexts?language=${book.language}`)));
  useEffect(() => { if (!reason) run(list); }, [id, book.language, Boolean(reason)]);
  const choose = (language) => {
    Object.assign(book, { language, context: '' });
    edited();
  };
  const begin = async () => {
    const { id: made } = await call('POST', daemon(id, '/code/context'), { language: book.language });
    book.context = made;
    await list();
  };
  // Cells take turns here: a running one keeps a connection open, and a browser opens six to a host.
  const execute = (cell) => {
    const before = book.turn;
    const wanted = {};
    Object.assign(cell, { outputs: [], size: 0, status: 'queued', count: null, execution: null, wanted });
    edited();
    book.turn = run(async () => {
      await before;
      if (cell.wanted === wanted) await perform(cell);
    });
  };
  const perform = async (cell) => {
    cell.status = 'waiting';
    changed();
    try {
      if (!book.context) await begin();
    } catch (failure) {
      cell.status = 'failed';
      changed();
      throw failure;
    }
    const control = new AbortController(); // a cell goes on when its tab is left
    const onEvent = (event) => {
      switch (event.type) {
        case 'init': cell.execution = event.text; break;
        case 'execution_count': Object.assign(cell, { count: event.execution_count, status: 'running' }); break;
        case 'execution_complete': Object.assign(cell, { status: 'done', count: event.execution_count ?? cell.count, took: event.execution_time }); break;
        case 'error':
          append(cell, { kind: 'error', ename: event.error.ename, evalue: event.error.evalue, text: [...(event.error.traceback.length ? event.error.traceback : [`${event.error.ename}: ${event.error.evalue}`])].join('\n') });
          Object.assign(cell, { status: 'failed', took: event.execution_time });
          break;
        case 'stdout':
        case 'stderr':
          append(cell, { kind: event.type, text: event.text === '\n' && !event.partial ? '\n' : event.text + (event.partial ? '' : '\n') });
          break;
        case 'result': append(cell, { kind: 'result', results: event.results }); break;
        case 'status': append(cell, { kind: 'stderr', text: `${event.text}\n` }); break;
        default: return false;
      }
      changed();
      return event.type === 'execution_complete' || event.type === 'error';
    };
    try {
      await follow(daemon(id, '/code'), {
        signal: control.signal, onEvent,
        whenHidden: true, // the end of a cell begins the next
        first: { method: 'POST', body: { code: cell.code, context: { id: book.context } } },
        resume: () => daemon(id, `/code/executions/${cell.execution}/stream`),
      });
    } catch (failure) {
      cell.status = 'failed';
      if (failure.status === 404) { // kernels are not restarted
        book.context = '';
        await list();
      }
      throw failure;
    } finally {
      changed();
    }
  };
  const interrupt = (cell) => {
    if (cell.status !== 'queued') return run(() => call('DELETE', daemon(id, `/code?id=${cell.execution}`)));
    Object.assign(cell, { status: '', wanted: null });
    return changed();
  };
  const keys = (event, cell) => {
    if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey || event.shiftKey)) return;
    event.preventDefault();
    if (!reason && !active(cell) && cell.source === 'code') execute(cell);
    if (event.shiftKey) {
      const at = book.cells.indexOf(cell);
      if (at === book.cells.length - 1) book.cells.push(fresh());
      edited();
      setTimeout(() => document.getElementById(`cell-${book.cells[at + 1].key}`)?.focus());
    }
  };
  const drop = (cell) => {
    book.cells = book.cells.filter((each) => each !== cell);
    if (!book.cells.length) book.cells.push(fresh());
    edited();
  };
  const listed = contexts.some((context) => context.id === book.context);
  return html`${reason && html`<p class="note" role="status">${reason}</p>`}
    <${BookFile} id=${id} book=${book} reason=${reason} active=${book.cells.some(active)} changed=${changed} />
    <div class="row">
      <label for="language">Language</label>
      <select id="language" onChange=${(event) => choose(event.target.value)}>${languages.map((name) => html`<option selected=${name === book.language}>${name}</option>`)}</select>
      <label for="context">Context</label>
      <select id="context" onChange=${(event) => { book.context = event.target.value; changed(); }}>
        <option value="" selected=${!book.context}>a new one</option>
        ${book.context && !listed && html`<option value=${book.context} selected>${book.context.slice(0, 8)}</option>`}
        ${contexts.map((context) => html`<option value=${context.id} selected=${context.id === book.context}>${context.id.slice(0, 8)}</option>`)}
      </select>
      ${book.context && html`<button type="button" disabled=${busy || Boolean(reason)} onClick=${() => run(async () => {
    await call('DELETE', daemon(id, `/code/contexts/${book.context}`));
    book.context = '';
    await list();
  })}>End context</button>`}
      <span class="dim">Ctrl Enter runs a cell</span>
    </div>
    <${Problem} error=${error} />
    ${book.cells.map((cell, i) => html`<${Cell} key=${cell.key} cell=${cell} index=${i} reason=${reason}
      onCode=${(code) => { cell.code = code; edited(); }} onKey=${keys} onRun=${() => execute(cell)} onDrop=${() => drop(cell)}
      onInterrupt=${() => interrupt(cell)} />`)}
    <p><button type="button" onClick=${() => { book.cells.push(fresh()); edited(); }}>Add a cell</button></p>`;
}

function Cell({ cell, index, reason, onCode, onKey, onRun, onDrop, onInterrupt }) {
  const isCode = cell.source === 'code';
  return html`<article class="cell" data-source=${cell.source} data-status=${cell.status} aria-label=${`Cell ${index + 1}`}>
    <div class="source">
      <span class="count" aria-hidden="true">${isCode ? `[${active(cell) ? '*' : cell.count ?? ' '}]` : '   '}</span>
      <textarea id=${`cell-${cell.key}`} class="code" aria-label=${`${isCode ? 'Code' : 'Text'} of cell ${index + 1}`} spellcheck=${false} rows=${Math.min(24, Math.max(2, cell.code.split('\n').length))} value=${cell.code}
        onInput=${(event) => onCode(event.target.value)} onKeyDown=${(event) => onKey(event, cell)}></textarea>
      <div class="tools">
        ${!isCode ? html`<span class="dim">${cell.source}</span>` : active(cell) ? html`<button type="button" disabled=${cell.status !== 'queued' && (!cell.execution || Boolean(reason))} onClick=${onInterrupt}>Interrupt</button>` :
    html`<button type="button" disabled=${Boolean(reason)} onClick=${onRun} aria-label=${`Run cell ${index + 1}`}>Run</button>`}
        <button type="button" class="quiet" disabled=${active(cell)} onClick=${onDrop} aria-label=${`Remove cell ${index + 1}`}>Remove</button>
      </div>
    </div>
    <${Output} outputs=${cell.outputs} />
    <p class="dim" role="status">${{ queued: 'Queued', waiting: 'Waiting', running: 'Running', failed: 'Failed', done: 'Done' }[cell.status]}${!active(cell) && cell.took !== undefined && cell.status ? ` after ${cell.took} ms` : ''}</p>
  </article>`;
}
