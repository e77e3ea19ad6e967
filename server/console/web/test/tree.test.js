import assert from 'node:assert/strict';
import { test } from 'node:test';
import { tree } from '../src/tree.js';

/** drawn writes a tree as text: | for a line that goes past, the id for the dot, and ' for one without a line below it. */
const drawn = (pairs) => tree(pairs.map(([id, parentId]) => ({ id, parentId }))).map(({ snapshot, lane, past, down }) =>
  Array.from({ length: lane }, (_, at) => (past.includes(at) ? '|' : ' ')).join('') + snapshot.id + (down ? '' : "'"));

test('a history without branches is one lane', () => {
  assert.deepEqual(drawn([['c', 'b'], ['b', 'a'], ['a']]), ['a', 'b', "c'"]);
  assert.deepEqual(drawn([]), []);
});

test('the newest child goes on, and the others branch off above it', () => {
  assert.deepEqual(drawn([['g', 'a'], ['f', 'c'], ['e', 'd'], ['d', 'c'], ['c', 'a'], ['b', 'a'], ['a']]),
    ['a', "|b'", '|c', '||d', "||e'", "|f'", "g'"]);
});

test('a snapshot whose parent is gone begins a tree of its own', () => {
  assert.deepEqual(drawn([['c', 'a'], ['b', 'gone'], ['a']]), ['a', "c'", "b'"]);
});

test('a history may be long', () => {
  const many = Array.from({ length: 1000 }, (_, n) => [String(1000 - n), String(999 - n)]);
  assert.equal(drawn(many).length, 1000);
});
