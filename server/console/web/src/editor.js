// One file: its text to edit, or its picture.
import { useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, daemon, request, upload } from './api.js';
import { base } from './path.js';
import { bytes, Confirm, Empty, html, Problem, useAction } from './ui.js';

const limit = 2 << 20; // bytes of a file that is shown
const pictures = { png: 'image/png', jpg: 'image/jpeg', jpeg: 'image/jpeg', gif: 'image/gif', webp: 'image/webp', svg: 'image/svg+xml', ico: 'image/x-icon' };

export function Editor({ id, file, onClose, onDownload }) {
  const [content, setContent] = useState(null); // {text} or {picture}, or {} for what cannot be shown
  const [text, setText] = useState('');
  const [failed, setFailed] = useState(null);
  const [busy, run, error] = useAction();
  const [leaving, setLeaving] = useState(false);
  const area = useRef();
  const tag = useRef(null);
  const path = daemon(id, `/files/download?${new URLSearchParams({ path: file.path })}`);
  const changed = content?.text !== undefined && content.text !== text;
  useEffect(() => {
    const control = new AbortController();
    let picture;
    (async () => {
      if (file.type === 'file' && file.size > limit) return setContent({});
      const response = await request(path, { signal: control.signal });
      tag.current = response.headers.get('ETag');
      const data = await response.arrayBuffer();
      const type = pictures[file.path.split('.').pop().toLowerCase()];
      if (type) {
        picture = URL.createObjectURL(new Blob([data], { type }));
        return setContent({ picture });
      }
      try {
        const read = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(data);
        setText(read);
        return setContent(read.includes('\0') ? {} : { text: read });
      } catch {
        return setContent({});
      }
    })().catch((failure) => failure.name === 'AbortError' || setFailed(failure));
    return () => {
      control.abort();
      if (picture) URL.revokeObjectURL(picture);
    };
  }, [id, file.path]);
  const tagNow = async () => {
    try {
      return (await request(path, { headers: { Range: 'bytes=0-0' } })).headers.get('ETag');
    } catch (failure) {
      if (failure instanceof ApiError && (failure.status === 416 || failure.status === 404)) return null; // empty, or gone
      throw failure;
    }
  };
  const save = () => run(async () => {
    // Another program may have written the file since; an ETag changes with it.
    const now = await tagNow();
    if (now && tag.current && now !== tag.current) {
      tag.current = now;
      throw new Error('The file was changed in the sandbox since it was opened. Save again to overwrite it.');
    }
    await upload(id, file.path, new Blob([text]));
    tag.current = await tagNow();
    setContent({ text });
  });
  const keys = (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === 's') {
      event.preventDefault();
      if (changed && !busy) save();
    }
  };
  return html`<div class="row">
      <button type="button" onClick=${() => (changed ? setLeaving(true) : onClose())}>Back</button>
      <h2><code>${file.path}</code></h2>
      <span class="dim">${changed ? 'not saved' : content && bytes(content.text !== undefined ? new Blob([content.text]).size : file.size)}</span>
      <span class="space"></span>
      ${content?.text !== undefined && html`<button type="button" class="primary" disabled=${busy || !changed} onClick=${save}>Save</button>`}
      <button type="button" onClick=${onDownload}>Download</button>
    </div>
    <${Problem} error=${failed ?? error} />
    ${content === null ? !failed && html`<${Empty}>Loading…<//>` :
    content.picture ? html`<img class="picture" src=${content.picture} alt=${base(file.path)} />` :
    content.text !== undefined ? html`<textarea class="code editor" ref=${area} aria-label=${`Content of ${base(file.path)}`} spellcheck=${false} value=${text}
      onInput=${(event) => setText(event.target.value)} onKeyDown=${keys}></textarea>` :
    html`<${Empty}>It is no text, or larger than ${bytes(limit)}: download it.<//>`}
    ${leaving && html`<${Confirm} title="Leave without saving?" verb="Leave" onClose=${() => setLeaving(false)} onConfirm=${onClose}><p>What was changed is lost.</p><//>`}`;
}
