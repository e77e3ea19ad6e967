// Notebooks as files: what a .ipynb of the format 4 says, as the cells of the page, and the cells as such a file.

export const languages = ['python', 'bash', 'javascript', 'typescript', 'java', 'go'];

const maxBytes = 32 << 20; // of a file that is read
const maxCells = 1000; // a page with more is too slow

let next = 1;

/** freshCell is an empty cell. source is what its text is: code, markdown or raw. */
export const freshCell = (source = 'code', code = '') => ({ key: next++, id: crypto.getRandomValues(new Uint32Array(1))[0].toString(16).padStart(8, '0'), source, code, outputs: [], size: 0, status: '', count: null, execution: null, metadata: {} });

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
const joined = (value) => (Array.isArray(value) ? value.join('') : typeof value === 'string' ? value : '');

/** shown is an output of a file as the page shows one. It keeps the original, with which it is saved again. */
function shown(original) {
  if (!isObject(original)) throw new Error('an output is not an object');
  switch (original.output_type) {
    case 'stream': return { kind: original.name === 'stderr' ? 'stderr' : 'stdout', text: joined(original.text), original };
    case 'error': return { kind: 'error', text: (Array.isArray(original.traceback) && original.traceback.length ? original.traceback.join('\n') : `${original.ename}: ${original.evalue}`), original };
    default: {
      const results = {};
      for (const [type, value] of Object.entries(isObject(original.data) ? original.data : {})) results[type] = Array.isArray(value) && !type.endsWith('json') ? value.join('') : value;
      return { kind: 'result', results, original };
    }
  }
}

/** parse reads the text of a file. It throws an Error that says what is wrong with it. */
export function parse(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new Error(`The file is no notebook: ${error.message}`);
  }
  if (!isObject(file) || file.nbformat !== 4 || !Array.isArray(file.cells)) throw new Error('The file is no notebook of the format 4 (nbformat 4 with cells).');
  if (file.cells.length > maxCells) throw new Error(`The notebook has ${file.cells.length} cells; this page opens at most ${maxCells}.`);
  const metadata = isObject(file.metadata) ? file.metadata : {};
  const seen = new Set();
  const cells = file.cells.map((cell, i) => {
    if (!isObject(cell) || !['code', 'markdown', 'raw'].includes(cell.cell_type)) throw new Error(`The cell ${i + 1} has the unknown type ${JSON.stringify(cell?.cell_type)?.slice(0, 40)}.`);
    const made = freshCell(cell.cell_type, joined(cell.source));
    if (typeof cell.id === 'string' && /^[\w-]{1,64}$/.test(cell.id) && !seen.has(cell.id)) made.id = cell.id;
    seen.add(made.id);
    if (isObject(cell.metadata)) made.metadata = cell.metadata;
    if (isObject(cell.attachments)) made.attachments = cell.attachments;
    if (made.source === 'code') {
      made.count = Number.isInteger(cell.execution_count) ? cell.execution_count : null;
      made.outputs = (Array.isArray(cell.outputs) ? cell.outputs : []).map(shown);
    }
    return made;
  });
  const language = [metadata.language_info?.name, metadata.kernelspec?.language].find((name) => languages.includes(name));
  return { cells, metadata, language, minor: Number.isInteger(file.nbformat_minor) ? file.nbformat_minor : 0 };
}

/** saved is an output as the file has it. */
function saved(output) {
  if (output.original) return output.original;
  switch (output.kind) {
    case 'stdout':
    case 'stderr': return { output_type: 'stream', name: output.kind, text: output.text };
    case 'error': return { output_type: 'error', ename: output.ename ?? 'Error', evalue: output.evalue ?? '', traceback: output.text.split('\n') };
    default: return { output_type: 'display_data', data: output.results, metadata: {} };
  }
}

/** format writes the text of a file, of the format 4.5 or the newer one that it had. */
export function format({ cells, metadata = {}, language, minor = 5 }) {
  const names = { python: ['python3', 'Python 3'] };
  const [name, display] = names[language] ?? [language, language];
  const known = metadata.kernelspec?.language === language || metadata.language_info?.name === language;
  return `${JSON.stringify({
    cells: cells.map(({ source, id, code, metadata: own, attachments, count, outputs }) => ({
      cell_type: source, id, metadata: own, source: code, ...(attachments ? { attachments } : {}),
      ...(source === 'code' ? { execution_count: count ?? null, outputs: outputs.map(saved) } : {}),
    })),
    metadata: known ? metadata : { ...metadata, kernelspec: { name, display_name: display, language }, language_info: { name: language } },
    nbformat: 4,
    nbformat_minor: Math.max(5, minor),
  }, null, 1)}\n`;
}

/** readBounded returns the text of a response, and throws an Error for one that is too long: what a sandbox says of its size need not be true. */
export async function readBounded(response) {
  const reader = response.body.getReader();
  const pieces = [];
  for (let size = 0; ;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > maxBytes) {
      reader.cancel().catch(() => {});
      throw new Error(`The file is larger than ${maxBytes >> 20} MiB.`);
    }
    pieces.push(value);
  }
  return new TextDecoder('utf-8', { fatal: true }).decode(await new Blob(pieces).arrayBuffer());
}
