// What a cell gave back. All of it comes from the sandbox: HTML is reduced to its structure, and everything else is text or a picture.
import { useMemo } from 'preact/hooks';
import { h } from 'preact';
import { html, plain } from './ui.js';

const limit = 4 << 20; // characters of a cell's outputs that are kept

/** append adds an output to a cell, to the last one where it goes on with the same stream. */
export function append(cell, output) {
  const size = output.text?.length ?? JSON.stringify(output.results).length;
  if (cell.size > limit) return;
  cell.size += size;
  if (cell.size > limit) {
    cell.outputs = [...cell.outputs, { kind: 'stderr', text: 'More output is not shown.\n' }];
    return;
  }
  const last = cell.outputs.at(-1);
  if (last && last.kind === output.kind && output.kind !== 'result' && output.kind !== 'error') {
    cell.outputs = [...cell.outputs.slice(0, -1), { ...last, text: last.text + output.text }];
  } else {
    cell.outputs = [...cell.outputs, output];
  }
}

export function Output({ outputs }) {
  if (!outputs.length) return null;
  return html`<div class="outputs">${outputs.map((output, i) => (output.kind === 'result' ? html`<${Result} key=${i} results=${output.results} />` :
    html`<pre key=${i} class=${output.kind} tabindex="0" aria-label=${output.kind}>${plain(output.text)}</pre>`))}</div>`;
}

const pictures = ['image/png', 'image/jpeg', 'image/gif', 'image/webp'];

function Result({ results }) {
  const picture = pictures.find((type) => results[type]);
  const alt = results['text/plain'] ?? 'Picture';
  if (picture) return html`<img src=${`data:${picture};base64,${String(results[picture]).replace(/\s/g, '')}`} alt=${alt} />`;
  // As the source of an image a drawing can neither run scripts nor load anything.
  if (results['image/svg+xml']) return html`<img src=${`data:image/svg+xml,${encodeURIComponent(results['image/svg+xml'])}`} alt=${alt} />`;
  if (results['text/html']) return html`<${Markup} source=${results['text/html']} />`;
  if (results['application/json'] !== undefined) return html`<pre class="result" tabindex="0" aria-label="result">${JSON.stringify(results['application/json'], null, 2)}</pre>`;
  const text = results['text/plain'] ?? results['text/markdown'] ?? results['text/latex'] ?? `A result of ${Object.keys(results).join(', ')}`;
  return html`<pre class="result" tabindex="0" aria-label="result">${plain(String(text))}</pre>`;
}

const kept = new Set(['TABLE', 'THEAD', 'TBODY', 'TFOOT', 'TR', 'TD', 'TH', 'CAPTION', 'P', 'DIV', 'SPAN', 'B', 'STRONG', 'I', 'EM', 'U', 'S', 'SUB', 'SUP', 'CODE', 'PRE', 'BR', 'HR',
  'UL', 'OL', 'LI', 'DL', 'DT', 'DD', 'BLOCKQUOTE', 'H1', 'H2', 'H3', 'H4', 'H5', 'H6']);
const dropped = new Set(['SCRIPT', 'STYLE', 'TEMPLATE', 'NOSCRIPT', 'IFRAME', 'OBJECT', 'EMBED', 'SVG', 'MATH', 'TITLE', 'HEAD']);
const deepest = 64;

/** nodes are the elements that are on the list, without attributes but the extent of cells, and the text of all others. */
function nodes(element, depth = 0) {
  if (depth > deepest) return null;
  return [...element.childNodes].map((node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.data;
    if (node.nodeType !== Node.ELEMENT_NODE || dropped.has(node.tagName.toUpperCase())) return null;
    const children = nodes(node, depth + 1);
    if (!kept.has(node.tagName)) return children;
    const extent = {};
    for (const name of ['colSpan', 'rowSpan']) if (node[name] > 1) extent[name] = Math.min(node[name], 100);
    return h(node.tagName.toLowerCase(), extent, children);
  });
}

function Markup({ source }) {
  const tree = useMemo(() => nodes(new DOMParser().parseFromString(source, 'text/html').body), [source]);
  return html`<div class="markup" tabindex="0" role="group" aria-label="result">${tree}</div>`;
}
