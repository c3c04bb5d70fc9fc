// Artifacts view: large files in the store, identified by their hash.

import * as api from '../api.js';
import { h } from '../dom.js';
import { bytes, counted } from '../format.js';
import { copyButton, empty, heading, loadingText, pill, plainTable, time } from '../parts.js';

export const isLive = true;
export const title = () => 'Artifacts';
export const load = () => api.list('artifacts');

export function render({ artifacts, total, age_secs: age }) {
  return [
    heading('Artifacts', h('span', { class: 'soft' }, counted(total, 'artifact'))),
    h('section', { class: 'card flush' }, artifacts.length === 0
      ? age === null ? loadingText() : empty('No artifacts yet', 'Artifacts are large files that tasks use, stored under their hash.', 'leasehold artifact put FILE')
      : plainTable('Artifacts', [{ name: 'artifact' }, { name: 'state' }, { name: 'size', isNumber: true }, { name: 'created' }],
        artifacts.map((one) => ({
          key: one.id,
          cells: [
            h('span', { class: 'mono hash' }, h('span', { title: one.id }, `${one.id.slice(0, 16)}…`), copyButton(one.id, 'Copy hash')),
            pill(one.state), one.bytes === null ? '–' : bytes(one.bytes), time(one.created_at),
          ],
        })), { isStacked: true })),
  ];
}
