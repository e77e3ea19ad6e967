// The files of a sandbox: one folder at a time, kept current by a watch.
import { useEffect, useRef, useState } from 'preact/hooks';
import { call, daemon, follow, upload } from './api.js';
import { drafts, keyOf } from './drafts.js';
import { Editor } from './editor.js';
import { base, join, parent } from './path.js';
import { unusable } from './state.js';
import { bytes, Confirm, Empty, html, Modal, moment, Problem, useAction } from './ui.js';

const limit = 1000; // entries that are shown
const folders = new Map(); // the folder last shown, by sandbox
const opened = new Map(); // the entry of the file that is shown, by sandbox

const query = (values) => new URLSearchParams(values).toString();

/** download makes the browser save a file, by a link that is good for a minute: the page's own session cannot go along. */
async function download(id, path) {
  const { url } = await call('GET', `/v1/sandboxes/${id}/endpoints/44772?expires=60`);
  const at = new URL(url);
  at.pathname = `${at.pathname.replace(/\/$/, '')}/files/download`;
  at.searchParams.set('path', path);
  const link = document.createElement('a');
  link.href = at;
  link.download = base(path);
  link.rel = 'noopener';
  link.click();
}

export function Files({ sandbox }) {
  const { id } = sandbox;
  const reason = unusable(sandbox);
  const [folder, setFolder] = useState(folders.get(id) ?? null);
  const [list, setList] = useState(null);
  const [failed, setFailed] = useState(null);
  const [open, show] = useState(opened.get(id) ?? null);
  const [asked, ask] = useState(null);
  const [sending, setSending] = useState(null);
  const [over, setOver] = useState(false);
  const [busy, run, error] = useAction();
  const chooser = useRef();
  const area = useRef();
  const left = useRef(null); // the path of the file or folder that was shown before
  const setOpen = (entry) => {
    left.current = open?.path;
    opened.set(id, entry);
    show(entry);
  };
  const enterFolder = (path) => {
    left.current = folder;
    setFolder(path);
  };
  // What had the focus is gone from the page with what was shown before.
  useEffect(() => {
    if (open || !left.current) return;
    const find = (selector) => area.current?.querySelector(selector);
    (find(`[data-path="${CSS.escape(left.current)}"]`) ?? find('[aria-current]'))?.focus();
    left.current = null;
  }, [open, folder]);

  const load = async (signal) => {
    const entries = await call('GET', daemon(id, `/directories/list?${query({ path: folder })}`), undefined, { signal });
    setList(entries.sort((a, b) => (b.type === 'directory') - (a.type === 'directory') || a.path.localeCompare(b.path)));
    setFailed(null);
  };
  useEffect(() => {
    if (reason) return undefined;
    const control = new AbortController();
    const { signal } = control;
    const fail = (failure) => failure.name === 'AbortError' || setFailed(failure);
    if (folder === null) { // begin where the sandbox's own programs do
      call('GET', daemon(id, `/files/info?${query({ path: '.' })}`), undefined, { signal }).then((info) => setFolder(Object.values(info)[0].path), fail);
      return () => control.abort();
    }
    folders.set(id, folder);
    setList(null);
    let timer;
    follow(daemon(id, `/files/watch?${query({ path: folder })}`), {
      signal,
      onEvent(event) {
        if (event.type === 'ping') return;
        clearTimeout(timer);
        timer = setTimeout(() => load(signal).catch(fail), event.type === 'ready' ? 0 : 200);
      },
    }).catch(fail);
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [id, folder, reason]);

  const create = async (path) => {
    const there = await call('GET', daemon(id, `/files/info?${query({ path })}`)).then(() => true, (failure) => {
      if (failure.status !== 404) throw failure;
      return false;
    });
    if (there) throw new Error(`${path} exists already`);
    await upload(id, path, new Blob([]));
  };
  const write = async (files) => {
    try {
      for (const [i, file] of files.entries()) {
        const label = `${file.name} (${i + 1} of ${files.length})`;
        setSending({ label, part: 0 });
        await upload(id, join(folder, file.name), file, { onProgress: (part) => setSending({ label, part }) });
      }
    } finally {
      setSending(null);
    }
  };
  const send = (files, directories = []) => run(async () => {
    if (directories.length) throw new Error(`${directories.join(', ')}: folders cannot be uploaded, only files`);
    const names = new Set((await call('GET', daemon(id, `/directories/list?${query({ path: folder })}`))).map(({ path }) => base(path)));
    const there = files.map(({ name }) => name).filter((name) => names.has(name));
    if (there.length) ask({ what: 'overwrite', files, there });
    else await write(files);
  });
  const enter = (entry) => run(async () => {
    // Only the daemon can see whether a link leads to a folder.
    const isFolder = entry.type === 'directory' || (entry.type === 'symlink' && await call('GET', daemon(id, `/directories/list?${query({ path: `${entry.path}/.` })}`)).then(() => true, () => false));
    if (isFolder) enterFolder(entry.path);
    else setOpen(entry);
  });
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    const { items, files } = event.dataTransfer;
    if (!reason && files.length) send([...files], [...items].map((item) => item.webkitGetAsEntry()).filter((entry) => entry?.isDirectory).map(({ name }) => name));
  };
  const draft = open && drafts.get(keyOf(id, open.path));
  if (reason) return html`<p class="note" role="status">${reason}</p>
    ${draft && html`<div class="row"><h2><code>${open.path}</code></h2><span class="dim">not saved</span></div>
      <textarea class="code editor" aria-label=${`What was not saved of ${base(open.path)}`} spellcheck=${false} readonly value=${draft.text}></textarea>`}`;
  if (open) return html`<${Editor} id=${id} file=${open} onClose=${() => setOpen(null)} onDownload=${() => run(() => download(id, open.path))} />`;
  const crumbs = folder === null ? [] : ['/', ...folder.split('/').filter(Boolean)];
  return html`<div ref=${area} class=${over ? 'drop over' : 'drop'} onDragOver=${(event) => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${drop}>
    <div class="row">
      <nav aria-label="Folder" class="crumbs">${crumbs.map((name, i) => html`<button type="button" class="link" key=${i} aria-current=${i === crumbs.length - 1 ? 'location' : undefined}
        onClick=${() => enterFolder(i === 0 ? '/' : `/${crumbs.slice(1, i + 1).join('/')}`)}>${name}</button>`)}</nav>
      <span class="space"></span>
      <button type="button" disabled=${busy || !folder} onClick=${() => ask({ what: 'file' })}>New file…</button>
      <button type="button" disabled=${busy || !folder} onClick=${() => ask({ what: 'folder' })}>New folder…</button>
      <button type="button" disabled=${busy || !folder} onClick=${() => chooser.current.click()}>Upload…</button>
      <input type="file" multiple hidden ref=${chooser} onChange=${(event) => { send([...event.target.files]); event.target.value = ''; }} />
    </div>
    ${sending && html`<p role="status"><progress value=${sending.part} max="1" aria-label="Upload"></progress> ${sending.label}</p>`}
    <${Problem} error=${error} />
    <${Problem} error=${failed} onRetry=${() => enterFolder(parent(folder ?? '/'))} />
    ${list === null ? !failed && html`<${Empty}>Loading…<//>` : list.length === 0 ? html`<${Empty}>The folder is empty. Files can be dropped here.<//>` : html`<table class="rows files">
      <caption class="hidden">Files of ${folder}</caption>
      <thead><tr><th scope="col">Name</th><th scope="col" class="number">Size</th><th scope="col">Changed</th><th scope="col">Owner</th><th scope="col">Mode</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
      <tbody>${list.slice(0, limit).map((entry) => html`<tr key=${entry.path}>
        <th scope="row"><button type="button" class="link" data-type=${entry.type} data-path=${entry.path} disabled=${entry.type === 'other'}
          onClick=${() => enter(entry)}>${base(entry.path)}${entry.type === 'directory' ? '/' : entry.type === 'symlink' ? ' →' : ''}</button></th>
        <td data-label="Size" class="number">${entry.type === 'file' ? bytes(entry.size) : '–'}</td>
        <td data-label="Changed"><time datetime=${entry.modified_at}>${moment(entry.modified_at)}</time></td>
        <td data-label="Owner">${entry.owner}:${entry.group}</td>
        <td data-label="Mode"><code>${String(entry.mode).padStart(3, '0')}</code></td>
        <td class="tools">
          ${entry.type === 'file' && html`<button type="button" disabled=${busy} aria-label=${`Download ${base(entry.path)}`} onClick=${() => run(() => download(id, entry.path))}>Download</button>`}
          <button type="button" disabled=${busy} aria-label=${`Rename ${base(entry.path)}`} onClick=${() => ask({ what: 'rename', entry })}>Rename…</button>
          <button type="button" class="danger" disabled=${busy} aria-label=${`Delete ${base(entry.path)}`} onClick=${() => ask({ what: 'delete', entry })}>Delete…</button>
        </td></tr>`)}</tbody></table>
      ${list.length > limit && html`<p class="dim">The first ${limit} of ${list.length}</p>`}`}
    ${asked?.what === 'delete' && html`<${Confirm} title=${`Delete ${base(asked.entry.path)}?`} verb="Delete" onClose=${() => ask(null)}
      onConfirm=${() => call('DELETE', daemon(id, `/${asked.entry.type === 'directory' ? 'directories' : 'files'}?${query({ path: asked.entry.path })}`))}>
      <p>${asked.entry.type === 'directory' ? 'Everything in it is deleted, too.' : 'It cannot be restored.'}</p><//>`}
    ${asked?.what === 'overwrite' && html`<${Confirm} title=${asked.there.length === 1 ? `Overwrite ${asked.there[0]}?` : `Overwrite ${asked.there.length} files?`} verb="Overwrite" onClose=${() => ask(null)}
      onConfirm=${() => { run(() => write(asked.files)); }}>
      <p>${asked.there.length === 1 ? 'It is' : `${asked.there.slice(0, 10).join(', ')}${asked.there.length > 10 ? ' and others are' : ' are'}`} in the folder already, and cannot be restored.</p><//>`}
    ${['file', 'folder', 'rename'].includes(asked?.what) && html`<${Name} title=${{ file: 'New file', folder: 'New folder', rename: 'Rename' }[asked.what]} name=${asked.entry ? base(asked.entry.path) : ''} onClose=${() => ask(null)}
      onName=${(name) => ({
    file: () => create(join(folder, name)),
    folder: () => call('POST', daemon(id, '/directories'), { [join(folder, name)]: {} }),
    rename: () => call('POST', daemon(id, '/files/mv'), [{ src: asked.entry.path, dest: join(folder, name) }]),
  }[asked.what]())} />`}
  </div>`;
}

function Name({ title, name, onName, onClose }) {
  const [busy, run, error] = useAction();
  const submit = (event) => {
    event.preventDefault();
    const { value } = event.target.elements.name;
    run(async () => {
      await onName(value);
      onClose();
    });
  };
  return html`<${Modal} title=${title} onClose=${onClose}>
    <form onSubmit=${submit}>
      <label for="name">Name</label>
      <input id="name" name="name" required autofocus defaultValue=${name} spellcheck=${false} autocomplete="off" />
      <${Problem} error=${error} />
      <div class="actions"><button type="button" onClick=${onClose}>Cancel</button><button class="primary" disabled=${busy}>OK</button></div>
    </form>
  <//>`;
}
