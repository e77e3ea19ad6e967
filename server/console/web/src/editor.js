// One file: its text to edit, or its picture.
import { useEffect, useReducer, useRef, useState } from 'preact/hooks';
import { ApiError, daemon, request, upload } from './api.js';
import { wanted } from './bookfile.js';
import { drafts, keyOf } from './drafts.js';
import { base } from './path.js';
import { bytes, Confirm, Empty, html, Problem, useAction } from './ui.js';

const limit = 2 << 20; // bytes of a file that is shown
const pictures = { png: 'image/png', jpg: 'image/jpeg', jpeg: 'image/jpeg', gif: 'image/gif', webp: 'image/webp', svg: 'image/svg+xml', ico: 'image/x-icon' };

/** dataURL is the whole content as a URL. Opened as a page it has no origin, unlike one of a blob: what runs in it has nothing of the console. */
const dataURL = (blob) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(blob);
});

/** linesOf returns what a text area shows of a text, which ends all lines with \n, and what ends them in the file, null for no single one. */
function linesOf(read) {
  const text = read.replaceAll('\r\n', '\n');
  const end = text === read ? '\n' : '\r\n';
  return { text, end: !text.includes('\r') && text.replaceAll('\n', end) === read ? end : null };
}

export function Editor({ id, file, onClose, onDownload }) {
  const [content, setContent] = useState(null); // {text, end, size} or {picture}, or {} for what cannot be shown
  const [, again] = useReducer((n) => n + 1, 0);
  const [failed, setFailed] = useState(null);
  const [busy, run, error] = useAction();
  const [leaving, setLeaving] = useState(false);
  const area = useRef();
  const back = useRef();
  const tag = useRef(null);
  const key = keyOf(id, file.path);
  const draft = drafts.get(key);
  const text = draft?.text ?? content?.text;
  const path = daemon(id, `/files/download?${new URLSearchParams({ path: file.path })}`);
  const fixed = content?.end === null && !draft;
  useEffect(() => {
    const control = new AbortController();
    (async () => {
      if (file.type === 'file' && file.size > limit) return setContent({});
      const response = await request(path, { signal: control.signal });
      tag.current = response.headers.get('ETag');
      const data = await response.arrayBuffer();
      const type = pictures[file.path.split('.').pop().toLowerCase()];
      if (type) {
        return setContent({ picture: await dataURL(new Blob([data], { type })) });
      }
      try {
        const read = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(data);
        return setContent(read.includes('\0') ? {} : { ...linesOf(read), size: data.byteLength });
      } catch {
        return setContent({});
      }
    })().catch((failure) => {
      if (failure.name === 'AbortError') return;
      setFailed(failure);
      if (failure.status === 404 && drafts.has(key)) setContent({ text: '', size: 0 }); // what was typed can be saved as a new file
    });
    return () => control.abort();
  }, [id, file.path]);
  // What had the focus may be gone from the page.
  useEffect(() => {
    const at = document.activeElement;
    if (at === document.body || at.closest('.panel')) (area.current ?? back.current).focus({ preventScroll: true });
  }, [content]);
  const tagNow = async () => {
    try {
      return (await request(path, { headers: { Range: 'bytes=0-0' } })).headers.get('ETag');
    } catch (failure) {
      if (failure instanceof ApiError && (failure.status === 416 || failure.status === 404)) return null; // empty, or gone
      throw failure;
    }
  };
  const type = (typed) => {
    if (typed === content.text) drafts.delete(key);
    else drafts.set(key, { end: content.end, tag: tag.current, ...draft, text: typed });
    again();
  };
  const save = () => run(async () => {
    // Another program may have written the file since; an ETag changes with it.
    const now = await tagNow();
    if (now && draft.tag && now !== draft.tag) {
      drafts.set(key, { ...drafts.get(key), tag: now });
      throw new Error('The file was changed in the sandbox since it was opened. Save again to overwrite it.');
    }
    const { end = '\n' } = draft;
    const data = new Blob([text.replaceAll('\n', end)]);
    await upload(id, file.path, data);
    tag.current = await tagNow();
    const typed = drafts.get(key); // meanwhile, too
    if (typed?.text === text) drafts.delete(key);
    else if (typed) drafts.set(key, { ...typed, tag: tag.current });
    setFailed(null);
    setContent({ text, end, size: data.size });
  });
  const keys = (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === 's') {
      event.preventDefault();
      if (draft && !busy) save();
    }
  };
  return html`<div class="row">
      <button type="button" ref=${back} onClick=${() => (draft ? setLeaving(true) : onClose())}>Back</button>
      <h2><code>${file.path}</code></h2>
      <span class="dim">${draft ? 'not saved' : content && bytes(content.size ?? file.size)}</span>
      <span class="space"></span>
      ${content?.text !== undefined && html`<button type="button" class="primary" disabled=${busy || !draft} onClick=${save}>Save</button>`}
      ${file.path.endsWith('.ipynb') && html`<button type="button" onClick=${() => { wanted.set(id, file.path); location.hash = `#/sandboxes/${id}/notebook`; }}>Open as a notebook</button>`}
      <button type="button" onClick=${onDownload}>Download</button>
    </div>
    <${Problem} error=${failed ?? error} />
    ${fixed && html`<p class="note" role="status">The lines of this file end in more than one way, which a change here would not keep: it can be read only.</p>`}
    ${content === null ? !failed && html`<${Empty}>Loading…<//>` :
    content.picture ? html`<img class="picture" src=${content.picture} alt=${base(file.path)} />` :
    content.text !== undefined ? html`<textarea class="code editor" ref=${area} aria-label=${`Content of ${base(file.path)}`} spellcheck=${false} readonly=${fixed} value=${text}
      onInput=${(event) => type(event.target.value)} onKeyDown=${keys}></textarea>` :
    html`<${Empty}>It is no text, or larger than ${bytes(limit)}: download it.<//>`}
    ${leaving && html`<${Confirm} title="Leave without saving?" verb="Leave" onClose=${() => setLeaving(false)} onConfirm=${() => { drafts.delete(key); onClose(); }}><p>What was changed is lost.</p><//>`}`;
}
