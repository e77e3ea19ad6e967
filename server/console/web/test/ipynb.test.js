import assert from 'node:assert/strict';
import { test } from 'node:test';
import { format, parse, readBounded } from '../src/ipynb.js';

const file = {
  nbformat: 4, nbformat_minor: 2, metadata: { kernelspec: { name: 'bash', display_name: 'Bash', language: 'bash' }, own: [1] },
  cells: [
    { cell_type: 'markdown', metadata: { tags: ['a'] }, source: ['# One\n', 'two'], attachments: { 'a.png': { 'image/png': 'aGk=' } } },
    { cell_type: 'code', metadata: {}, execution_count: 3, source: 'echo', outputs: [
      { output_type: 'stream', name: 'stderr', text: ['a\n', 'b'] },
      { output_type: 'execute_result', execution_count: 3, metadata: { own: true }, data: { 'text/plain': ['4', '2'], 'application/json': [1] } },
      { output_type: 'error', ename: 'E', evalue: 'v', traceback: ['one', 'two'] },
    ] },
    { cell_type: 'raw', id: 'kept', metadata: {}, source: '' },
  ],
};

test('a file is shown, and saved with what the page does not show', () => {
  const book = parse(JSON.stringify(file));
  assert.equal(book.language, 'bash');
  assert.deepEqual(book.cells.map(({ source, code }) => [source, code]), [['markdown', '# One\ntwo'], ['code', 'echo'], ['raw', '']]);
  const [stream, result, error] = book.cells[1].outputs;
  assert.deepEqual([stream.kind, stream.text, error.text], ['stderr', 'a\nb', 'one\ntwo']);
  assert.deepEqual(result.results, { 'text/plain': '42', 'application/json': [1] });
  const saved = JSON.parse(format(book));
  assert.deepEqual([saved.nbformat, saved.nbformat_minor, saved.metadata], [4, 5, file.metadata]);
  assert.deepEqual(saved.cells[1].outputs, file.cells[1].outputs);
  assert.deepEqual(saved.cells[0].attachments, file.cells[0].attachments);
  assert.equal(saved.cells[2].id, 'kept');
  assert.equal(new Set(saved.cells.map(({ id }) => id)).size, 3);
});

test('what is no notebook is refused with the reason', () => {
  for (const [text, reason] of [
    ['{', /JSON/], ['[]', /format 4/], ['{"nbformat":3,"cells":[]}', /format 4/], ['{"nbformat":4}', /format 4/],
    ['{"nbformat":4,"cells":[{"cell_type":"x"}]}', /cell 1 has the unknown type "x"/],
    [JSON.stringify({ nbformat: 4, cells: Array(1001).fill(file.cells[2]) }), /1001 cells/],
  ]) assert.throws(() => parse(text), reason);
});

test('two cells of one id get ids of their own', () => {
  const { cells } = parse(JSON.stringify({ nbformat: 4, nbformat_minor: 5, cells: [file.cells[2], file.cells[2]] }));
  assert.notEqual(cells[0].id, cells[1].id);
});

test('a file is read with a bound', async () => {
  const body = (count) => new Response(ReadableStream.from((function* pieces() {
    for (let i = 0; i < count; i++) yield new Uint8Array(1 << 20).fill(32);
  })()));
  assert.equal((await readBounded(body(2))).length, 2 << 20);
  await assert.rejects(readBounded(body(40)), /larger than 32 MiB/);
});
