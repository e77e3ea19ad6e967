// The file that a notebook is opened from and saved into, in the sandbox.
import { useEffect, useState } from 'preact/hooks';
import { ApiError, call, daemon, request, upload } from './api.js';
import { format, freshCell, parse, readBounded } from './ipynb.js';
import { base } from './path.js';
import { html, Modal, Problem, useAction } from './ui.js';

/** wanted has the path of the file that the notebook of a sandbox is to open when it is shown next. */
export const wanted = new Map();

const suggested = 100; // files that the dialog offers
const query = (values) => new URLSearchParams(values).toString();

/** tagOf returns the ETag of a file, null when it is empty or there is none. */
async function tagOf(id, path) {
  try {
    return (await request(daemon(id, `/files/download?${query({ path })}`), { headers: { Range: 'bytes=0-0' } })).headers.get('ETag');
  } catch (failure) {
    if (failure instanceof ApiError && (failure.status === 416 || failure.status === 404)) return null;
    throw failure;
  }
}

/** BookFile is the row of a notebook with its file: open, save, download. */
export function BookFile({ id, book, reason, active, changed }) {
  const [busy, run, error] = useAction();
  const [asked, ask] = useState(null);
  const open = async (path) => {
    const response = await request(daemon(id, `/files/download?${query({ path })}`));
    const { cells, metadata, language, minor } = parse(await readBounded(response));
    Object.assign(book, {
      cells: cells.length ? cells : [freshCell()], metadata, minor, path, tag: response.headers.get('ETag'), dirty: false, context: '',
      language: language ?? book.language,
    });
    changed();
  };
  const save = async (path) => {
    const now = await tagOf(id, path);
    // Another program may have written the file since; an ETag changes with it.
    if (path === book.path ? book.tag && now && now !== book.tag : now && book.overwrite !== path) {
      Object.assign(book, path === book.path ? { tag: now } : { overwrite: path });
      throw new Error(path === book.path ? 'The file was changed in the sandbox since it was opened. Save again to overwrite it.' : `${path} exists already. Save again to overwrite it.`);
    }
    const edits = book.cells.map(({ code }) => code).join('\0');
    await upload(id, path, new Blob([format(book)]));
    const same = edits === book.cells.map(({ code }) => code).join('\0'); // meanwhile the user may have typed more
    Object.assign(book, { path, tag: await tagOf(id, path), overwrite: null, dirty: !same });
    changed();
  };
  useEffect(() => {
    const path = wanted.get(id);
    if (!path || reason) return;
    wanted.delete(id);
    if (book.dirty) ask({ what: 'open', path });
    else run(() => open(path));
  }, [id, Boolean(reason)]);
  const download = () => {
    const link = document.createElement('a');
    link.href = `data:application/x-ipynb+json;base64,${btoa(Array.from(new TextEncoder().encode(format(book)), (byte) => String.fromCharCode(byte)).join(''))}`;
    link.download = book.path ? base(book.path) : 'notebook.ipynb';
    link.click();
  };
  return html`<div class="row">
      <span>${book.path ? html`<code>${book.path}</code>` : 'This notebook is in no file.'}</span>
      <span class="dim" role="status">${book.dirty ? 'not saved' : book.path ? 'saved' : ''}</span>
      <span class="space"></span>
      <button type="button" disabled=${busy || active || Boolean(reason)} onClick=${() => ask({ what: 'open', path: '' })}>Open…</button>
      <button type="button" disabled=${busy || Boolean(reason)} onClick=${() => (book.path ? run(() => save(book.path)) : ask({ what: 'save', path: 'notebook.ipynb' }))}>Save${book.path ? '' : '…'}</button>
      ${book.path && html`<button type="button" disabled=${busy || Boolean(reason)} onClick=${() => ask({ what: 'save', path: book.path })}>Save as…</button>`}
      <button type="button" onClick=${download}>Download</button>
    </div>
    <${Problem} error=${error} />
    ${asked && html`<${Choose} id=${id} title=${asked.what === 'open' ? 'Open a notebook' : 'Save the notebook'} verb=${asked.what === 'open' ? 'Open' : 'Save'} path=${asked.path} search=${asked.what === 'open'}
      warning=${asked.what === 'open' && book.dirty && 'What was not saved of the notebook on the page is lost.'}
      onClose=${() => ask(null)} onPath=${asked.what === 'open' ? open : save} />`}`;
}

/** Choose asks for the path of a file; a relative one begins where the programs of the sandbox do. */
function Choose({ id, title, verb, path, search, warning, onPath, onClose }) {
  const [busy, run, error] = useAction();
  const [found, setFound] = useState([]);
  useEffect(() => {
    if (!search) return undefined;
    const control = new AbortController();
    call('GET', daemon(id, `/files/search?${query({ path: '.', pattern: '**/*.ipynb' })}`), undefined, { signal: control.signal })
      .then((files) => setFound(files.slice(0, suggested)), () => {}); // the path can be typed
    return () => control.abort();
  }, [id, search]);
  const submit = (event) => {
    event.preventDefault();
    const value = event.target.elements.path.value.trim();
    run(async () => {
      await onPath(value);
      onClose();
    });
  };
  return html`<${Modal} title=${title} onClose=${onClose}>
    <form onSubmit=${submit}>
      <label for="path">File in the sandbox</label>
      <input id="path" name="path" required autofocus defaultValue=${path} list="notebooks" placeholder="notebook.ipynb" spellcheck=${false} autocomplete="off" />
      <datalist id="notebooks">${found.map((file) => html`<option key=${file.path} value=${file.path} />`)}</datalist>
      ${warning && html`<p class="note">${warning}</p>`}
      <${Problem} error=${error} />
      <div class="actions"><button type="button" onClick=${onClose}>Cancel</button><button class="primary" disabled=${busy}>${verb}</button></div>
    </form>
  <//>`;
}
